"""Draws predictions of the cost model: seconds of a step, speed-up, and shares of a step, by number of ranks."""

from __future__ import annotations

import numpy as np


def plot(report: dict, path: str) -> None:
    """Draw a report of ``hpcgnn.bench scale`` into a file, whose suffix says of what type."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    time, speed, parts = figure.subplots(1, 3)
    points = report["points"]
    ranks = np.array([p["ranks"] for p in points])
    _line(time, points, ranks, np.array([p["step_seconds"] for p in points]), "step")
    time.plot(ranks, [sum(p["seconds"].values()) for p in points], "--", lw=1, label="execution")
    time.plot(ranks, [sum(p["plan_seconds"].values()) for p in points], ":", lw=1, label="planning")
    time.set_ylabel("seconds per step")
    _line(speed, points, ranks, np.array([p["speedup"] for p in points]), "speed-up")
    speed.plot(ranks, ranks / ranks[0], "--", color="0.5", lw=1, label="ideal")
    speed.set_ylabel(f"speed-up over {base(report)}")
    _parts(parts, points)
    last = max((p["ranks"] for p in points if p["counted"]), default=0)
    for axes in (time, speed):
        _log_axes(axes, ranks, last)
    figure.suptitle(f"{report['data']}: batch {report['batch_size']}, predicted by the cost model")
    figure.savefig(path, dpi=120)


def base(report: dict) -> str:
    """Return in words the number of ranks that speed-ups are relative to: of a graph that is made up, one rank is not
    simulated."""
    ranks = report["points"][0]["ranks"]
    return "one rank" if ranks == 1 else f"{ranks} ranks"


def _log_axes(axes, ranks, last: int) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("ranks")
    axes.grid(alpha=0.3)
    if last < ranks[-1]:
        axes.axvspan(last, ranks[-1], color="0.9", zorder=0, label="extrapolated")
    axes.legend(fontsize=8)


def _line(axes, points, ranks, values, label: str) -> None:
    counted = np.array([p["counted"] for p in points])
    (line,) = axes.plot(ranks, values, label=label)
    axes.plot(ranks[counted], values[counted], "o", color=line.get_color(), label="counted")
    axes.plot(ranks[~counted], values[~counted], "o", mfc="white", color=line.get_color())


def _parts(axes, points) -> None:
    """Draw stacked shares of the stages of execution; extrapolated columns are hatched."""
    place, bottom = np.arange(len(points)), np.zeros(len(points))
    totals = np.array([sum(p["seconds"].values()) for p in points])
    hatch = ["" if p["counted"] else "//" for p in points]
    for name in dict.fromkeys(name for p in points for name in p["seconds"]):
        share = np.array([p["seconds"].get(name, 0.0) for p in points]) / totals
        axes.bar(place, share, bottom=bottom, label=name, hatch=hatch, edgecolor="white", linewidth=0)
        bottom += share
    axes.set_xticks(place, [str(p["ranks"]) for p in points], fontsize=7)
    axes.set_xlabel("ranks (hatched: extrapolated)")
    axes.set_ylabel("share of execution")
    axes.legend(fontsize=8, loc="upper left", framealpha=0.9)
