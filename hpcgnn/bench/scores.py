"""Time exact average precision and ROC AUC of scores that are spread over ranks."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass

import numpy as np

from hpcgnn.bench import command
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.loop import launch
from hpcgnn.task.levels import ap_auc

PEER = "sklearn"


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Options of the command."""

    scores: int = 10_000_000
    seed: int = 0
    peer: str = "none"
    out: str = ""

    def __post_init__(self):
        if self.scores < 2:
            raise ValueError(f"--scores must be at least 2, got {self.scores}")
        if self.peer == PEER:
            command.check_installed(f"--peer {PEER}", "sklearn")


def main(world: World, argv: list[str]) -> int:
    """Collective. Measure, and compare on rank 0; returns the exit code."""
    options = launch.on_first_rank(world, "arguments", lambda: _parse(argv))
    result = measure(options, world)
    with together(world, "compare"):
        if world.rank == 0:
            result |= {"peer": compare(options, world.size)} if options.peer == PEER else {}
            command.report(result, table, options.out)
    world.barrier()
    return launch.EXIT_DONE


def _parse(argv: list[str]) -> ScoreOptions:
    parser = argparse.ArgumentParser("hpcgnn bench scores", description=__doc__)
    default = ScoreOptions()
    parser.add_argument(
        "--scores", type=int, default=default.scores,
        help="number of scores on all ranks, half of them of positives (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=default.seed, help="seed of the random scores (default: %(default)s)"
    )
    parser.add_argument(
        "--peer", choices=("none", PEER), default=default.peer,
        help="other package that computes the metrics on rank 0, too (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--out", default=default.out, help="JSON file to write the report to (default: none)")
    return ScoreOptions(**vars(parser.parse_args(argv)))


def draw(options: ScoreOptions, rank: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a rank's scores of positives and of negatives, float32, from normal distributions that overlap."""
    rng = np.random.default_rng([options.seed, rank])
    halves = options.scores // 2, options.scores - options.scores // 2
    counts = (np.diff(half * np.arange(rank, rank + 2) // ranks)[0] for half in halves)
    positive, negative = (rng.standard_normal(count, np.float32) for count in counts)
    return positive + 1, negative


def measure(options: ScoreOptions, world: World) -> dict:
    """Collective. Compute AP and AUC from the scores of all ranks. Returns both, the seconds and, by rank, the MiB of
    memory in addition to the scores."""
    positive, negative = draw(options, world.rank, world.size)
    world.barrier()
    before, start = command.peak_memory(world), time.perf_counter()
    ap, auc = ap_auc(positive, negative, world)
    seconds = time.perf_counter() - start
    grown = np.subtract(command.peak_memory(world), before).tolist()
    return {"options": asdict(options), "ranks": world.size, "ap": ap, "auc": auc, "seconds": seconds, "mib": grown}


def compare(options: ScoreOptions, ranks: int) -> dict:
    """Compute both by scikit-learn, from the scores of all ranks."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    drawn = [draw(options, rank, ranks) for rank in range(ranks)]
    scores = np.concatenate([np.concatenate(kind) for kind in zip(*drawn, strict=True)])
    labels = np.arange(len(scores)) < sum(len(positive) for positive, _ in drawn)
    start = time.perf_counter()
    ap, auc = float(average_precision_score(labels, scores)), float(roc_auc_score(labels, scores))
    return {"ap": ap, "auc": auc, "seconds": time.perf_counter() - start}


def table(result: dict) -> str:
    """Write the result as text."""
    lines = [
        f"{result['options']['scores']:,} scores on {result['ranks']} ranks",
        f"{'':<14} {'AP':>19} {'AUC':>19} {'seconds':>8}",
        f"{'hpcgnn':<14} {result['ap']:19.16f} {result['auc']:19.16f} {result['seconds']:8.2f}",
    ]
    if "peer" in result:
        peer = result["peer"]
        lines.append(f"{'scikit-learn':<14} {peer['ap']:19.16f} {peer['auc']:19.16f} {peer['seconds']:8.2f}")
    lines.append(f"memory of a rank beyond its scores: at most {max(result['mib']):,.0f} MiB")
    return "\n".join(lines)
