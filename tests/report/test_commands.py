"""`tally report`, `trace` and `serve` as commands: what they write, what they refuse, and with which exit code."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.canonical import encode
from ledger.errors import install
from ledger.keys import generate
from realizer.cli.main import run
from tests.builders.runs import clean_bodies, small_plan
from tests.cli.seeding import FIRST, OTHER, SECOND, seed

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """`call("report", ...)` in a folder with a ledger of three runs: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TALLY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("TALLY_LEDGER", raising=False)
    plan = small_plan()
    bodies = clean_bodies(plan)
    seed(tmp_path / "tally.db", plan, (FIRST, bodies), (SECOND, bodies), (OTHER, bodies[:12]))

    def calling(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return calling


def test_report_writes_a_page_of_a_run(call: Call) -> None:
    code, out, err = call("report", FIRST, "-o", "r.html")
    assert (code, out) == (0, "")
    assert "r.html" in err
    html = Path("r.html").read_text("utf-8")
    assert FIRST in html
    assert "Merkle root" in html


def test_report_to_standard_output_is_the_page_alone(call: Call) -> None:
    code, out, err = call("report", FIRST, "-o", "-")
    assert code == 0
    assert out.startswith("<!doctype html>")
    assert out.rstrip().endswith("</html>")
    assert err == ""


def test_report_lays_two_runs_side_by_side(call: Call) -> None:
    assert call("report", FIRST, "--compare", OTHER, "-o", "r.html")[0] == 0
    html = Path("r.html").read_text("utf-8")
    assert "Two runs side by side" in html
    assert OTHER in html


def test_report_of_evidence_verifies_it(call: Call) -> None:
    generate(Path("k.pem"), None)
    generate(Path("other.pem"), None)
    assert call("export", FIRST, "--key", "k.pem", "-o", "e.json")[0] == 0
    assert call("report", "e.json", "-o", "plain.html")[0] == 0
    words = " ".join(Path("plain.html").read_text("utf-8").split())
    assert (
        "Evidence valid-unanchored. NOT AUTHENTICATED: no key was given, so nothing says who made this evidence. <a"
        in words
    )
    assert call("report", "e.json", "--key", "k.pub", "-o", "signed.html")[0] == 0
    signed = Path("signed.html").read_text("utf-8")
    assert "NOT AUTHENTICATED" not in signed
    assert "Evidence valid." in signed
    assert '<section class="verdict pass"' in signed
    code, _, err = call("report", "e.json", "--key", "other.pub", "-o", "foreign.html")
    assert code == 4
    assert "evidence 'e.json' is broken: signature: signed by key" in err
    assert "the page was written, and says so" in err
    foreign = Path("foreign.html").read_text("utf-8")
    assert "Evidence broken." in foreign
    assert f"<title>BROKEN: run {FIRST}</title>" in foreign
    assert "<h1>BROKEN · Run" in foreign
    assert '<section class="verdict broken"' in foreign
    assert "<strong>BROKEN</strong>" in foreign
    assert "<dd>claims PASS</dd>" in foreign
    assert "<strong>PASS</strong>" not in foreign


def altered(verdict: str) -> None:
    """e.json, with another verdict stated in altered.json: form, chain and proofs hold all the same."""
    envelope = json.loads(Path("e.json").read_bytes())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["verdict"] = verdict
    envelope["payload"] = base64.b64encode(encode(statement).encode("utf-8")).decode("ascii")
    Path("altered.json").write_text(encode(envelope) + "\n")


def test_a_page_of_altered_evidence_says_what_it_claims_and_what_its_events_say(call: Call) -> None:
    assert call("export", FIRST, "-o", "e.json")[0] == 0
    altered("FAIL")
    code, out, err = call("report", "altered.json", "-o", "r.html", "--json")
    assert code == 4
    assert json.loads(out)["file"] == "r.html"
    assert "judged again, verdict differs" in err
    html = Path("r.html").read_text("utf-8")
    assert "<dd>claims FAIL</dd>" in html
    assert "<dt>judged again</dt><dd>PASS</dd>" in html
    code, _, err = call("report", FIRST, "--compare", "altered.json", "-o", "two.html")
    assert (code, err.count("\n")) == (4, 1)
    assert not Path("two.html").exists()
    assert call("report", "altered.json", "--compare", FIRST, "-o", "two.html")[0] == 4
    two = Path("two.html").read_text("utf-8")
    assert (two.count("<strong>BROKEN</strong>"), two.count("<strong>PASS</strong>")) == (1, 1)


@pytest.mark.parametrize("name", ["compare", "show", "reconcile", "log", "replay", "weights", "trace"])
def test_no_command_takes_altered_evidence_for_good(call: Call, name: str) -> None:
    assert call("export", FIRST, "-o", "e.json")[0] == 0
    altered("FAIL")
    more = {"compare": [FIRST], "trace": ["-o", "t.json"]}.get(name, [])
    assert call(name, "e.json", *more)[0] == 0
    Path("t.json").unlink(missing_ok=True)
    code, out, err = call(name, "altered.json", *more)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert "evidence 'altered.json' is broken: judge: judged again, verdict differs" in err
    assert not Path("t.json").exists()
    if name == "compare":
        assert call(name, FIRST, "altered.json")[0] == 4


def test_broken_evidence_has_no_page(call: Call) -> None:
    Path("e.json").write_text('{"payload":""}')
    code, _, err = call("report", "e.json", "-o", "r.html")
    assert code == 4
    assert err.count("\n") == 1
    assert not Path("r.html").exists()


def test_a_key_is_for_evidence_only(call: Call) -> None:
    assert call("report", FIRST, "--key", "k.pub", "-o", "r.html")[0] == 2


def test_an_unknown_run_leaves_no_file(call: Call) -> None:
    code, _, err = call("report", "ffff", "-o", "r.html")
    assert code == 1
    assert "no run" in err
    assert not Path("r.html").exists()


@pytest.mark.parametrize("command", ["report", "trace"])
def test_json_tells_the_file_and_its_digest(call: Call, command: str) -> None:
    code, out, _ = call(command, FIRST, "-o", "written", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["format"] == "tally.written/1"
    assert document["size"] == Path("written").stat().st_size
    assert document["facts"] == {"run_id": FIRST}
    assert call(command, FIRST, "-o", "-", "--json")[0] == 2


def test_trace_is_json_and_the_same_from_evidence(call: Call) -> None:
    assert call("trace", FIRST, "-o", "t.json")[0] == 0
    assert call("export", FIRST, "-o", "e.json")[0] == 0
    assert call("trace", "e.json", "-o", "u.json")[0] == 0
    assert json.loads(Path("t.json").read_text()) == json.loads(Path("u.json").read_text())


def test_serve_refuses_what_it_cannot_serve(call: Call) -> None:
    pytest.importorskip("datasette", reason="Datasette is not installed (extra `serve`)")
    code, _, err = call("serve", "--ledger", "none.db")
    assert code == 1
    assert "no ledger" in err
    assert not Path("none.db").exists()
    code, _, err = call("serve", "--ledger", "postgresql+psycopg://user:secret@nowhere/db")
    assert code == 1
    assert "db copy" in err
    assert "secret" not in err


def test_serve_without_its_extra_says_which(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "datasette"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent("datasette"), *sys.meta_path])
    code, _, err = call("serve")
    assert code == 1
    assert err == f"tally: this needs datasette, which is not installed ({install('serve')})\n"


class Absent:
    """An import finder for which a package is not installed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
