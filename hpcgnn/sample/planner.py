"""Where plans of temporal steps are made: on the host or on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from hpcgnn.native.dispatch import on_cuda
from hpcgnn.sample.config import SamplingConfig
from hpcgnn.sample.resident import ResidentSampler
from hpcgnn.sample.resident_graph import Uploads, graph_bytes
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
    if hindrance or (config.planner == "auto" and not _fits(partition, place)):
        return TemporalSampler
    return partial(ResidentSampler, upload=Uploads(place.device))


def _hindrance(needs: Needs, place: Placement) -> str:
    """Why plans cannot be made on the device; empty where they can."""
    if not on_cuda(torch.empty(0, device=place.device)):
        return f"comm.device is {place.device.type}, plans are made on CUDA devices"
    if place.plan_channel.size > 1:
        return f"{place.plan_channel.size} ranks hold the graph, a device can plan for one"
    if needs.mailing is not None and not needs.mailing.simple:
        return "mails go to neighbours, or are more than the newest one"
    return ""


def _fits(partition: TemporalPartition, place: Placement) -> bool:
    """Whether half of the device's free memory takes the graphs of training and of evaluation."""
    if place.device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(place.device)
    return graph_bytes(partition, place.dtype.itemsize) <= free // 2
