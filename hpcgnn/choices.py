"""Settings that take one of a few values."""

from __future__ import annotations


def check_choices(section: str, values: object, choices: dict[str, tuple[str, ...]]) -> None:
    """Raise ValueError for the first attribute whose value is none of its choices."""
    for name, allowed in choices.items():
        if getattr(values, name) not in allowed:
            raise ValueError(f"{section}.{name} must be one of {', '.join(allowed)}, got {getattr(values, name)!r}")
