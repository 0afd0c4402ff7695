"""Draw a partition set: sizes of parts, balance, the cut matrix and the halos. Needs matplotlib (extra ``plot``)."""

from __future__ import annotations

import pathlib

import numpy as np

from data_tools.graph.book import open_book
from data_tools.partition.traffic import Traffic, read_traffic
from data_tools.reports import Report, describe_set


def plot_set(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Write the picture, of the kind that the suffix of ``out`` names. ValueError without matplotlib."""
    try:
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    report, traffic = describe_set(folder), read_traffic(open_book(folder))
    figure = Figure(figsize=(12, 9), layout="constrained")
    axes = figure.subplots(2, 2)
    cut = report["quality"].get("cut_fraction", 0.0)
    figure.suptitle(f"{folder.name}: {report['num_parts']} parts by {report.get('method')}, {cut:.1%} of the edges cut")
    draw_sizes(axes[0, 0], report)
    draw_balance(axes[0, 1], report["quality"])
    draw_cut(axes[1, 0], figure, traffic, LogNorm)
    draw_halos(axes[1, 1], traffic, report)
    figure.savefig(out, dpi=110)


def draw_sizes(axes, report: Report) -> None:
    """Draw the nodes and edges of every part, over the mean."""
    parts = np.arange(report["num_parts"])
    for place, kind in ((-0.2, "nodes"), (0.2, "edges")):
        sizes = np.array([part.get(kind, 0) for part in report["parts"]], float)
        axes.bar(parts + place, sizes / max(1.0, sizes.mean()), 0.4, label=f"{kind}, mean {sizes.mean():,.0f}")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(title="Sizes of the parts", xlabel="part", ylabel="size / mean")
    axes.margins(y=0.2)
    axes.legend(loc="upper right", ncols=2)


def draw_balance(axes, quality: Report) -> None:
    """Draw the heaviest part or rank over the mean, by constraint and number of ranks."""
    rows = [run for run in quality.get("runs", []) if 1 < run["ranks"] < quality["ranks"]] + [quality]
    names = {name: kind for kind in ("balance", "further") for name in quality.get(kind, {})}
    for name, kind in names.items():
        style = "-" if kind == "balance" else ":"
        values = [row[kind][name] for row in rows]
        label = name if kind == "balance" else f"{name} (not asked for)"
        axes.plot([row["ranks"] for row in rows], values, style, marker="o", markersize=4, label=label)
    axes.axhline(1.05, color="black", linewidth=0.8, linestyle="--")
    axes.set(title="Balance: heaviest rank / mean", xlabel="ranks", xscale="log")
    ticks = [row["ranks"] for row in rows]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    if names:
        axes.legend()


def draw_cut(axes, figure, traffic: Traffic, scale) -> None:
    """Draw the edges from part to part, none where it is white; edges inside a part are left out."""
    between = traffic.edges.astype(float)
    np.fill_diagonal(between, 0)
    between[between == 0] = np.nan
    norm = scale(vmin=1, vmax=max(2.0, np.nanmax(between, initial=1)))
    image = axes.imshow(between, cmap="viridis", interpolation="nearest", norm=norm)
    figure.colorbar(image, ax=axes, label="edges")
    axes.set(title="Edges between parts", xlabel="part of dst", ylabel="part of src")


def draw_halos(axes, traffic: Traffic, report: Report) -> None:
    """Draw the nodes of other parts that each part's edges need, over its own nodes."""
    own = np.array([max(1, part.get("nodes", 0)) for part in report["parts"]], float)
    halo = traffic.halo.sum(axis=1)
    axes.bar(np.arange(len(halo)), halo / own, color="tab:green")
    axes.set(title=f"Halos: {halo.sum():,} nodes in all", xlabel="part", ylabel="nodes of other parts / own nodes")
