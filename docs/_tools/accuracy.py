"""Writes the table of docs/accuracy.md from hpcgnn/bench/accuracy.yaml.

Run ``python docs/_tools/accuracy.py`` after a change of a row.
"""

from __future__ import annotations

import sys

from source import REPOSITORY

sys.path.insert(0, str(REPOSITORY))

from hpcgnn.bench.accuracy import TABLE, Row, read_table, spread

PAGE = REPOSITORY / "docs" / "accuracy.md"
MARKS = "<!-- rows -->\n", "<!-- end of rows -->\n"
HEAD = ("row", "model", "data and protocol", "metric", "rules without training", "published", "here", "seconds a run")


def table() -> str:
    """Make the table: a line for each row."""
    lines = [HEAD, ["---"] * len(HEAD), *(_cells(name, row) for name, row in read_table(TABLE).items())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cells(name: str, row: Row) -> list[str]:
    metrics = ", ".join(f"`{metric}`" for metric in row.metrics)
    ours = "; ".join(spread(*row.ours[metric]) for metric in row.metrics)
    others = _listed(row.rules), _listed(row.published)
    return [f"`{name}`", row.model, row.data, metrics, *others, ours, f"{row.seconds:.0f}"]


def _listed(values: dict[str, str]) -> str:
    return "; ".join(f"{source}: {value}" for source, value in values.items()) or "none"


def page(text: str) -> str:
    """Put the table into the text of the page. Raises ValueError where the text has no place for it."""
    before, mark, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        raise ValueError(f"{PAGE}: the lines {MARKS[0].strip()} and {MARKS[1].strip()} are missing")
    return before + mark + "\n" + table() + "\n" + end + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
