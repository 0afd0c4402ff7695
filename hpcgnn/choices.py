"""Settings that take one of a few words: fields of dataclasses whose type is a ``Literal``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_choices(section: str, values: object) -> None:
    """Raise ValueError for the first field of a dataclass whose value is none of the words of its Literal type."""
    for name, hint in get_type_hints(type(values)).items():
        if get_origin(hint) is Literal:
            check_choice(f"{section}.{name}", getattr(values, name), get_args(hint))


def check_choice(name: str, value: Any, words: Iterable[str]) -> None:
    """Raise ValueError unless a setting's value is one of some words; the empty word may be among them."""
    if value not in words:
        named = [word for word in words if word]
        listed = ("one of " if len(named) > 1 else "") + ", ".join(named) + (" or empty" if "" in words else "")
        raise ValueError(f"{name} must be {listed}, got {value!r}")
