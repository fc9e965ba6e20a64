"""Text from outside is shown inert; sizes and times are for people on terminals only; JSON stays JSON."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.measurement import claimed, measured, unavailable
from realizer.cli import rendering

HOSTILE = {
    "\x1b[31mred\x1b[0m": "\\x1b[31mred\\x1b[0m",
    "\x9b31m": "\\x9b31m",
    "bell\x07": "bell\\x07",
    "over\rwritten": "over\\rwritten",
    "two\nlines\tand a tab": "two\\nlines\\tand a tab",
    "\u202eexe.txt": "\\u202eexe.txt",
    "a\u2066b\u2069": "a\\u2066b\\u2069",
    "zero\u200bwidth": "zero\\u200bwidth",
    "line\u2028end": "line\\u2028end",
    "\ud800": "\\ud800",
    "\U000e0041": "\\U000e0041",
    "del\x7f": "del\\x7f",
}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


ShowOn = Callable[[io.StringIO], io.StringIO]


@pytest.fixture
def show_on(monkeypatch: pytest.MonkeyPatch) -> ShowOn:
    """Make a stream standard output (within the test: pytest sets its own between the phases)."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "500")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def choose(stream: io.StringIO) -> io.StringIO:
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    return choose


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_acting_characters_are_spelt_out(text: str, shown: str) -> None:
    assert rendering.inert(text) == shown


@pytest.mark.parametrize("text", ["plain", "Größe", "日本語", "naïve café", "שלום", "🙂"])
def test_letters_of_every_script_stay(text: str) -> None:
    assert rendering.inert(text) == text


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_nothing_that_acts_remains(text: str) -> None:
    shown = rendering.inert(text)
    assert not [c for c in shown if unicodedata.category(c) in rendering.ACTING_CATEGORIES]
    assert rendering.inert(shown) == shown


@given(st.dictionaries(st.text(), st.text()))
def test_json_made_inert_is_the_same_value(value: dict[str, str]) -> None:
    text = rendering.inert_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(text) == value
    assert not [c for c in text if c != "\n" and unicodedata.category(c) in rendering.ACTING_CATEGORIES]


def test_tables_and_lines_show_hostile_text_inert(show_on: ShowOn) -> None:
    terminal = show_on(Terminal())
    rendering.show(rendering.table(("[bold]name",), [["\x1b]0;title\x07[red]x[/red]"]]), rendering.joined("\x1b[2J"))
    printed = terminal.getvalue()
    assert "\x1b]" not in printed
    assert "\x1b[2J" not in printed
    assert "\\x1b]0;title\\x07[red]x[/red]" in printed
    assert "[bold]name" in printed


def test_envelopes_keep_their_bytes_in_a_pipe_and_are_inert_on_a_terminal(
    show_on: ShowOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = show_on(Terminal())
    envelope = '{"a":"\u202ex"}'
    rendering.emit_json_line(envelope)
    assert terminal.getvalue() == '{"a":"\\u202ex"}\n'
    pipe = show_on(io.StringIO())
    rendering.emit_json_line(envelope)
    assert pipe.getvalue() == envelope + "\n"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (269_060_552, "256.6 MiB"),
        (8_636_596_224, "8.04 GiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_sizes_have_units_on_a_terminal_only(
    count: int, shown: str, show_on: ShowOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_on(Terminal())
    assert rendering.size(count) == shown
    show_on(io.StringIO())
    assert rendering.size(count) == str(count)


def test_what_is_not_known_is_never_shown_as_a_number(show_on: ShowOn) -> None:
    show_on(Terminal())
    assert rendering.measured(unavailable("bytes", "smaps", "not readable")) == "unavailable"
    assert rendering.measured(measured(float("nan"), None, "max")) == "failed"
    assert rendering.measured(None) == "not recorded"
    assert rendering.measured(claimed(2048, "bytes", "adapter")) == "2.00 KiB"


def test_no_color_is_honoured(show_on: ShowOn, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show_on(Terminal())
    rendering.show(rendering.joined(("FAIL", "bold red")))
    assert "\x1b[" in terminal.getvalue()
    terminal.truncate(0)
    monkeypatch.setenv("NO_COLOR", "1")
    rendering.show(rendering.joined(("FAIL", "red")))
    assert "FAIL" in terminal.getvalue()
    assert "\x1b[31m" not in terminal.getvalue()


def test_a_pipe_gets_no_escapes_no_wrapping_and_no_trailing_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.delenv("COLUMNS", raising=False)
    rendering.show(rendering.table(("name", "value"), [["x" * 300, "y"], ["z", ""]]))
    lines = pipe.getvalue().splitlines()
    assert len(lines) == 3
    assert "x" * 300 in lines[1]
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)


def test_long_output_goes_through_the_pager_on_a_terminal(show_on: ShowOn, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show_on(Terminal())
    paged: list[str] = []
    monkeypatch.setattr("click.echo_via_pager", lambda text, color: paged.append(text))
    monkeypatch.setenv("LINES", "5")
    rendering.show(*[rendering.cell(str(n)) for n in range(10)])
    assert terminal.getvalue() == ""
    assert paged[0].split() == [str(n) for n in range(10)]
    rendering.show(rendering.cell("short"))
    assert "short" in terminal.getvalue()


def test_bars_are_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with rendering.progress_bar("verifying") as progress:
        assert progress is None
    with rendering.progress_bars() as advance:
        advance("loading", 1, 2)
        advance("still in use", 0, 0)
    assert capsys.readouterr().err == "still in use\n"
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    with rendering.progress_bars() as advance:
        advance("load\x1b[2Jing", 512, 1024)
    assert "load\\x1b[2Jing" in stream.getvalue()
