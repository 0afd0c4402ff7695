"""Where plans are made: on the host or on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from hpcgnn.loop.placement import leaves_room, other_device
from hpcgnn.native.dispatch import Uploads
from hpcgnn.sample.config import SamplingConfig
from hpcgnn.sample.draw import BlockSampler
from hpcgnn.sample.graph_config import GraphSamplingConfig
from hpcgnn.sample.graph_neighbors import NeighborSampler
from hpcgnn.sample.resident import ResidentSampler
from hpcgnn.sample.resident_draw import ResidentDraw, resident_bytes
from hpcgnn.sample.resident_graph import graph_bytes
from hpcgnn.sample.temporal import Needs, Placement, TemporalSampler
from hpcgnn.store.partition import TemporalPartition


def choose_sampler(
    partition: TemporalPartition, config: SamplingConfig, needs: Needs, seed: int, place: Placement
) -> Callable[..., TemporalSampler | ResidentSampler]:  # fmt: skip
    """Makes samplers of the kind that ``sampling.planner`` asks for; those on the device share what lies there. Raises
    ValueError where the device cannot make plans."""
    if config.planner == "host":
        return TemporalSampler
    hindrance = _hindrance(needs, place)
    if hindrance and config.planner == "device":
        raise ValueError(f"sampling.planner device: {hindrance}; leave it auto")
    size = graph_bytes(partition, place.dtype.itemsize)
    if hindrance or (config.planner == "auto" and not leaves_room(size, place.device)):
        return TemporalSampler
    return partial(ResidentSampler, upload=Uploads(place.device))


def choose_draw(
    neighbors: NeighborSampler, config: GraphSamplingConfig, seed: int, device: torch.device
) -> BlockSampler | ResidentDraw:
    """The draw of static steps that ``sampling.planner`` asks for. Raises ValueError where the device cannot draw."""
    if config.planner != "host":
        hindrance = other_device(device) or neighbors.needs_host
        if hindrance and config.planner == "device":
            raise ValueError(f"sampling.planner device: {hindrance}; leave it auto")
        if not hindrance and (config.planner == "device" or leaves_room(resident_bytes(neighbors), device)):
            return ResidentDraw(neighbors, config, seed, device)
    return BlockSampler(neighbors, config, seed)


def _hindrance(needs: Needs, place: Placement) -> str:
    """Why plans cannot be made on the device; empty where they can."""
    if other_device(place.device):
        return other_device(place.device)
    if place.plan_channel.size > 1:
        return f"{place.plan_channel.size} ranks hold the graph, a device can plan for one"
    if needs.mailing is not None and not needs.mailing.simple:
        return "mails go to neighbours, or are more than the newest one"
    return ""
