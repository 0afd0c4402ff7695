"""Commands that say nothing any more are ended, with all that they started; others are not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from places import TESTS

pytestmark = pytest.mark.serial
PROGRAM = TESTS / "idle_timeout.py"
LIMIT = 4.0  # seconds


def start(script: str, *arguments, minutes: float = LIMIT / 60) -> subprocess.Popen:
    command = [sys.executable, PROGRAM, "--minutes", str(minutes), "--", "bash", "-c", script, "bash", *arguments]
    # What runs in the background of a script was told to ignore SIGINT, and would tell its children.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_silent_command_is_ended():
    begin = time.monotonic()
    code, out, err = finish(start("echo first; sleep 1000"))
    assert (code, out) == (124, "first\n")
    assert "no output for" in err
    assert LIMIT <= time.monotonic() - begin < 60


@pytest.mark.long
def test_a_command_that_talks_is_not_however_long_it_takes():
    """On either of its outputs."""
    begin, limit = time.monotonic(), 7.0
    code, out, err = finish(start("for i in 1 2 3 4 5; do echo $i; sleep 2; echo $i >&2; done", minutes=limit / 60))
    assert (code, out, err) == (0, "1\n2\n3\n4\n5\n", "1\n2\n3\n4\n5\n")
    assert time.monotonic() - begin > 1.4 * limit


def test_output_comes_at_once():
    process = start("echo now; sleep 30", minutes=10)
    begin = time.monotonic()
    assert process.stdout.readline() == "now\n"
    assert time.monotonic() - begin < 20
    process.terminate()
    process.communicate(timeout=60)


@pytest.mark.parametrize(("script", "expected"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_exit_codes(script, expected):
    assert finish(start(f"echo long; {script}"))[0] == expected


def test_all_of_a_large_output_arrives():
    """What a command says last, and without a line's end."""
    code, out, _ = finish(start("printf %60000d 0"))
    assert (code, len(out)) == (0, 60_000)


@pytest.mark.long
def test_what_a_command_started_is_ended(tmp_path):
    """What takes no SIGTERM and what has a session of its own, too."""
    script = (
        'setsid bash -c \'trap "" TERM; echo $$ >"$0/deaf"; while :; do sleep 1; done\' "$1" & '
        'sleep 1000 & echo $! >"$1/child"; wait'
    )
    assert finish(start(script, tmp_path))[0] == 124
    pids = [int((tmp_path / name).read_text()) for name in ("deaf", "child")]
    deadline = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(number):
    process = start("trap 'echo heard; exit 5' TERM INT; echo ready; while :; do sleep 0.1 & wait $!; done", minutes=10)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert finish(process)[:2] == (5, "heard\n")
