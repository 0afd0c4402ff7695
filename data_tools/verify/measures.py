"""Measure a partition set anew, from its graph file and the parts of its nodes, and compare the book's measures. These
measures are balance, halo, volume and cut of every number of ranks, and the probabilities of cache rankings.

N nodes of all types numbered together, P parts.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from data_tools.graph.book import SetBook
from data_tools.graph.findings import Findings, each
from data_tools.graph.source import EdgeType, Source, open_source
from data_tools.partition.access import access_by_part
from data_tools.partition.assignment import Job
from data_tools.partition.blocks import NodeBlocks
from data_tools.partition.layout import PartLayout
from data_tools.partition.memory import LEAST_WORK
from data_tools.partition.options import Options, StaticOptions
from data_tools.partition.partition_set import load_parts
from data_tools.partition.quality import EdgeSlab, Measured, measure
from data_tools.team import Team
from hpcgnn.graph import files

TOLERANCE = 1e-4  # of a probability, whose sums another processor may add up in another order
CACHE_TOLERANCE = 2e-6  # of its shares, which are rounded to six places


class SharedRows(Measured):
    """The rows of a graph file, of which a rank reads its share of every slab."""

    def edges(self, relation: EdgeType) -> Iterator[EdgeSlab]:
        """Yield slabs of a relation's edges; every edge comes on one rank."""
        part = self.layout.part
        for start, src, dst in self.source.ends(relation, self.team):
            yield EdgeSlab(start, src, dst, part[src], part[dst])


def compare_measures(team: Team, book: SetBook, path: str, rows: dict[str, np.ndarray], findings: Findings) -> None:
    """Collective. Check the quality and the cache rankings of a set, right in all else, against the graph file at
    ``path``. rows: of every type, row ids by global id, relative to the type's first [N_type]."""
    kind, options = Options if book.kind == "temporal" else StaticOptions, None
    with findings.reading(book.path):
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in book.options.items()
        }
        options = kind(**given)
    if options is None:
        return
    with (source := open_source(path)).file:
        part = node_parts(book, source, rows)
        layout = PartLayout(
            book.num_parts, part, np.empty(0, np.int64), tuple(node_type.offsets for node_type in book.types)
        )
        blocks = NodeBlocks.even(team, source.num_nodes)
        job = Job(source, options, blocks, pathlib.Path(tempfile.gettempdir()), LEAST_WORK)
        loads = load_parts(job, part[blocks.own.start : blocks.own.stop])
        measured = measure(SharedRows(team, source, layout, range(book.num_parts)), loads)
        compare(book, "", book.quality, json.loads(json.dumps(measured)), findings)
        if isinstance(options, StaticOptions) and options.cache_ranking:
            compare_caches(team, book, source, part, rows, options, findings)


def node_parts(book: SetBook, source: Source, rows: dict[str, np.ndarray]) -> np.ndarray:
    """Find the part [N] int32 of every node of the graph file."""
    part = np.zeros(source.num_nodes, np.int32)
    for node_type, ours in zip(source.types, book.types, strict=True):
        of_id = np.repeat(np.arange(book.num_parts, dtype=np.int32), np.diff(ours.offsets))
        part[node_type.base + rows[ours.name]] = of_id
    return part


def compare(book: SetBook, where: str, ours: Any, theirs: Any, findings: Findings) -> None:
    """Note where values of the book differ from the measured values, by their path in the quality. Measures that the
    book of an older program lacks are left out."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in theirs:
            if name in ours:
                compare(book, f"{where}.{name}" if where else name, ours[name], theirs[name], findings)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (own, other) in enumerate(zip(ours, theirs, strict=True)):
            compare(book, f"{where}[{index}]", own, other, findings)
    elif ours != theirs:
        findings.add(book.path, "quality", f"{where} is {ours!r}, the parts have {theirs!r}")


def compare_caches(
    team: Team,
    book: SetBook,
    source: Source,
    part: np.ndarray,
    rows: dict[str, np.ndarray],
    options: StaticOptions,
    findings: Findings,
) -> None:
    """Collective. Check the probabilities of the cache rankings of all parts, and the book's shares of accesses."""

    def check(number: int, problems: Findings) -> tuple[float, float, float]:
        path, ranked = book.part_path(number), 0.0
        block = range(number, number + 1)
        ((_, probability),) = access_by_part(source, part, block, options.fanouts, options.batch_size)
        with problems.reading(path, number), files.open_checked(path, files.PART) as file:
            for node_type, ours in zip(source.types, book.types, strict=True):
                group = file[f"cache/{ours.name}"]
                values = group["probability"][:]
                expected = probability[node_type.base + rows[ours.name][group["id"][:] - ours.base]]
                bad = np.flatnonzero(np.abs(values - expected) > TOLERANCE * np.maximum(expected, values))
                texts = [f"{values[row]} is stored, {expected[row]} follows from the graph" for row in bad[:3]]
                problems.add_rows(path, f"{group.name}/probability", bad, texts.__getitem__)
                ranked += float(values.sum(dtype=np.float64))
        return (
            float(probability.sum(dtype=np.float64)),
            float(probability[part == number].sum(dtype=np.float64)),
            ranked,
        )

    total, *shares = np.sum(each(team, findings, range(book.num_parts), check), axis=0).tolist()
    for name, value in zip(("local", "ranked"), shares, strict=True):
        share, stored = (value / total if total else 0.0), book.quality.get("cache", {}).get(name)
        if not (isinstance(stored, float) and abs(stored - share) <= CACHE_TOLERANCE):
            findings.add(book.path, "quality", f"cache.{name} is {stored!r}, the parts have {round(share, 6)}")
