"""The command line as a whole: exit codes, one-line errors, what is imported, help and completion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from ledger import errors
from realizer.cli import main, reference_page
from realizer.cli.main import ALIASES, COMMANDS, run, tally
from realizer.cli.options import Name
from realizer.cli.values import Real, Whole, Words

TALLY = [sys.executable, "-m", "realizer.cli.main"]


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each command with its full name, groups and their members."""

    def walk(name: str, command: click.Command, parent: click.Context) -> Iterator[tuple[str, click.Command]]:
        yield name, command
        if isinstance(command, click.Group):
            context = click.Context(command, parent=parent, info_name=name)
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                assert found is not None, child
                yield from walk(f"{name} {child}", found, context)

    root = click.Context(tally, info_name="tally", **tally.context_settings)
    for name in COMMANDS:
        command = tally.get_command(root, name)
        assert command is not None, name
        yield from walk(name, command, root)


ALL = dict(every_command())


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    assert f"tally {name}" in shown


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_a_first_sentence_that_fits_the_list(name: str) -> None:
    assert not ALL[name].get_short_help_str(limit=64).endswith("...")


@pytest.mark.parametrize("name", [name for name, command in ALL.items() if not isinstance(command, click.Group)])
def test_every_command_speaks_json_and_documents_its_options(name: str) -> None:
    command = ALL[name]
    options = {option: p for p in command.params if isinstance(p, click.Option) for option in p.opts}
    assert "--json" in options
    assert all(isinstance(p, click.Option) and p.help for p in options.values())


NAMING = [
    (name, parameter.name or "")
    for name, command in ALL.items()
    for parameter in command.params
    if isinstance(parameter.type, Name)
]


