"""Runs several commands in this one job, as starting each for itself takes longer: `mpirun -np 2 python
tests/run_commands.py COMMANDS`, a JSON file of lists such as ["train", "--train.epochs=1"]. Used by test_recipes.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hpcgnn import evaluate, predict, train
from hpcgnn.bench import __main__ as bench
from hpcgnn.run import launch

MAINS = {"train": train.main, "evaluate": evaluate.main, "predict": predict.main, "bench": bench.main}


def run(commands: list[list[str]]) -> int:
    """Collective. The exit code of the first command that fails, or 0."""
    for name, *arguments in commands:
        code = launch.run(MAINS[name], arguments)
        if code:
            print(f"{name} {' '.join(arguments)} ended with {code}", file=sys.stderr)
            return code
    return launch.EXIT_DONE


if __name__ == "__main__":
    sys.exit(run(json.loads(Path(sys.argv[1]).read_text())))
