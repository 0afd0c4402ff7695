"""Computes metrics by functions of the user's own, which ``train.metrics`` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.nn.own_class import found_at, named_errors

KEY = "train.metrics"
Function = Callable[[dict[str, np.ndarray]], float]


def own_functions(paths: Sequence[str], taken: Sequence[str] = ()) -> dict[str, Function]:
    """Find the functions by the names of their metrics, the last words of their paths. Raises ValueError for a path
    that leads to none, and for a name that is ``taken``, or there twice."""
    functions: dict[str, Function] = {}
    for path in paths:
        name = path.rpartition(".")[2]
        if name in taken or name in functions:
            raise ValueError(f"{KEY} {path!r}: there is a metric {name} already: give the function another name")
        function = found_at(path, KEY, "function")
        if not callable(function):
            raise ValueError(f"{KEY} {path!r} is no function")
        functions[name] = function
    return functions


def own_metrics(paths: Sequence[str], scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. Compute the metrics from the scores of all ranks by name, [n, ...], which rank 0 gathers in the order
    of ranks; NaN where there are none. Raises DistributedError, on all ranks, for an exception in a function, and for a
    value that is no number."""
    if not paths or not scores:
        return dict.fromkeys(own_functions(paths), float("nan"))
    gathered = {name: world.gather_rows(scores[name]) for name in sorted(scores)}
    metrics: dict[str, float] = {}
    with together(world, f"compute {KEY}"):
        if world.rank == 0:
            for path, (name, function) in zip(paths, own_functions(paths).items(), strict=True):
                with named_errors(path, KEY):
                    metrics[name] = float(function(gathered))
    return world.broadcast(metrics)
