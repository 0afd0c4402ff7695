"""Commands show that they work: on a terminal in one line that goes, in a log line by line, of one rank only."""

from __future__ import annotations

import io
import re
import time

import pytest

from data_tools import progress
from data_tools.progress import ERASE, ProgressLine
from hpcgnn.comm.launch import LAUNCHER_RANKS

pytestmark = pytest.mark.serial
LINE = r"\d+ s, [\d,]+ MiB read, [\d,]+ MiB written"


class Terminal(io.StringIO):
    """A stream that people see."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(progress, "LINE_SECONDS", {True: 0.02, False: 0.02})
    for variable in LAUNCHER_RANKS:
        monkeypatch.delenv(variable, raising=False)


def works(stream, seconds: float = 0.4) -> str:
    """What a command shows that works for some time and prints a line."""
    with ProgressLine(stream):
        time.sleep(seconds)
        print("done")
    return stream.getvalue()


def test_a_line_on_a_terminal_is_drawn_over_and_goes(fast, capsys):
    shown = works(Terminal())
    first, *frames = shown.split(ERASE)
    assert first == frames[-1] == ""
    drawn = [frame for frame in frames if frame]  # one that came after the printed line is erased before the next
    assert len(drawn) > 3
    assert all(re.fullmatch(LINE, frame) for frame in drawn)
    assert capsys.readouterr().out == "done\n"


def test_a_short_command_shows_nothing(capsys):
    assert works(Terminal(), seconds=0) == ""


def test_lines_in_a_log(fast):
    lines = works(io.StringIO()).splitlines()
    assert lines
    assert all(re.fullmatch(LINE, line) for line in lines)


def test_the_first_of_several_ranks_shows_it(fast, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    assert works(Terminal()) == ""
    monkeypatch.setenv("PMI_RANK", "0")
    assert works(Terminal())


def test_no_line_is_drawn_within_a_printed_one(fast, monkeypatch):
    """Standard output that is slow, and the terminal of both."""
    terminal = Terminal()

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            for character in text:
                terminal.write(character)
                time.sleep(0.05)
            return len(text)

    monkeypatch.setattr("sys.stdout", Slow())
    with ProgressLine(terminal):
        time.sleep(0.2)
        print("whole", end="")
    assert "whole" in terminal.getvalue()
