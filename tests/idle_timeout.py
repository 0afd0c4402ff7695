"""Runs a command and ends it once it has said nothing for some minutes, however long it takes in all:

    python tests/idle_timeout.py --minutes 10 -- COMMAND...

Output is passed on as it comes. The exit code is the command's, 128 + N after signal N, or 124 when it was ended; then
everything that the command has started is sent SIGTERM, and SIGKILL after ten seconds. Signals are passed on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

ENDED = 124
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def family(root: int) -> list[int]:
    """Ids of a process and of all that it or its children started, in whatever session or group."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:  # grows while it is walked
        found += children.get(pid, [])
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def send(pids: list[int], number: int) -> None:
    """Send a signal to those processes that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end(process: subprocess.Popen) -> None:
    """End a command and all that it has started."""
    pids = family(process.pid)
    send(pids, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and any(map(is_running, pids)):
        process.poll()
        time.sleep(0.1)
    send([pid for pid in pids if is_running(pid)], signal.SIGKILL)
    process.wait()


def copy(selector: selectors.BaseSelector, wait: float) -> bool:
    """Pass on what the pipes hold, waiting for it so many seconds; whether that was anything."""
    some = False
    for key, _ in selector.select(wait):
        content = os.read(key.fd, 1 << 12)
        if not content:
            selector.unregister(key.fileobj)
        with open(key.data, "wb", closefd=False) as out:
            out.write(content)
        some = some or bool(content)
    return some


def run(command: list[str], seconds: float) -> int:
    """Run a command to its end, or until it has said nothing for so many seconds; returns the exit code."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: os.killpg(process.pid, number))
    selector = selectors.PollSelector()
    selector.register(process.stdout, selectors.EVENT_READ, 1)
    selector.register(process.stderr, selectors.EVENT_READ, 2)
    last, ended = time.monotonic(), False
    while process.poll() is None:
        if copy(selector, 0.2):
            last = time.monotonic()
        elif time.monotonic() - last > seconds:
            print(f"no output for {seconds / 60:g} minutes: ending {' '.join(command)}", file=sys.stderr, flush=True)
            end(process)
            ended = True
    while copy(selector, 0):  # what it said last
        pass
    code = process.returncode
    return ENDED if ended else code if code >= 0 else 128 - code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    return run(options.command, 60 * options.minutes)


if __name__ == "__main__":
    sys.exit(main())
