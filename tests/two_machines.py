"""Steps on two machines that a link of a known rate joins:

    python tests/two_machines.py --gigabits 0 10 1 -- ARGUMENTS...

The machines are network namespaces of this computer with two ranks each, which share memory within a machine alone; as
root, with Open MPI. ARGUMENTS are those of hpcgnn.bench sage, which is run once for each rate (0: as fast as it goes)
and once with all ranks on one machine. A Markdown table on stdout, all of a step and of one direction: seconds; bytes
of rows that a machine asks the other for; bytes of all exchanges by the run's count; bytes on the wire by the kernel's
(which has gradients and headers besides); how long these take at that rate; how much of that the step does not wait
for; and the step beside the longer of a step on the link as fast as it goes and of the transfer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from faults.machine import find_mpirun, two_machines

SLOTS = 2  # ranks of a machine
FLAGS = ["--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]
MPIRUN = [find_mpirun() or "mpirun", "-np", str(2 * SLOTS), *FLAGS]
HEAD = ("link", "step", "rows", "exchanges", "wire", "transfer", "hidden", "of the longer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabits", type=float, nargs="+", default=[0.0, 10.0, 1.0], help="a second, of the link")
    parser.add_argument("arguments", nargs="+", metavar="ARGUMENTS", help="of hpcgnn.bench sage, behind --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hpcgnn-two-machines-") as name:
        folder = Path(name)
        lines = [cells("one machine", measure(folder / "alone.json", options.arguments, MPIRUN))]
        with two_machines(folder / "machines") as machines:
            free = 0.0
            for rate in options.gigabits:
                machines.shape(rate)
                result = measure(folder / f"{rate}.json", options.arguments, machines.launcher(MPIRUN, SLOTS))
                free = free or result["step_seconds"]
                lines.append(cells(f"{rate:g} Gbit/s" if rate else "not shaped", result, rate, free))
    for line in (HEAD, ("---",) * len(HEAD), *lines):
        print(f"| {' | '.join(line)} |")


def measure(out: Path, arguments: list[str], launcher: list[str]) -> dict:
    """What the benchmark reports."""
    command = ["-m", "hpcgnn.bench", "sage", "--comm.threads=1", *arguments, f"--out={out}"]
    subprocess.run([*launcher, sys.executable, *command], check=True)
    return json.loads(out.read_text())


def cells(name: str, result: dict, rate: float = 0, free: float = 0) -> tuple[str, ...]:
    """A line of the table; free: seconds of a step on the link as fast as it goes."""
    rows, exchanges = (result[key] / 2 for key in ("row_bytes_expected", "bytes_between_machines"))
    counts = f"{rows:,.0f}", f"{exchanges:,.0f}", f"{result['wire_bytes']:,.0f}"
    step = result["step_seconds"]
    if not rate:
        return name, f"{step:.3f} s", *counts, "", "", ""
    transfer = 8 * result["wire_bytes"] / (rate * 1e9)
    hidden = f"{100 * (1 - (step - free) / transfer):.0f} %"
    return name, f"{step:.3f} s", *counts, f"{transfer:.3f} s", hidden, f"{step / max(free, transfer):.2f}"


if __name__ == "__main__":
    main()
