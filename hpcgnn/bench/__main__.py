"""``hpcgnn bench [COMMAND] ...``: time training, sampling and kernels here, or predict them by a cost model."""

from __future__ import annotations

import sys

from hpcgnn.bench import accuracy, epoch, gpu, memory, neighbors, sage, scale, scores, snapshots
from hpcgnn.comm.world import World
from hpcgnn.loop import launch

COMMANDS = {
    "epoch": (epoch.main, "an epoch on a temporal graph, stage by stage; also without a command"),
    "sage": (sage.main, "steps of mini-batches on a static graph"),
    "snapshots": (snapshots.main, "an epoch on a snapshot graph"),
    "sample": (neighbors.main, "drawing of neighbors alone, on a random graph"),
    "scores": (scores.main, "metrics of many scores, over ranks"),
    "accuracy": (accuracy.main, "rows of the accuracy table: public data from download to result"),
    "gpu": (gpu.main, "kernels and exchanges of a GPU"),
    "scale": (scale.main, "prediction of steps on numbers of ranks, and of graphs, that you do not have"),
    "memory": (memory.main, "prediction of the memory of a rank among many"),
}


def main(world: World, argv: list[str]) -> int:
    """Collective. Run the command that the first word names; returns its exit code."""
    if argv[:1] in (["-h"], ["--help"]):
        launch.on_first_rank(world, "command line", lambda: print(usage()))
        return launch.EXIT_DONE
    named = bool(argv) and argv[0] in COMMANDS
    command, _ = COMMANDS[argv[0] if named else "epoch"]
    return command(world, argv[1:] if named else argv)


def usage() -> str:
    """Write the help: a line for each command."""
    lines = [f"  {name:11}{text}" for name, (_, text) in COMMANDS.items()]
    head = ["usage: hpcgnn bench [COMMAND] [OPTION ...]", "", __doc__.partition(": ")[2].capitalize(), ""]
    return "\n".join([*head, *lines, "", "hpcgnn bench COMMAND --help lists the options of a command."])


if __name__ == "__main__":
    sys.exit(launch.run(main))
