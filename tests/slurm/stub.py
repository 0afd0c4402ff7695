"""A stand-in for the trainer with its contract for job scripts.

    mpirun -np 2 python stub.py --output.dir DIR [--steps N]
    mpirun -np 2 python stub.py --resume DIR

Counts steps into DIR/metrics.jsonl. SIGUSR1 or SIGTERM: checkpoint, exit code 75; not in the first ``--deaf`` seconds.
``--lost``: ends with 0 before the end, as a launcher that has lost a node.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

EXIT_REQUEUE = 75
SECONDS_PER_STEP = 0.1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output.dir", dest="dir", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--deaf", type=float, default=0.0)
    parser.add_argument("--lost", action="store_true")
    return parser.parse_args()


def save(folder: Path, step: int, steps: int):
    """Write the checkpoint as the trainer does: the manifest last, by renaming it."""
    target = folder / "checkpoints" / f"step-{step}" / "manifest.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps({"step": step, "steps": steps}))
    os.replace(temporary, target)


def load(folder: Path) -> tuple[int, int]:
    states = [json.loads(path.read_text()) for path in folder.glob("checkpoints/*/manifest.json")]
    newest = max(states, key=lambda state: state["step"])
    return newest["step"], newest["steps"]


def main() -> int:
    arguments = parse()
    comm = MPI.COMM_WORLD
    folder = arguments.resume or arguments.dir
    if arguments.deaf:
        print("deaf", flush=True)
        time.sleep(arguments.deaf)
    asked = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, frame: asked.append(number))
    first, steps = load(folder) if arguments.resume else (0, arguments.steps)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"rank {comm.rank} of {comm.size} starts at step {first}", flush=True)
    for step in range(first, steps):
        time.sleep(SECONDS_PER_STEP)
        if comm.rank == 0:
            with open(folder / "metrics.jsonl", "a") as metrics:
                metrics.write(json.dumps({"epoch": 0, "step": step}) + "\n")
        if comm.allreduce(len(asked), MPI.MAX):
            if comm.rank == 0:
                save(folder, step + 1, steps)
            comm.Barrier()
            return EXIT_REQUEUE
    if not arguments.lost:
        (folder / "finished").touch()
    return 0


if __name__ == "__main__":
    code = main()
    if code == EXIT_REQUEUE:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # comes from the launcher once another rank has left
    sys.exit(code)
