"""Writes the page about runs: HTML with everything inside."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcgnn.report import svg
from hpcgnn.report.compare import SPREAD, Comparison, notes, rows
from hpcgnn.report.records import RunRecords, when

# Stages that are no part of their own of an epoch: "validation" is made of others, "plan" runs beside them.
OVERLAPPING = ("epoch", "validation", "plan")
STYLE = """
:root { color-scheme: light dark }
:root { --ink: #1d2733; --soft: #5d6b7a; --line: #dfe5ec; --paper: #ffffff; --ground: #f4f6f9 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ef; --soft: #a3b0be; --line: #38424d; --paper: #20262d; --ground: #15191e }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px }
h1 { font-size: 24px; margin: 0 0 4px } h2 { font-size: 18px; margin: 34px 0 10px }
h3 { font-size: 14px; margin: 0 0 8px; font-weight: 600 } p { margin: 4px 0 12px; color: var(--soft) }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(380px, 100%), 1fr)); gap: 14px }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 14px; min-width: 0 }
svg { width: 100%; height: auto; display: block; overflow: visible }
svg text { font-size: 11px; fill: var(--soft) } svg text.on-dark { fill: #ffffff }
svg .grid { stroke: var(--line); stroke-width: 1 }
table { border-collapse: collapse; width: 100%; background: var(--paper); border: 1px solid var(--line) }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--line) }
td { font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left } th { font-weight: 600; background: var(--ground) }
.narrow { max-width: 560px } .wide { overflow-x: auto }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 12px; margin-top: 6px }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px }
pre { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 12px; overflow-x: auto }
summary { cursor: pointer; margin: 8px 0 } .up { color: #2c7a4b } .down { color: #b3452f }
"""


def page(runs: list[RunRecords], comparison: Comparison) -> str:
    """Write the page; several runs are compared first."""
    names = ", ".join(run.name for run in runs)
    body = [
        f"<h1>{html.escape(names)}</h1>",
        f"<p>{len(runs)} run{'s' * (len(runs) > 1)}, written by hpcgnn</p>",
        _compared(comparison) if len(runs) > 1 else "", _summary(runs), _curves(runs), _timeline(runs),
        *(_machine(run) for run in runs),
    ]  # fmt: skip
    for run in runs:
        config = html.escape(run.config)
        body.append(f"<details><summary>config.yaml of {html.escape(run.name)}</summary><pre>{config}</pre></details>")
    return document(names, body)


def document(title: str, body: list[str]) -> str:
    """Write a page of HTML with everything inside."""
    title = html.escape(f"hpcgnn: {title}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    shown = f"<body><main>{''.join(body)}</main></body>"
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head>{shown}</html>\n'


def write_charts(path: Path, title: str, text: str, charts: Mapping[str, str]) -> None:
    """Write a page of charts by title. Raises ValueError where ``path`` is no name of a page."""
    check_page(path)
    cards = "".join(card(name, chart) for name, chart in charts.items())
    head = f"<h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>"
    path.write_text(document(title, [head, f'<div class="cards">{cards}</div>']), encoding="utf-8")


def check_page(path: Path) -> None:
    """Raise ValueError unless a path names a page of HTML."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--plot {path}: the charts are a page of HTML; name it {path.with_suffix('.html').name}")


def _compared(comparison: Comparison) -> str:
    """Write a table with a row for each setting, of the means and deviations over its seeds, and notes about it."""
    head, *body = rows(comparison, comparison.metrics)
    heads = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    text = "".join(f"<p>{html.escape(note)}</p>" for note in [*notes(comparison), SPREAD])
    return f'<h2>Settings</h2>{text}<div class="wide"><table><tr>{heads}</tr>{lines}</table></div>'


def _summary(runs: list[RunRecords]) -> str:
    """Write a table of results, epochs, time and ranks with a column for each run."""
    facts = [_facts(run) for run in runs]
    rows = ""
    for name in dict.fromkeys(name for of_run in facts for name in of_run):
        values = [of_run.get(name) for of_run in facts]
        cells = "".join(f"<td>{'' if value is None else _number(value)}</td>" for value in values)
        rows += f"<tr><td>{html.escape(name)}</td>{cells}</tr>"
    heads = "".join(f"<th>{html.escape(run.name)}</th>" for run in runs)
    return f'<h2>Results</h2><div class="wide"><table><tr><th></th>{heads}</tr>{rows}</table></div>'


