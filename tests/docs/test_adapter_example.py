"""The example of docs/adapters.md, installed and used as a stranger would; and two dishonest ones, which are found out."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledger.errors import TallyError

pytest.importorskip("torch")
pytest.importorskip("safetensors")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tally_adapter_example"

DISHONEST = '''
from tally_adapter_example import BagOfBytes

class Keeps(BagOfBytes):
    """Claims to have released the staging, and keeps a view into it."""
    name = "keeps"

    def release(self, materialization_id):
        self.kept = self._tensors[materialization_id]["embedding.weight"][:8]
        super().release(materialization_id)

class Copies(BagOfBytes):
    """Claims what it placed in the range, and keeps a copy of it in host memory besides."""
    name = "copies"

    def realize(self, materialization_id, memory, loader):
        claim = super().realize(materialization_id, memory, loader)
        if materialization_id == "mat.weights.resident":
            self.mirror = {name: tensor.clone() for name, tensor in self._tensors[materialization_id].items()}
        return claim

class Vague(BagOfBytes):
    """Gives back no claim at all."""
    name = "vague"

    def realize(self, materialization_id, memory, loader):
        super().realize(materialization_id, memory, loader)
'''

COMMANDS = """
import json, sys
from realizer.cli.main import run
for arguments in json.load(sys.stdin):
    sys.stdout.write(f"\\0{run(arguments)}\\0")
    sys.stdout.flush()
"""
"""One process for several commands: starting one takes longer than running it."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the path with the example as pip installs it, and the dishonest ones beside it as their metadata says."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*command, "site", "./source"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    site = folder / "site"
    (site / "dishonest.py").write_text(DISHONEST)
    metadata = site / "dishonest-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dishonest\nVersion: 1\n")
    names = "".join(f"{name.lower()} = dishonest:{name}\n" for name in ("Keeps", "Copies", "Vague"))
    names += "mlp = tests.docs.stateless:Mlp\n"
    (metadata / "entry_points.txt").write_text(f"[tallystick.adapters]\n{names}")
    return site


def environment(site: Path, folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(site), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "TALLY_STATE_DIR": str(folder / "state"), "OMP_NUM_THREADS": "1"}


def commands(site: Path, folder: Path, *lines: str) -> list[tuple[int, str]]:
    """Exit code and standard output of each command line."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps([line.split() for line in lines]),
        cwd=folder,
        env=environment(site, folder),
        capture_output=True,
        text=True,
        check=False,
    )
    parts = done.stdout.split("\0")
    assert (done.returncode, len(parts)) == (0, 2 * len(lines) + 1), done.stderr
    return [(int(parts[2 * at + 1]), parts[2 * at]) for at in range(len(lines))]


def test_a_strangers_adapter_is_found_and_passes_and_dishonest_ones_fail_by_code(
    installed: Path, tmp_path: Path
) -> None:
    sample = [sys.executable, "-m", "tally_adapter_example.sample", "bag"]
    subprocess.run(sample, cwd=tmp_path, env=environment(installed, tmp_path), check=True)
    bound = "--reference reference.safetensors"
    others = ("keeps", "copies", "vague")
    drafted, reference, frozen, honest, other, *made, keeps, copies, vague, log = commands(
        installed,
        tmp_path,
        "plan draft bag -o draft.json",
        "reference draft.json --prompt tally -o reference.safetensors",
        f"plan freeze draft.json {bound} -o plan.json",
        f"realize plan.json {bound} --json --verify-content --prompt tally",
        f"realize plan.json {bound} --json --adapter keeps",
        *(f"plan draft bag --adapter {name} -o {name}-draft.json" for name in others),
        *(f"plan freeze {name}-draft.json {bound} -o {name}.json" for name in others),
        *(f"realize {name}.json {bound} --json" for name in others),
        "log @latest --json",
    )
    assert (drafted[0], reference[0], frozen[0]) == (0, 0, 0)
    assert json.loads((tmp_path / "plan.json").read_bytes())["adapter"]["name"] == "bag_of_bytes"

    document = json.loads(honest[1])
    assert (honest[0], document["verdict"], document["assurance"]) == (0, "PASS", "content-verified"), document
    assert document["findings"] == []

    assert other[0] == 3
    assert json.loads(other[1])["outcome"] == "rejected"
    assert "plan.rejected" in errors(other[1])
    assert [code for code, _ in made] == [0] * 6

    assert keeps[0] == 3
    assert {"staging.owner-alive", "staging.bytes-after-nonzero"} <= errors(keeps[1])
    assert copies[0] == 3
    assert "memory.host-mirror" in errors(copies[1])

    assert vague[0] == 1
    assert json.loads(vague[1])["outcome"] == "failed"
    failed = [json.loads(line) for line in log[1].splitlines()]
    (said,) = [event["body"]["message"] for event in failed if event["type"] == "materialization.failed"]
    assert said.startswith("adapter 'vague': `realize` gave back None; expected a Claim")


def test_a_model_without_tokens_and_without_state_passes(installed: Path, tmp_path: Path) -> None:
    from tests.docs.stateless import write_checkpoint

    write_checkpoint(tmp_path / "mlp")
    drafted, reference, frozen, realized = commands(
        installed,
        tmp_path,
        "plan draft mlp -o draft.json",
        "reference draft.json --tokens 0,1,2 -o reference.safetensors",
        "plan freeze draft.json --reference reference.safetensors -o plan.json",
        "realize plan.json --reference reference.safetensors --verify-content --json",
    )
    assert (drafted[0], reference[0], frozen[0]) == (0, 0, 0)
    document = json.loads(realized[1])
    assert (document["verdict"], document["assurance"], document["findings"]) == ("PASS", "content-verified", [])
    assert realized[0] == 0
    assert json.loads((tmp_path / "plan.json").read_bytes())["authorities"] == []


@pytest.mark.parametrize(
    ("planned", "subjects"),
    [
        (["mat.weights.stage", "mat.weights.resident", "mat.bag", "mat.replay-baseline"], []),
        (["mat.weights.resident", "mat.weights.stage", "mat.bag", "mat.replay-baseline"], ["mat.weights.stage"]),
        (["mat.weights.stage", "mat.weights.resident", "mat.odd"], ["mat.odd", "mat.bag", "mat.replay-baseline"]),
    ],
)
def test_the_example_names_what_it_cannot_carry_out(
    planned: list[str], subjects: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    adapter = importlib.import_module("tally_adapter_example").BagOfBytes
    plan = SimpleNamespace(plan=SimpleNamespace(materializations=dict.fromkeys(planned)))
    made = adapter(plan, SimpleNamespace(config={"width": 4}))
    assert [subject for subject, _ in made.violations()] == subjects
    with pytest.raises(TallyError, match="not activated"):
        _ = made.model


def errors(document: str) -> set[str]:
    found: list[dict[str, Any]] = json.loads(document)["findings"]
    return {finding["code"] for finding in found if finding["severity"] == "error"}
