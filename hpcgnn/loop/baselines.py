"""Runs a baseline in the place of a model, on graphs of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpcgnn.comm.together import together
from hpcgnn.loop.launch import EXIT_DONE, EXIT_REQUEUE, StopRequest
from hpcgnn.loop.logs import MetricsFile, RunLog
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Stopped, outcome


def run_baseline(
    session: Session, folder: Path, log: RunLog, stop: StopRequest, score: Callable[..., dict[str, float]]
) -> int:  # fmt: skip
    """Collective. Write the metrics of all scored splits as one line of kind "test" in metrics.jsonl; returns the
    exit code. A run that is asked to leave keeps nothing, and begins anew. score: makes the metrics of a session, the
    section ``baseline``, and a function (split, step) that it calls before every step."""
    config = session.config.baseline

    def at(split: str, step: int) -> None:
        session.watchdog.at(split, step)
        if session.world.any(stop.requested):
            raise Stopped

    try:
        values = score(session, config, at)
    except Stopped:
        log("stop requested: a baseline has no checkpoint; start it again")
        return EXIT_REQUEUE
    with together(session.world, "write metrics.jsonl"):
        if session.world.rank == 0:
            metrics = MetricsFile(folder / "metrics.jsonl")
            metrics.write("test", baseline=config.kind, **values)
            metrics.position()
    log(f"baseline {config.kind}: {outcome(values)}")
    return EXIT_DONE