@pytest.mark.parametrize(("name", "wanted"), NAMING)
def test_an_empty_name_is_a_usage_error_everywhere(
    name: str, wanted: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--key "$KEY"` with the variable unset must not pass for a command without a key."""
    monkeypatch.chdir(tmp_path)
    for empty in ("", "sqlite:///"):
        words: list[str] = []
        places: list[str] = []
        for parameter in ALL[name].params:
            value = empty if parameter.name == wanted else "1"
            if parameter.name != wanted and not parameter.required:
                continue
            if isinstance(parameter, click.Option):
                words += [parameter.opts[0], value]
            else:
                places.append(value)
        assert run([*name.split(), *words, "--", *places]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "it is empty" in shown.err
        assert list(tmp_path.iterdir()) == []


def test_every_text_and_number_is_held_to_what_json_can_hold() -> None:
    loose = (click.types.StringParamType, click.types.IntParamType, click.types.FloatParamType)
    kinds = {(name, p.name): p.type for name, command in ALL.items() for p in command.params}
    assert [where for where, kind in kinds.items() if type(kind) in (*loose, click.IntRange, click.FloatRange)] == []
    assert {Words, Real, Whole} <= {type(kind) for kind in kinds.values()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "draft", ".", "-o", "x", "--atol", "nan"], "no finite number"),
        (["plan", "draft", ".", "-o", "x", "--rtol", "inf"], "no finite number"),
        (["plan", "draft", ".", "-o", "x", "--repetitions", str(2**53)], "is more than 9007199254740991"),
        (["observe", "--pid", "1", "--follow", "--interval", "nan"], "no finite number"),
        (["query", "select 1", "--seconds", "nan"], "no finite number"),
        (["query", "select 1", "--seconds", "inf"], "no finite number"),
        (["watch", "--timeout", "nan"], "no finite number"),
        (["realize", "plan.json", "--challenge", "a\udcff"], "is not UTF-8 text"),
        (["realize", "plan.json", "--label", "a=\udcff"], "is not UTF-8 text"),
        (["supersede", "a", "--by", "b", "--reason", "\udcff"], "is not UTF-8 text"),
        (["plan", "freeze", "draft.json", "-o", "x", "--note", "\udcff"], "is not UTF-8 text"),
        (["log", "@latest", "--type", "nonsense"], "there are authority."),
        (["log", "@latest", "--type", ""], "is no event's type"),
    ],
)
def test_a_value_that_cannot_be_recorded_is_a_usage_error_and_nothing_is_begun(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("invariants >&-", 1, "tally: standard output is closed: give it a file, or /dev/null\n"),
        ("--version >&-", 1, "tally: standard output is closed: give it a file, or /dev/null\n"),
        ("verify - <&-", 1, "tally: evidence: standard input cannot be read: Bad file descriptor (is it closed?)\n"),
        ("query - <&-", 1, "tally: SQL: standard input cannot be read: Bad file descriptor (is it closed?)\n"),
        ("--version <&- >/dev/null", 0, ""),
        ("nonsense 2>&- <&-", 2, ""),
        (
            "realize plan.json --ledger new.db >&-",
            1,
            "tally: standard output is closed: give it a file, or /dev/null\n",
        ),
    ],
)
def test_a_standard_stream_that_came_closed_is_told_before_anything_is_done(
    line: str, code: int, said: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["/bin/bash", "-c", f"{' '.join(TALLY)} {line}"], cwd=tmp_path, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2])},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, said)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long_is_told_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "x" * 5000]) == 1
    shown = capsys.readouterr().err
    assert "File name too long" in shown
    assert len(shown) < 400


def test_files_and_runs_are_named_by_every_option_that_says_so() -> None:
    """Whatever is called a file, a folder, a plan or a run is checked for being named at all."""
    called = re.compile(r"(FILE|DIR|PLAN|PIN|RUN|OTHER|SRC|DST|DEST|URL\|PATH|NAME\.(pem|pub))")
    unchecked = [
        f"{name} {parameter.name}"
        for name, command in ALL.items()
        for parameter in command.params
        if called.fullmatch(parameter.metavar or (parameter.name or "").upper())
        and not isinstance(parameter.type, Name)
    ]
    assert unchecked == []
    assert len(NAMING) > 50


def test_the_command_reference_is_current() -> None:
    assert reference_page.PAGE.read_text(encoding="utf-8") == reference_page.page(), (
        "run `python -m realizer.cli.reference_page`"
    )


def test_the_exit_code_table_is_what_errors_carry() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.TallyError)]
    assert {c.exit_code for c in classes} <= set(reference_page.EXIT_CODES)
    assert main.INTERRUPTED in reference_page.EXIT_CODES


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_are_their_commands(alias: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([alias, "--help"]) == 0
    assert ALL[ALIASES[alias]].get_short_help_str()[:20] in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["runs", "--nonsense"], ["show"], ["supersede", "@latest"], ["plan", "nonsense"]]
)
def test_wrong_usage_exits_2_and_points_to_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--help" in captured.err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.PlanError("no plan", "draft one"), 1, "tally: no plan (draft one)"),
        (errors.LedgerBroken("forked"), 4, "tally: forked"),
        (errors.EvidenceBroken("torn\x1b[2J"), 4, "tally: torn\\x1b[2J"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            1,
            "tally: this needs torch, which is not installed "
            "(install the extra `realize`: pip install '.[realize]' in the source tree)",
        ),
        (KeyboardInterrupt(), 130, "tally: interrupted"),
        (click.Abort(), 130, "tally: interrupted"),
        (
            OSError(28, "No space left on device"),
            1,
            "tally: the operating system refused: No space left on device",
        ),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, error)
    assert run(["runs"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip().splitlines() == [line]


def test_errors_honour_no_color(tmp_path: Path) -> None:
    import pty

    def said(**more: str) -> bytes:
        reader, writer = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", **more}
        subprocess.run(
            [*TALLY, "runs", "--ledger", str(tmp_path / "no.db")], stderr=writer, env=environment, timeout=60
        )
        os.close(writer)
        data = os.read(reader, 10_000)
        os.close(reader)
        return data

    assert said(NO_COLOR="1").startswith(b"tally: no ledger")
    assert b"\x1b[31m" in said(NO_COLOR="")


@pytest.mark.parametrize("absent", ["torch", None])
def test_what_is_missing_is_called_by_what_the_extra_is_there_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], absent: str | None
) -> None:
    if absent is not None:
        monkeypatch.setitem(sys.modules, absent, None)
    elif find_spec("torch") is None:
        pytest.skip("torch is not installed")
    raising(monkeypatch, ModuleNotFoundError("No module named 'numpy'", name="numpy"))
    assert run(["runs"]) == 1
    assert capsys.readouterr().err.startswith(f"tally: this needs {absent or 'numpy'}, which is not installed (")


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def callback() -> None:
        raise error

    monkeypatch.setattr(tally, "get_command", lambda _ctx, _name: click.Command("runs", callback=callback))


def test_a_leaked_error_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, ZeroDivisionError("by zero"))
    monkeypatch.delenv("TALLY_DEBUG", raising=False)
    assert run(["runs"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "tally: internal error, ZeroDivisionError: by zero (TALLY_DEBUG=1 shows where; please report it)"
    ]
    monkeypatch.setenv("TALLY_DEBUG", "1")
    assert run(["runs"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_module_of_ours_that_is_missing_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, ModuleNotFoundError("No module named 'ledger.x'", name="ledger.x"))
    assert run(["runs"]) == 1
    assert "internal error" in capsys.readouterr().err


def test_a_rejected_plan_lists_every_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, errors.PlanRejected("rejected: 2 violations", ["plan.a x: y", "plan.b x: \x1b"], "fix it"))
    assert run(["runs"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "tally: rejected: 2 violations (fix it)",
        "  plan.a x: y",
        "  plan.b x: \\x1b",
    ]


def test_version_and_queries_import_neither_torch_nor_alembic(tmp_path: Path) -> None:
    program = """
import sys
from realizer.cli.main import run
codes = [run(arguments) for arguments in (["--version"], ["query", "select 1 as one"])]
print(codes, [name for name in ("torch", "alembic", "transformers") if name in sys.modules])
"""
    make_ledger(tmp_path / "tally.db")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout.splitlines()[-1] == "[0, 0] []", done.stdout + done.stderr


def test_version_imports_no_room_of_the_ledger() -> None:
    program = """
import sys
from realizer.cli.main import run
run(["--version"])
print(sorted(name for name in sys.modules if name.startswith("ledger.")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "['ledger.errors']", done.stdout + done.stderr


def make_ledger(path: Path) -> None:
    from ledger.store import Store

    with Store.open(path, write=True, create=True) as store:
        assert store.size() == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered_for_every_shell(shell: str) -> None:
    done = subprocess.run(
        TALLY, capture_output=True, text=True, env={**os.environ, "_TALLY_COMPLETE": f"{shell}_source"}, timeout=60
    )
    assert done.returncode == 0
    assert "_TALLY_COMPLETE" in done.stdout


def test_completion_offers_commands() -> None:
    environment = {**os.environ, "_TALLY_COMPLETE": "bash_complete", "COMP_WORDS": "tally re", "COMP_CWORD": "1"}
    done = subprocess.run(TALLY, capture_output=True, text=True, env=environment, timeout=60)
    assert {"plain,reference", "plain,realize", "plain,replay", "plain,reconcile"} <= set(done.stdout.split())


def test_bash_completes_commands_files_runs_and_names(tmp_path: Path) -> None:
    """In bash itself: the script that is to be evaluated is evaluated, and asked for a few words."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    tally_here = tmp_path / "bin" / "tally"
    tally_here.parent.mkdir()
    tally_here.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m realizer.cli.main "$@"\n')
    tally_here.chmod(0o755)
    script = """
eval "$(_TALLY_COMPLETE=bash_source tally)"
complete_words() {
    COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
    _tally_completion tally "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[@]}"
}
compopt() { COMPREPLY=("$@"); }  # what asks bash for its own completion, of files; it works at a prompt alone
complete_words tally inv
complete_words tally plan fr
complete_words tally query --named mem
complete_words tally invariants staging.not
complete_words tally realize my
complete_words tally verify --key my
complete_words tally show my
complete_words tally show @la
complete_words tally runs --led
"""
    environment = {
        **os.environ,
        "PATH": f"{tally_here.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(main.__file__).parents[2]),
        "TALLY_LEDGER": str(tmp_path / "tally.db"),
    }
    make_ledger(tmp_path / "tally.db")
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300, check=True
    )
    assert done.stdout.splitlines() == [
        "invariants",
        "freeze",
        "memory-over-time",
        "staging.not-released",
        "-o default",
        "-o default",
        "-o default",
        "@latest",
        "--ledger",
    ], done.stderr


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m realizer.cli.main invariants | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("0", "1")  # it may be through before the reader goes


def test_a_mistyped_command_is_told_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["realise", "plan.json"]) == 2
    assert "Did you mean 'realize'?" in capsys.readouterr().err
