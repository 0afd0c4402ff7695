"""Settings that take one of a few words, and tables of the parts that such words name.

A field of a section is ``Literal[...]``, or ``Annotated[str, TABLE]`` with a table of rows by name. Its choices, their
help and the checks of its value are made from the table: a part is added in one place, next to its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

ON: Final = "on"
OFF: Final = "off"


@dataclass(frozen=True)
class Part:
    """A row of a table of named parts. make: the class or function that makes the part, or None where no part is made;
    ``says``: a few words about the part, for the help and the docs. Tables of parts with needs and conditions have rows
    of a subclass, with a field for each."""

    make: Callable[..., Any] | None
    says: str


@cache
def _hints(section: type) -> dict[str, Any]:
    """Evaluate the types of a section's fields, which takes longer than to check its values."""
    return get_type_hints(section, include_extras=True)


def tables_of(section: Any) -> dict[str, Mapping[str, Part]]:
    """Return the tables that fields of a section are chosen from, by field."""
    return {name: get_args(hint)[1] for name, hint in _hints(section).items() if get_origin(hint) is Annotated}


def check_choices(section: str, values: object) -> None:
    """Raise ValueError for the first field of a dataclass whose value is none of the words of its Literal type, or not
    in its table. True and False stand for the words "on" and "off"."""
    section_type: Any = type(values)
    for name, words in _choices_of(section_type):
        value = getattr(values, name)
        if isinstance(value, bool) and ON in words:  # as YAML reads on and off
            setattr(values, name, ON if value else OFF)
        check_choice(f"{section}.{name}", getattr(values, name), words)


@cache
def _choices_of(section: type) -> list[tuple[str, Iterable[str]]]:
    """Return the fields of a section that take one of a few words, with these: a table, or a tuple."""
    tables, hints = tables_of(section), _hints(section)
    words = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal} | tables
    return [(name, words[name]) for name in hints if name in words]


def check_choice(name: str, value: Any, words: Iterable[str]) -> None:
    """Raise ValueError unless a setting's value is one of some words; the empty word may be among them."""
    words = tuple(words)
    if value not in words:
        named = [word for word in words if word]
        listed = ("one of " if len(named) > 1 else "") + ", ".join(named) + (" or empty" if "" in words else "")
        raise ValueError(f"{name} must be {listed}, got {value!r}")


def describe_choices(table: Mapping[str, Part]) -> str:
    """List the rows of a table with what each is, in one line."""
    return "; ".join(f'"{name}": {part.says}' if name else f"empty: {part.says}" for name, part in table.items())


def names_with(table: Mapping[str, Part], field: str, value: bool = True) -> str:
    """Name the rows of a table whose field has a value, as "one or other", for the remedy of an error."""
    return " or ".join(name for name, part in table.items() if getattr(part, field) == value)


def has_kernel(part: object, table: Mapping[str, Any]) -> bool:
    """Whether a native kernel computes what a part does: it is, or its class is, what a row of the table has as
    ``kernel``. Never so for a subclass, which may compute something else."""
    return any(row.kernel in (part, type(part)) for row in table.values() if row.kernel is not None)
