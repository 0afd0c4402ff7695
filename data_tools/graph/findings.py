"""Collects the problems of a partition set: one line per problem, naming file, dataset and row."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_tools.team import Team
from hpcgnn.graph.files import DAMAGE

ROWS_SHOWN = 3


@dataclass(slots=True)
class Findings:
    """Problems found so far, and the parts that later checks cannot use."""

    lines: list[str] = field(default_factory=list)
    unusable: set[int] = field(default_factory=set)

    def add(self, file: str | pathlib.Path, dataset: str, message: str) -> None:
        """Note a problem that is not about single rows; dataset may be empty."""
        self.lines.append(": ".join(text for text in (str(file), dataset, message) if text))

    def add_rows(self, file: str | pathlib.Path, dataset: str, rows: np.ndarray, message: Callable[..., str]) -> None:
        """Note the first few of the bad rows [k]; message(i) returns the found and the expected value of the i-th of
        them."""
        for index in range(min(len(rows), ROWS_SHOWN)):
            self.add(file, dataset, f"row {rows[index]}: {message(index)}")
        if len(rows) > ROWS_SHOWN:
            self.add(file, dataset, f"... and {len(rows) - ROWS_SHOWN} more rows like these")

    @contextlib.contextmanager
    def reading(self, file: str | pathlib.Path, part: int | None = None) -> Iterator[None]:
        """Turn an error while a file is read into a finding; its part is not used any further."""
        try:
            yield
        except DAMAGE as error:
            self.add(file, "", f"cannot be read: {error}")
            if part is not None:
                self.unusable.add(part)


def each(team: Team, findings: Findings, units: Sequence, check: Callable[[Any, Findings], Any]) -> list:
    """Collective. Check all units, every rank consecutive ones; returns on every rank the results of check(unit,
    findings), in order of the units. A check has the list of parts that were unusable before; its problems come in the
    order of the units."""
    unit_findings, values = [], []
    for unit in units[slice(*team.share(0, len(units)))]:
        unit_findings.append(Findings(unusable=set(findings.unusable)))
        values.append(check(unit, unit_findings[-1]))
    put_together(team, findings, unit_findings)
    return [value for rank_values in team.everyone(values) for value in rank_values]


def put_together(team: Team, findings: Findings, own_findings: list[Findings]) -> None:
    """Collective. Add the problems of all ranks, in rank order, to the findings on every rank."""
    for rank_findings in team.everyone([(item.lines, item.unusable) for item in own_findings]):
        for lines, unusable in rank_findings:
            findings.lines += lines
            findings.unusable |= unusable
