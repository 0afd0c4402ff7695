"""The options of each kind of graph, made of the options that all kinds share and the further ones of static graphs."""

from __future__ import annotations

from collections.abc import Callable

from data_tools.partition.assignment import METHODS
from data_tools.partition.options import GIVEN, HOTNESS, HOTNESS_CACHE, Options, StaticOptions
from data_tools.partition.source import Source
from data_tools.partition.weights import SPLITS, check_split, constraints, default_balance
from hpcgnn.graph import files

DEFAULT_BALANCE = ("events", "time")
NAMED_METHODS = tuple(name for name in METHODS if name != GIVEN)


def temporal_options(source: Source, common: dict, extra: dict) -> Options:
    """Check the options for a temporal graph and return them."""
    if extra:
        raise ValueError(f"{', '.join(extra)}: for static graphs only, {source.file.filename} is temporal")
    options = Options(**{**common, "balance": DEFAULT_BALANCE if common["balance"] is None else common["balance"]})
    options.check([name for name in METHODS if name != HOTNESS], constraints(source))
    return options


def static_options(source: Source, common: dict, extra: dict) -> Options:
    """Check the options for a static graph and return them."""
    if common["method"] == HOTNESS:
        extra = {"cache_ranking": HOTNESS_CACHE, **extra}
    balance = default_balance(source) if common["balance"] is None else common["balance"]
    options = StaticOptions(**{**common, "balance": balance, **extra})
    options.check(METHODS, constraints(source))
    for name in SPLITS:
        if name in balance:
            check_split(source, name)
    return options


OPTIONS: dict[str, Callable[[Source, dict, dict], Options]] = {
    "temporal": temporal_options,
    **dict.fromkeys(files.BY_DESTINATION, static_options),
}
