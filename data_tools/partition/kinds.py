"""How each kind of graph is partitioned: its options, its assignment, its part files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data_tools.partition.assignment import METHODS, Workplace, assign, weight_table
from data_tools.partition.journal import Journal
from data_tools.partition.layout import Layout
from data_tools.partition.methods.hotness import hotness_parts
from data_tools.partition.options import HOTNESS_CACHE, Options, StaticOptions
from data_tools.partition.partition_set import Stages
from data_tools.partition.source import Source
from data_tools.partition.static import write_static_parts
from data_tools.partition.temporal import write_parts
from data_tools.partition.weights import constraints, default_balance
from hpcgnn.graph import files

DEFAULT_BALANCE = ("events", "time")
METIS, HOTNESS = "metis", "hotness"
STATIC_METHODS = (*METHODS, HOTNESS)


def temporal_options(source: Source, common: dict, extra: dict) -> Options:
    """Options for a temporal graph, checked."""
    if extra:
        raise ValueError(f"{', '.join(extra)}: for static graphs only, {source.file.filename} is temporal")
    options = Options(**{**common, "balance": DEFAULT_BALANCE if common["balance"] is None else common["balance"]})
    options.check(METHODS, constraints(source))
    return options


def static_options(source: Source, common: dict, extra: dict) -> Options:
    """Options for a static graph, checked."""
    if common["method"] == HOTNESS:
        extra = {"cache_ranking": HOTNESS_CACHE, **extra}
    balance = default_balance(source) if common["balance"] is None else common["balance"]
    options = StaticOptions(**{**common, "balance": balance, **extra})
    options.check(STATIC_METHODS, constraints(source))
    return options


def assign_static(source: Source, options: StaticOptions, place: Workplace) -> np.ndarray:
    """Part per node [N] int32 of a static graph."""
    if options.method != HOTNESS:
        return assign(source, options, place)
    # Hotness moves nodes of a METIS partition, whose training seeds stay where they are.
    part = METHODS[METIS](source, options, place)
    return hotness_parts(source, part, weight_table(source, options, place), options)


def write_temporal(source: Source, layout: Layout, journal: Journal, options: Options, place: Workplace) -> dict:
    """Part files of a temporal graph, which tell nothing more of its quality."""
    write_parts(source, layout, journal, place.memory)
    return {}


TEMPORAL = Stages(assign, write_temporal)
BY_DESTINATION = Stages(
    assign_static,
    lambda source, layout, journal, options, place: write_static_parts(source, layout, journal, options),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of graph is partitioned; options from what all kinds share and what is for static graphs."""

    options: Callable[[Source, dict, dict], Options]
    stages: Stages


KINDS = {
    "temporal": Kind(temporal_options, TEMPORAL),
    **dict.fromkeys(files.BY_DESTINATION, Kind(static_options, BY_DESTINATION)),
}
