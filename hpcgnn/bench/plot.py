"""Charts of predictions of the cost model: seconds of a step, speed-up, and shares of a step, by number of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.report import svg
from hpcgnn.report.page import write_charts


def plot(report: dict, path: Path) -> None:
    """Write a page of charts of a report of ``hpcgnn bench scale``. Raises ValueError where ``path`` is no name of a
    page."""
    points = report["points"]
    counted = max((p["ranks"] for p in points if p["counted"]), default=0)
    far = f"; beyond {counted} ranks extrapolated" if counted < points[-1]["ranks"] else ""
    text = f"batch {report['batch_size']}, predicted by the cost model{far}"
    write_charts(path, report["data"], text, {
        "Seconds per step": svg.lines(_seconds(points), "seconds per step", "ranks", log=True),
        f"Speed-up over {base(report)}": svg.lines(_speedup(points), "speed-up", "ranks", log=True),
        "Shares of a step": svg.stacked_bars(_shares(points), "shares", "ranks", [str(p["ranks"]) for p in points]),
    })  # fmt: skip


def _seconds(points: list[dict]) -> dict[str, svg.Points]:
    """Curves of a step, and of its execution and planning, which run beside each other."""
    curves = {
        "step": [(p["ranks"], p["step_seconds"]) for p in points],
        "execution": [(p["ranks"], sum(p["seconds"].values())) for p in points],
        "planning": [(p["ranks"], sum(p["plan_seconds"].values())) for p in points],
    }
    return {name: [point for point in curve if point[1] > 0] for name, curve in curves.items()}


def _speedup(points: list[dict]) -> dict[str, svg.Points]:
    first = points[0]["ranks"]
    return {
        "predicted": [(p["ranks"], p["speedup"]) for p in points],
        "ideal": [(p["ranks"], p["ranks"] / first) for p in points],
    }


def _shares(points: list[dict]) -> dict[str, np.ndarray]:
    """Shares [points] of the stages of execution, by name."""
    totals = np.array([sum(p["seconds"].values()) for p in points])
    names = dict.fromkeys(name for p in points for name in p["seconds"])
    return {name: np.array([p["seconds"].get(name, 0.0) for p in points]) / totals for name in names}


def base(report: dict) -> str:
    """Return in words the number of ranks that speed-ups are relative to: of a graph that is made up, one rank is not
    simulated."""
    ranks = report["points"][0]["ranks"]
    return "one rank" if ranks == 1 else f"{ranks} ranks"
