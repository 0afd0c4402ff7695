"""``python -m hpcgnn.bench [epoch | scale | memory | sample | sage | snapshots | scores | gpu] ...``; else: epoch."""

from __future__ import annotations

import sys

from hpcgnn.bench import epoch, gpu, memory, neighbors, sage, scale, scores, snapshots
from hpcgnn.comm.world import World
from hpcgnn.loop import launch

COMMANDS = {"epoch": epoch.main, "scale": scale.main, "memory": memory.main, "sample": neighbors.main,
            "sage": sage.main, "snapshots": snapshots.main, "scores": scores.main, "gpu": gpu.main}  # fmt: skip


def main(world: World, argv: list[str]) -> int:
    """Collective. Run the command that the first word names; returns its exit code."""
    named = bool(argv) and argv[0] in COMMANDS
    return COMMANDS[argv[0] if named else "epoch"](world, argv[1:] if named else argv)


if __name__ == "__main__":
    sys.exit(launch.run(main))
