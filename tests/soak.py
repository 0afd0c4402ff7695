"""The fault table: `python tests/soak.py --minutes 60`; exit code 1 where a row is missed.

Faults in real jobs on a graph of 700 events, a thousand-epoch run and a hundred kills; a Markdown table on stdout.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.extend([str(Path(__file__).resolve().parent / folder) for folder in ("helpers", "loop")])

from faults.endurance import endures
from faults.job import Miss
from faults.kills import kills
from faults.kinds import COMMON, LONG, kind_rows
from faults.lab import Lab
from faults.machine import Missing
from faults.rows import Row, all_rows
from faults.tools import tool_rows

DETAIL = 160  # characters


@dataclass
class Outcome:
    """A row of the table. verdict: "as expected", "MISSED", "not here" or "no time left"."""

    name: str
    verdict: str
    seconds: float
    detail: str


def main() -> int:
    options = parse()
    deadline = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="hpcgnn-soak-") as root:
        lab = Lab(Path(root), options.epochs, options.watchdog)
        reference = lab.reference()
        rows = chosen(options, deadline)
        with ThreadPoolExecutor(options.lanes) as pool:
            running = [pool.submit(outcome, name, row, lab, reference, deadline) for name, row in rows.items()]
            outcomes = [one.result() for one in running]
    print(table(outcomes))
    return int(any(one.verdict in ("MISSED", "no time left") for one in outcomes))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="rows that would begin later are missed")
    parser.add_argument("--rows", default="", help="only rows whose names contain one of these, apart by commas")
    parser.add_argument("--kills", type=int, default=100, help="kills at random moments")
    parser.add_argument("--epochs", type=int, default=8, help="of the runs that meet faults")
    parser.add_argument("--long", type=int, default=2000, help="epochs of the long run")
    parser.add_argument("--lanes", type=int, default=2, help="rows at a time")
    parser.add_argument("--watchdog", type=float, default=60, help="comm.watchdog_seconds of jobs that hang")
    return parser.parse_args()


def chosen(options: argparse.Namespace, deadline: float) -> dict[str, Row]:
    """The rows to run, the longest first."""
    each = -(-options.kills // options.lanes)
    runs = {"": (), **{f", {kind}": (*first, *COMMON) for kind, first in LONG.items()}}
    long = {
        f"{options.long} epochs on 4 ranks{kind}": endures(options.long, deadline, first)
        for kind, first in runs.items()
        if options.long
    }
    killed = {
        f"{each} kills at random moments ({lane + 1})": kills(each, lane, deadline) for lane in range(options.lanes)
    }
    rows = long | (killed if options.kills else {}) | all_rows(socket.gethostname()) | kind_rows() | tool_rows()
    return {name: row for name, row in rows.items() if any(words in name for words in options.rows.split(","))}


def outcome(name: str, row: Row, lab: Lab, reference: list[dict], deadline: float) -> Outcome:
    """How a row ended; said on stderr."""
    began = time.monotonic()
    folder = lab.root / "".join(letter if letter.isalnum() else "-" for letter in name)
    if began > deadline:
        found = Outcome(name, "no time left", 0.0, "")
    else:
        try:
            found = Outcome(name, "as expected", 0.0, row(lab, folder, reference))
        except Missing as error:
            found = Outcome(name, "not here", 0.0, str(error))
        except Miss as error:
            print(f"--- {name}\n{error}", file=sys.stderr)
            found = Outcome(name, "MISSED", 0.0, str(error).partition("\n")[0])
    found.seconds = time.monotonic() - began
    print(f"{found.seconds:6.0f} s  {found.verdict:12s} {name}: {found.detail[:DETAIL]}", file=sys.stderr, flush=True)
    return found


def table(outcomes: list[Outcome]) -> str:
    """Markdown."""
    lines = ["| what happens | outcome | seconds | what is said |", "|---|---|---|---|"]
    for one in outcomes:
        detail = one.detail[:DETAIL].replace("|", "\\|")
        lines.append(f"| {one.name} | {one.verdict} | {one.seconds:.0f} | {detail} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
