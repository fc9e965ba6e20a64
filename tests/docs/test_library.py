"""What others may build on is what the page says, neither more nor less; asking for it loads no more than it needs."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.ledgers import PLAN, record_run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "library.md").read_text()


def documented(package: str) -> set[str]:
    """The names in the first column of the table under the package's heading."""
    (section,) = re.findall(rf"^## [^\n]*`{package}`\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return {name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("package", ["ledger", "realizer"])
def test_the_public_names_are_the_documented_ones(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) == documented(package)
    assert len(module.__all__) == len(set(module.__all__))
    for name in module.__all__:
        found = getattr(module, name)
        assert inspect.getdoc(found), name
        assert found.__module__.split(".")[0] == package, name
    with pytest.raises(AttributeError, match="no attribute 'surely_not'"):
        _ = module.surely_not


@pytest.mark.parametrize("package", ["ledger", "realizer"])
def test_what_type_checkers_see_is_what_is_there(package: str) -> None:
    module = importlib.import_module(package)
    source = Path(str(module.__file__)).read_text()
    typed = re.findall(r"^    from ([\w.]+) import (\w+) as (\w+)$", source, re.M)
    assert all(name == other for _, name, other in typed)
    assert {name: home for home, name, _ in typed} == module._ROOMS


def test_importing_loads_neither_torch_nor_storage() -> None:
    code = (
        "import sys, ledger, realizer\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'pydantic', 'sqlalchemy', 'sqlite3', 'numpy', 'click'}, loaded\n"
        "for name in ledger.__all__: getattr(ledger, name)\n"
        "realizer.Adapter, realizer.load_adapter\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'transformers', 'numpy', 'safetensors', 'alembic'}, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from ledger import Store

    monkeypatch.chdir(tmp_path)
    with Store.open("tally.db", write=True, create=True) as store:
        store.put_blob(PLAN.data, "application/json")
        record_run(store)
    example = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    exec(compile(example, "library.md", "exec"), {})
    assert capsys.readouterr().out == "PASS\n"
