"""A baseline in the place of a model: the same batches, negatives and metrics, and nothing to train."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.loop.launch import EXIT_DONE
from hpcgnn.loop.logs import MetricsFile, RunLog
from hpcgnn.loop.session import Session, split_metrics
from hpcgnn.loop.trainer import headline
from hpcgnn.temporal.config import BaselineConfig
from hpcgnn.temporal.edgebank import EdgeBank


def run_baseline(session: Session, folder: Path, log: RunLog) -> int:
    """Collective. Validation and test as one line of kind "test" in metrics.jsonl; returns the exit code."""
    config = session.config.baseline
    values = baseline_metrics(session, config)
    with together(session.world, "write metrics.jsonl"):
        if session.world.rank == 0:
            metrics = MetricsFile(folder / "metrics.jsonl")
            metrics.write("test", baseline=config.kind, **values)
            metrics.position()
    log(f"EdgeBank, {config.kind}: {headline('test', values)}")
    return EXIT_DONE


def baseline_metrics(session: Session, config: BaselineConfig) -> dict[str, float]:
    """Collective. Metrics of validation and test, named as a model's."""
    with together(session.world, "baseline"):
        bank = EdgeBank(
            config.kind,
            session.partition,
            session.graph.splits,
            session.world,
            session.graph.channel,
            config.share or None,
        )
    values: dict[str, float] = {}
    for split in ("val", "test"):
        values |= {f"{split}_{name}": value for name, value in _split_metrics(session, bank, split).items()}
    return values


def _split_metrics(session: Session, bank: EdgeBank, split: str) -> dict[str, float]:
    collected = session.goal.collector()
    for step in range(session.batches[split].num_steps):
        session.watchdog.at(split, step)
        positive, negative = _score(session, bank, split, step)
        collected.take({"positive": positive, "negative": negative})
    return split_metrics(session, split, collected)


def _score(session: Session, bank: EdgeBank, split: str, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Collective. Scores of a step's events [b] and of all their negatives [b, k], a few columns at a time."""
    batches, negatives, chunk = session.batches[split], session.loaders[split].negatives(0), session.config.eval.chunk
    pieces = range(0, max(1, negatives.per_event), chunk)
    scores = [bank.score(batches, step, negatives, slice(first, first + chunk)) for first in pieces]
    return scores[0][0], np.concatenate([others for _, others in scores], axis=1)