def _facts(run: RunRecords) -> dict[str, float | str]:
    """Collect the numbers of a run by name; a text says why there is none."""
    seconds = [line["train_seconds"] for line in run.epochs if line.get("train_seconds")]
    facts: dict[str, float | str]
    facts = {f"{name} (best epoch)" if name == "epoch" else name: value for name, value in run.results().items()}
    facts |= {"epochs": len(run.epochs), "starts": len(run.starts)}
    if seconds:
        facts |= {"seconds an epoch, median": float(np.median(seconds)), "seconds of training": float(sum(seconds))}
    if run.starts:
        facts |= {"ranks, newest start": run.starts[-1]["ranks"], "threads a rank": run.starts[-1]["threads"]}
    if run.times:
        facts |= {"MiB of memory, highest rank": float(run.peak_mib().max()),
                  "MiB sent, all ranks": float(run.sent_bytes().sum()) / 2**20}  # fmt: skip
        joules = run.joules()
        facts["kJ, all machines"] = "not available" if joules is None else joules / 1000
    return facts


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}" if abs(value) < 100 else f"{value:,.1f}"


def _curves(runs: list[RunRecords]) -> str:
    """Draw each loss and each metric over epochs, all runs in one picture."""
    curves = [run.curves() for run in runs]
    cards = []
    for name in dict.fromkeys(name for of_run in curves for name in of_run):
        series = {run.name: of_run[name] for run, of_run in zip(runs, curves, strict=True) if name in of_run}
        cards.append(card(name, svg.lines(series, f"{name} by epoch")))
    seconds = {run.name: [(line["epoch"], line["train_seconds"]) for line in run.epochs if line.get("train_seconds")]
               for run in runs}  # fmt: skip
    cards.append(card("seconds of training", svg.lines(seconds, "seconds of training by epoch")))
    return f'<h2>Epochs</h2><div class="cards">{"".join(cards)}</div>'


def _timeline(runs: list[RunRecords]) -> str:
    """Draw when runs were started and resumed, and when their epochs ended."""
    rows = {}
    for run in runs:
        marks = [(when(line), f"epoch {line['epoch']}", False) for line in run.times]
        for line in run.starts:
            begin = f"resumed from {line['resumed']}" if line["resumed"] else "started"
            hosts = ", ".join(dict.fromkeys(line["hosts"]))
            marks.append((when(line), f"{begin} on {line['ranks']} ranks ({hosts}), {line['time']}", True))
        rows[run.name] = marks
    chart = svg.time_axis(rows, "starts and epochs over time")
    if not chart:
        return ""
    legend = "A diamond is a start or a resume: point at it for the number of ranks. A dot is the end of an epoch."
    return f'<h2>Starts and resumes</h2><p>{legend}</p><div class="card narrow">{chart}</div>'


def _machine(run: RunRecords) -> str:
    """Draw stages by rank, bytes between ranks and memory of a run, and write a table of its stages."""
    if not run.times:
        return ""
    stages, sent = run.stage_seconds(), run.sent_bytes()
    whole = stages["epoch"]
    parts = {name: values for name, values in stages.items() if name not in OVERLAPPING}
    parts["validation and other"] = np.maximum(0.0, whole - sum(parts.values()))
    cards = [card("seconds by stage and rank", svg.stacked_bars(parts, "seconds by stage and rank"))]
    if len(sent) > 1:
        if sent.ndim == 2:
            cards.append(card("bytes sent, from row to column", svg.matrix(sent, "bytes from rank to rank")))
        else:
            cards.append(card("bytes sent by rank", svg.stacked_bars({"sent": sent}, "bytes sent by rank")))
    cards.append(card("MiB of memory by rank", svg.stacked_bars({"highest": run.peak_mib()}, "memory by rank")))
    rows = "".join(
        _stage_row(name, stages[name], float(whole.max()))
        for name in sorted(stages, key=lambda name: -float(stages[name].mean()))
    )
    heads = "".join(f"<th>{word}</th>" for word in ("stage", "min", "mean", "max", "of the epoch", "max / mean"))
    return (
        f'<h2>Time and memory: {html.escape(run.name)}</h2><div class="cards">{"".join(cards)}</div>'
        f'<h2>Stages: {html.escape(run.name)}</h2><div class="wide"><table><tr>{heads}</tr>{rows}</table></div>'
    )


def _stage_row(name: str, seconds: np.ndarray, whole: float) -> str:
    low, mean, high = seconds.min(), seconds.mean(), seconds.max()
    cells = [f"{low:.2f}", f"{mean:.2f}", f"{high:.2f}", f"{100 * mean / max(whole, 1e-9):.1f} %",
             f"{high / max(mean, 1e-9):.2f}"]  # fmt: skip
    return f"<tr><td>{html.escape(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def card(title: str, content: str) -> str:
    """Write a box with a title; nothing without content."""
    return f'<div class="card"><h3>{html.escape(title)}</h3>{content}</div>' if content else ""
