"""The tensors of a plan, or of anything made of dataclasses, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch


def tensors_of(value) -> Iterator[torch.Tensor]:
    """All tensors, in order of the fields."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(item)


def map_tensors(value, change: Callable[[str, torch.Tensor], torch.Tensor], name: str = "") -> Any:
    """The same with ``change(field, tensor)`` in place of every tensor."""
    if isinstance(value, torch.Tensor):
        return change(name, value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: map_tensors(getattr(value, f.name), change, f.name) for f in fields(value)})
    if isinstance(value, tuple):
        return tuple(map_tensors(item, change, name) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change, name) for key, item in value.items()}
    return value


def shapes_of(value, name: str = "") -> Iterator:
    """All of a plan that its step depends on but the values in tensors, and which step of which epoch it is."""
    if isinstance(value, torch.Tensor):
        yield value.dtype, *value.shape
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in ("step", "epoch"):
                yield from shapes_of(getattr(value, field.name), field.name)
    elif isinstance(value, tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from shapes_of(item, name)
    elif value is None or isinstance(value, int | float | str):
        yield value
