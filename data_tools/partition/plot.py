"""Charts of a partition set: sizes of parts, balance, edges between parts, remote nodes."""

from __future__ import annotations

import pathlib

import numpy as np

from data_tools.graph.book import open_book
from data_tools.partition.traffic import Traffic, read_traffic
from data_tools.reports import Report, describe_set
from hpcgnn.report import svg
from hpcgnn.report.page import check_page, write_charts


def plot_set(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Write a page of charts. Raises ValueError where ``out`` is no name of a page."""
    check_page(out)
    report, traffic = describe_set(folder), read_traffic(open_book(folder))
    cut = report["quality"].get("cut_fraction", 0.0)
    text = f"{report['num_parts']} parts by {report.get('method')}, {cut:.1%} of the edges cut"
    charts = {
        **{f"{kind.capitalize()} of the parts": sizes_chart(report, kind) for kind in ("nodes", "edges")},
        "Balance: heaviest rank / mean, by number of ranks": balance_chart(report["quality"]),
        "Edges between parts: row of the source, column of the destination": cut_chart(traffic),
        f"Remote nodes of the parts: {traffic.halo.sum():,} in all": halo_chart(traffic),
    }
    write_charts(out, folder.resolve().name, text, charts)


def sizes_chart(report: Report, kind: str) -> str:
    """Draw the nodes or edges of every part."""
    sizes = np.array([part.get(kind, 0) for part in report["parts"]], float)
    return svg.stacked_bars({f"{kind}, mean {sizes.mean():,.0f}": sizes}, f"{kind} of the parts", "part")


def balance_chart(quality: Report) -> str:
    """Draw the heaviest part or rank over the mean, by constraint and number of ranks."""
    rows = [run for run in quality.get("runs", []) if 1 < run["ranks"] < quality["ranks"]] + [quality]
    names = {name: kind for kind in ("balance", "further") for name in quality.get(kind, {})}
    curves = {
        name if kind == "balance" else f"{name} (not asked for)": [(row["ranks"], row[kind][name]) for row in rows]
        for name, kind in names.items()
    }
    return svg.lines(curves, "balance", "ranks")


def cut_chart(traffic: Traffic) -> str:
    """Draw the edges from part to part; edges inside a part are left out."""
    between = traffic.edges.astype(float)
    np.fill_diagonal(between, 0)
    return svg.matrix(between, "edges between parts", log=True)


def halo_chart(traffic: Traffic) -> str:
    """Draw the nodes of other parts that each part's edges need."""
    return svg.stacked_bars({"remote nodes": traffic.halo.sum(axis=1).astype(float)}, "remote nodes", "part")
