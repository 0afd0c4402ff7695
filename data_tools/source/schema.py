"""Makes dataclasses of decoded YAML, checked key by key, with messages that say where and what is allowed.

By hand, since jsonargparse reads the column name "0" as the number 0, and does not say which entry of a list is wrong.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import ItemsView, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def one_of(what: str, value: Any, allowed: Iterable) -> None:
    """Raise ValueError unless ``value`` is allowed."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise ValueError(f"{what}: {value!r} is not one of {', '.join(map(str, allowed))}")


def items(where: str, data: Any) -> ItemsView:
    """List the items of a mapping with text keys. Raises ValueError for anything else."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected a mapping, got {type(data).__name__}")
    for key in data:
        if not isinstance(key, str):
            raise ValueError(f"{where}: the key {key!r} is not text; quote it")
    return data.items()


def build(kind: type[T], data: Any, where: str) -> T:
    """Make a dataclass from a mapping. Keys whose value is null count as left out.

    Raises ValueError naming the place and the key for an unknown key (with the allowed ones), a missing key, or a
    value of the wrong type.
    """
    prefix = f"{where}: " if where else ""
    values = {key: value for key, value in items(where or "spec", data) if value is not None}
    dataclass: Any = kind
    fields = {item.name: item for item in dataclasses.fields(dataclass)}
    for key in data:
        if key not in fields:
            raise ValueError(f"{prefix}unknown key {key!r}; allowed: {', '.join(fields)}")
    for name, item in fields.items():
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING and name not in values:
            raise ValueError(f"{prefix}key {name!r} is missing")
    hints = typing.get_type_hints(kind, include_extras=True)
    for key, value in values.items():
        check_type(f"{prefix}{key}", value, hints[key])
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None


def check_type(what: str, value: Any, hint: Any) -> None:
    """Raise ValueError unless ``value`` is one of the annotation's literals, or the name of a row of its table
    (`hpcgnn.choices`). Where the annotation has neither, the value must be of its type (an int passes for a float), and
    so must all items of a list or mapping. Raises ValueError, too, for an integer beyond an int64."""
    if typing.get_origin(hint) is typing.Annotated:
        one_of(what, value, typing.get_args(hint)[1])
        return
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if is_union else (hint,)
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            one_of(what, value, typing.get_args(option))
            return
    allowed = [typing.get_origin(option) or option for option in options]
    if type(value) not in allowed and not (type(value) is int and float in allowed):
        names = " or ".join(kind.__name__ for kind in allowed if kind is not types.NoneType)
        raise ValueError(f"{what}: {value!r} is {type(value).__name__}, expected {names}")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{what}: {value} is beyond an int64")
    held = next((typing.get_args(option) for option in options if typing.get_origin(option) is type(value)), ())
    if held:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            check_type(f"{what}[{key!r}]", item, held[-1])
