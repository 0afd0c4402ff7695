"""Reads JSON and YAML that anyone may have written, and refuses contents that take memory or time without bound."""

from __future__ import annotations

import json
from typing import Any

import yaml

MOST_VALUES = 10_000_000  # that aliases may stand for


def decode_json(text: str | bytes) -> Any:
    """Read a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("not readable JSON: nested too deeply") from None


def decode_yaml(text: str) -> Any:
    """Read a YAML text of plain data. Raises ValueError."""
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > MOST_VALUES:
            raise ValueError(f"its aliases stand for more than {MOST_VALUES:,} values")
        _refuse_repeated(node)
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("not readable YAML: nested too deeply") from None
    except (yaml.YAMLError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _refuse_repeated(root: yaml.Node) -> None:
    """Raise ValueError for a key that stands twice in a mapping: the first value would be lost."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if repeated := [key for key in keys if keys.count(key) > 1]:
                raise ValueError(f"the key {repeated[0]} stands twice in a mapping: leave out one")
        waiting += [child for item in node.value for child in (item if isinstance(item, tuple) else (item,))]


def _count(node: yaml.Node, counts: dict[int, int | None]) -> int:
    """Count the values below a node, with those of an alias wherever it stands; counts: of nodes that were counted,
    None of those that are being counted. Raises ValueError for an alias that holds itself."""
    if id(node) in counts:
        count = counts[id(node)]
        if count is None:
            raise ValueError("not readable YAML: an alias holds itself")
        return count
    counts[id(node)] = None
    below = node.value if isinstance(node, yaml.CollectionNode) else []
    children = [child for item in below for child in (item if isinstance(item, tuple) else (item,))]
    counts[id(node)] = count = 1 + sum(_count(child, counts) for child in children)
    return count
