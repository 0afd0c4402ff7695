"""The options of several runs in one job, ``--each KEY=VALUE,VALUE`` and ``--groups``, on the command line of ``hpcgnn
train``. Loads neither torch nor MPI."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from hpcgnn.recipes import take_options

EACH, GROUPS, SEED = "--each", "--groups", "--train.seed"
# Sections that all runs share: where the ranks are, and where results go.
SHARED = ("comm.", "output.")
KEY = re.compile(r"[a-z_]+\.[a-z_]+")
NOT_IN_NAMES = re.compile(r"[^\w.+-]+")


def split_values(option: str) -> tuple[str, list[str]]:
    """Split ``KEY=VALUE,VALUE`` into the key and its values, each as it stands; a comma within brackets or quotes
    belongs to a value. Raises ValueError."""
    key, equals, text = option.partition("=")
    example = "--each train.seed=0,1,2, or --each sampling.fanouts=[10,5],[15,10] for lists"
    if not equals or not KEY.fullmatch(key):
        raise ValueError(f"{EACH} {option}: expected SECTION.KEY=VALUE,VALUE, such as {example}")
    if key.startswith(SHARED):
        raise ValueError(f"{EACH} {key}: all runs of a sweep share this key: give it once, as --{key}")
    import yaml  # here, as loading it takes as long as all else that job scripts ask for

    line = f"[{text}]"
    try:
        nodes: Any = yaml.compose(line, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(
            f"{EACH} {option}: brackets or quotes do not match; expected values as in {example}"
        ) from error
    values = [
        node.value if isinstance(node, yaml.ScalarNode) else line[node.start_mark.index : node.end_mark.index]
        for node in nodes.value
    ]
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{EACH} {option}: expected values that differ, such as {example}")
    return key, values


def with_each(argv: Sequence[str]) -> list[str]:
    """Write out ``--train.seed 0,1,2`` as ``--each train.seed=0,1,2``."""
    seeds, others = take_options(argv, SEED)
    if not any("," in seed for seed in seeds):
        return list(argv)
    return others + [word for seed in seeds for word in ((EACH, f"train.seed={seed}") if "," in seed else (SEED, seed))]


def choices(argv: Sequence[str]) -> tuple[list[dict[str, str]], list[str]]:
    """Take ``--each`` out of a command line: returns the keys and values of each run, none without that option, and the
    other words. Raises ValueError."""
    options, others = take_options(argv, EACH)
    values: dict[str, list[str]] = {}
    for option in options:
        key, listed = split_values(option)
        if key in values or take_options(others, f"--{key}")[0]:
            raise ValueError(f"{EACH} {key}: the key has values of another option, too: give it once")
        values[key] = listed
    points = itertools.product(*values.values()) if values else ()
    return [dict(zip(values, point, strict=True)) for point in points], others


def run_name(choice: dict[str, str]) -> str:
    """Name the folder of a run by the keys that set it apart, such as ``lr=0.01,seed=0``: without their sections, where
    the names differ without them."""
    last = [key.rpartition(".")[2] for key in choice]
    names = last if len(set(last)) == len(last) else list(choice)
    values = [NOT_IN_NAMES.sub("-", value.strip("[]{} ")) for value in choice.values()]
    return ",".join(f"{name}={value}" for name, value in zip(names, values, strict=True))


def read_groups(argv: list[str]) -> tuple[int, list[str]]:
    """Take ``--groups`` out of a command line: returns its number, 0 without that option, and the other words. Raises
    ValueError."""
    given, others = take_options(argv, GROUPS)
    if not given:
        return 0, others
    if not given[-1].isdigit() or int(given[-1]) < 1:
        raise ValueError(f"{GROUPS} must be a number of groups of ranks from 1 on, got {given[-1]!r}")
    return int(given[-1]), others
