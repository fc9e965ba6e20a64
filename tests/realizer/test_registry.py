"""Finding adapters: by entry point, never by chance, and without one broken package standing in everybody's way."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from adapters.causal_lm import CausalLM
from ledger.errors import NotFound, TallyError, install
from realizer import adapter as registry
from realizer.adapter import ENTRY_POINT_GROUP, adapter_for, adapter_names, load_adapter
from realizer.answers import AdapterFault
from realizer.checkpoint import open_checkpoint
from realizer.cli.plans import _adapter
from realizer.software import adapter_identity
from tests.builders.checkpoints import tiny_model, write_checkpoint


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, ENTRY_POINT_GROUP)


CAUSAL = point("causal_lm", "adapters.causal_lm:CausalLM")


def offer(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setattr(registry, "_entry_points", lambda: points)


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """An adapter whose questions end in an error of its own; it comes first by name."""

    class Breaking(CausalLM):
        name = "a_breaking"

        @classmethod
        def unsupported(cls, checkpoint: Any) -> str | None:
            raise KeyError("width")

    module = ModuleType("a_breaking")
    module.Breaking = Breaking  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_breaking", module)
    return point("a_breaking", "a_breaking:Breaking")


def test_two_packages_that_offer_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, CAUSAL, point("causal_lm", "elsewhere:Impostor"))
    with pytest.raises(
        TallyError, match=r"several .* offer an adapter 'causal_lm': adapters.causal_lm:CausalLM, elsew"
    ):
        load_adapter("causal_lm")
    offer(monkeypatch, CAUSAL, CAUSAL)
    assert load_adapter("causal_lm").name == "causal_lm", "one package found twice is one"
    assert adapter_names() == ["causal_lm"]


def test_a_package_that_breaks_when_imported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_adapter.py").write_text("raise ValueError('out of date')\n")
    monkeypatch.syspath_prepend(tmp_path)
    offer(monkeypatch, point("broken", "broken_adapter:Any"))
    with pytest.raises(TallyError, match="'broken' cannot be imported: ValueError: out of date"):
        load_adapter("broken")
    plan: Any = SimpleNamespace(document=SimpleNamespace(adapter=None))
    with pytest.raises(NotFound, match="none of those installed recognises it; adapter 'broken' cannot be imported"):
        adapter_for(plan)


def test_a_broken_adapter_does_not_keep_another_from_being_found(
    monkeypatch: pytest.MonkeyPatch, breaking: EntryPoint, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(tiny_model(tmp_path / "model"))
    offer(monkeypatch, breaking, point("also_broken", "no_such_module:Any"), CAUSAL)
    assert _adapter(None, checkpoint).name == "causal_lm"
    with pytest.raises(AdapterFault, match="adapter 'a_breaking': `unsupported` raised KeyError: 'width'"):
        _adapter("a_breaking", checkpoint)
    offer(monkeypatch, breaking, point("also_broken", "no_such_module:Any"))
    with pytest.raises(NotFound, match=r"`unsupported` raised KeyError: 'width'; adapter 'also_broken' cannot be imp"):
        _adapter(None, checkpoint)


def test_where_only_the_extra_is_missing_that_is_the_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in an install without torch; an adapter that refuses for a reason of its own is in nobody's way."""
    checkpoint = open_checkpoint(write_checkpoint(tmp_path / "model", [{"x": ("U8", (1,), b"x")}]))
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "needing_torch.py").write_text("import torch\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan: Any = SimpleNamespace(document=SimpleNamespace(adapter=None))
    needing = point("needing", "needing_torch:Any")
    for offered in ((needing,), (CAUSAL, needing)):
        offer(monkeypatch, *offered)
        for ask in (lambda: _adapter(None, checkpoint), lambda: adapter_for(plan)):
            with pytest.raises(NotFound, match="'needing' cannot be imported") as raised:
                ask()
            assert raised.value.hint == install("realize")
    offer(monkeypatch, CAUSAL, point("gone", "no_such_module:Any"))
    with pytest.raises(NotFound, match=r"install or write an adapter"):
        _adapter(None, checkpoint)


@pytest.fixture
def reexported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installed package that offers, by its own name, a class which a submodule of it defines."""
    package = tmp_path / "reexporting"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import Inner as Inner\n")
    (package / "inner.py").write_text(
        "from adapters.causal_lm import CausalLM\n\nclass Inner(CausalLM):\n    name = 'inner'\n    version = '3'\n"
    )
    metadata = tmp_path / "reexporting-0.7.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: reexporting\nVersion: 0.7\n")
    (metadata / "entry_points.txt").write_text(
        "[tallystick.adapters]\ninner = reexporting:Inner\nlong = reexporting:Inner\ngone = reexporting:Absent\n"
        "needy = needing:Any\nmissing = no_such_package:Any\n"
    )
    (tmp_path / "needing.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("reexporting", "reexporting.inner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        del sys.modules[name]
    return package


def test_the_distribution_and_the_files_of_a_class_that_is_exported_again_are_recorded(reexported: Path) -> None:
    plan: Any = None
    inner = load_adapter("inner")
    found = adapter_identity(plan, inner)
    assert found is not None
    assert (found.name, found.version, found.distribution) == ("inner", "3", "reexporting 0.7")
    assert found.files_digest is not None
    assert found.files_digest.observed
    (reexported / "inner.py").write_text((reexported / "inner.py").read_text() + "# one byte more\n")
    changed = adapter_identity(plan, inner)
    assert changed is not None
    assert changed.files_digest != found.files_digest
    ours = adapter_identity(plan, CausalLM)
    assert ours is not None
    assert ours.files_digest is None, "software.files_digest covers it"


def test_an_adapter_of_no_file_has_no_digest_and_says_so(breaking: EntryPoint) -> None:
    plan: Any = None
    offered = breaking.load()
    offered.__module__ = "a_breaking"
    found = adapter_identity(plan, offered)
    assert found is not None
    assert found.distribution is None
    assert found.files_digest is not None
    assert "has no file" in str(found.files_digest.detail)


def test_what_is_wrong_with_an_offered_class_is_said_when_it_is_loaded(
    reexported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TallyError, match="adapter 'long' calls itself 'inner'"):
        load_adapter("long")
    for name, hint in (
        ("gone", "mend or reinstall the package that offers reexporting:Absent"),
        ("needy", "the package that offers needing:Any needs no_such_thing: install it"),
        ("missing", "mend or reinstall the package that offers no_such_package:Any"),
    ):
        with pytest.raises(TallyError, match="cannot be imported") as raised:
            load_adapter(name)
        assert raised.value.hint == hint
    monkeypatch.setitem(sys.modules, "transformers", None)
    (reexported.parent / "needing.py").write_text("import transformers\n")
    monkeypatch.delitem(sys.modules, "needing", raising=False)
    with pytest.raises(TallyError) as raised:
        load_adapter("needy")
    assert raised.value.hint == install("realize")
    inner = load_adapter("inner")
    monkeypatch.setattr(inner, "decode", None)
    monkeypatch.delattr(inner, "decode")
    load_adapter("inner")  # inherited
    monkeypatch.setattr(inner, "version", 1)
    with pytest.raises(AdapterFault, match="`version` is int 1"):
        load_adapter("inner")
