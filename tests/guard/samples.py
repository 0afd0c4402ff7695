"""Digests of what the loaders draw on this rank, through the names that docs/library.md gives to users:

    mpirun -np 2 python tests/guard/samples.py EVENTS STATIC

of two partition sets. Rank 0 prints, as JSON, one digest for each loader and rank. Only integers count (rows, ids,
times, places, counts), which are the same on every processor; the order and names of a plan's fields do not matter.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import numpy as np
import torch

from hpcgnn.comm.world import World
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.link_loader import LinkNeighborLoader
from hpcgnn.static.loader import NeighborLoader
from hpcgnn.temporal import config
from hpcgnn.temporal.loader import TemporalGraph, TemporalLoader
from hpcgnn.temporal.mail import Mailing

RELATION = "node.to.node"  # of the synthetic static graph


def integers(value: object) -> Iterator[np.ndarray]:
    """All arrays of integers in a plan or batch, but for those of exchanges, which have buffers with old rows."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "iub":
            yield value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from integers(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from integers(item)
    elif is_dataclass(value) and not type(value).__module__.startswith("hpcgnn.comm"):
        for field in fields(value):
            yield from integers(getattr(value, field.name))


def digest(steps) -> str:
    """One hash of the integers of all steps."""
    total = hashlib.sha256()
    for step in steps:
        contents = [repr(array.shape).encode() + array.astype(np.int64).tobytes() for array in integers(step)]
        for part in sorted(hashlib.sha256(content).digest() for content in contents):
            total.update(part)
        total.update(b"step")
    return total.hexdigest()[:16]


def temporal_loader(graph: TemporalGraph, split: str, strategy: str, negatives: int, hops: int) -> TemporalLoader:
    """A loader of this commit, or of an older one with other names."""
    older = getattr(config, "SamplingConfig", None)
    of_section, of_loader = ({"negatives": negatives}, {}) if older else ({}, {"negatives": negatives})
    make = older or config.TemporalSamplingConfig
    of_section |= {"fanouts": [5]} if hasattr(make, "fanout") and callable(make.fanout) else {"fanout": 5}
    sampling = make(strategy=strategy, **of_section)
    return TemporalLoader(graph, split, 100, sampling=sampling, hops=hops, mailing=Mailing(slots=1), **of_loader)


def temporal(path: str, world: World) -> dict[str, str]:
    """Collective. Digests of an epoch of every split, by strategy."""
    graph, found = TemporalGraph(path, world), {}
    for strategy in ("recent", "uniform"):
        for split, negatives, hops in (("train", 3, 1), ("train", 1, 2), ("val", 1, 1)):
            with temporal_loader(graph, split, strategy, negatives, hops).plans(1) as plans:
                found[f"temporal {strategy} {split} {negatives} {hops}"] = digest(plans)
    return found


def static(path: str, world: World) -> dict[str, str]:
    """Collective. Digests of an epoch of loaders of nodes and of edges."""
    graph, found = StaticGraph(path, world), {}
    loaders = {
        "sampled": {"fanouts": [10, 5]}, "weighted order": {"fanouts": [3, -1], "shuffle": True, "seed": 3},
        "induced": {"fanouts": [4, 4], "subgraph_type": "induced"},
        "replicated": {"fanouts": [10, 5], "topology": "replicated"},
    }  # fmt: skip
    for name, options in loaders.items():
        found[f"nodes {name}"] = digest(NeighborLoader(graph, "train", batch_size=64, **options))
    rows = graph.edges(RELATION)[::7]
    for kind in ("binary", "triplet"):
        loader = LinkNeighborLoader(
            graph, (RELATION, rows), fanouts=[5, 5], batch_size=256, neg_sampling=kind, negatives=2
        )
        found[f"links {kind}"] = digest(loader)
    graph.close()
    return found


def main() -> None:
    world = World()
    found = temporal(sys.argv[1], world) | static(sys.argv[2], world)
    everyone = world.allgather(found)
    if world.rank == 0:
        print(json.dumps({name: [digests[name] for digests in everyone] for name in found}))


if __name__ == "__main__":
    main()
