"""JSON and YAML from files that anyone may have written: what would take memory or time without bound is refused."""

from __future__ import annotations

import json
from typing import Any

import yaml

MOST_VALUES = 10_000_000  # that aliases may stand for


def decode_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("not readable JSON: nested too deeply") from None


def decode_yaml(text: str) -> Any:
    """The value of a YAML text: plain data only. Raises ValueError."""
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > MOST_VALUES:
            raise ValueError(f"its aliases stand for more than {MOST_VALUES:,} values")
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("not readable YAML: nested too deeply") from None
    except (yaml.YAMLError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _count(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Values below a node, those of an alias wherever it stands. ValueError for one that holds itself."""
    if id(node) in known:
        count = known[id(node)]
        if count is None:
            raise ValueError("not readable YAML: an alias holds itself")
        return count
    known[id(node)] = None
    below = node.value if isinstance(node, yaml.CollectionNode) else []
    children = [child for item in below for child in (item if isinstance(item, tuple) else (item,))]
    known[id(node)] = count = 1 + sum(_count(child, known) for child in children)
    return count
