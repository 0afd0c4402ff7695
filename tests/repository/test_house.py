"""The floor plan of docs/design.md: which imports there may be, how full a folder gets, and how long a function."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from places import REPOSITORY

pytestmark = pytest.mark.serial

PACKAGES = ("hpcgnn", "data_tools")
WINGS = ("temporal", "static", "snapshots")
# From the ground up; files of hpcgnn/ itself and bench, report stand on top.
FLOORS = ("native", "comm", "graph", "task", "loop", "wing", "kinds", "command")
# Modules that know nothing of the floors.
LOWEST = ("hpcgnn", "hpcgnn.choices", "hpcgnn.environment", "hpcgnn.recipes")
BESIDE = {"nn": ("nn", "native")}
# Of data_tools; commands, in its folder, stand on top.
TOOL_FLOORS = (
    "progress", "cli", "memory", "reports", "team", "source", "graph", "snapshots", "synthetic", "partition", "verify",
    "export",
)  # fmt: skip
CROSSING = ("hpcgnn.kinds", "data_tools.built_in")
PARTITIONING = ("hpcgnn.runs", "data_tools.partition.command")
MOST_FILES = 25  # of Python or C++ in a folder
MOST_LINES = 63  # of a function, as the longest had when the limit was set
SUFFIXES = {".py", ".cpp", ".h", ".cu", ".cuh"}
FULLER: dict[str, int] = {}  # folders that may hold more


def name_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, ast.Module]:
    paths = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]
    return {name_of(path): ast.parse(path.read_text()) for path in paths}


@cache
def imports() -> set[tuple[str, str]]:
    """Pairs of modules of which the first imports the second, anywhere, for types alone too, but for those of the
    public interface: it stands above all, and loads a name when it is used."""
    found = set()
    for name, tree in modules().items():
        for node in () if name in PACKAGES else ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {(name, alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                wanted = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {(name, full if full in modules() else str(node.module)) for full in wanted}
    return {(one, other) for one, other in found if other in modules() and one != other}


def room(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def floor(module: str) -> int:
    """Place in FLOORS, -1 below all of them."""
    if module in LOWEST:
        return -1
    name = "wing" if room(module) in WINGS else room(module)
    return FLOORS.index(name) if name in FLOORS else FLOORS.index("command")


def within(package: str) -> set[tuple[str, str]]:
    inside = [(one, other) for one, other in imports() if one.split(".")[0] == other.split(".")[0] == package]
    return set(inside)


def test_wings_do_not_know_each_other():
    wings = {(one, other) for one, other in within("hpcgnn") if room(one) in WINGS and room(other) in WINGS}
    assert wings, "no imports found: the test looks in the wrong place"
    assert {(one, other) for one, other in wings if room(one) != room(other)} == set()


def test_imports_point_down():
    up = set()
    for one, other in within("hpcgnn"):
        if room(one) in BESIDE:
            allowed = room(other) in BESIDE[room(one)] or floor(other) < 0
        else:
            allowed = room(other) in BESIDE or floor(other) <= floor(one)
        if not allowed:
            up.add((one, other))
    assert up == set()


def test_imports_of_the_tools_point_down():
    """From room to room, a folder or a file of data_tools, so that no circle leads through rooms either."""
    order = {name: place for place, name in enumerate(TOOL_FLOORS)}
    rooms = {(one, other): (room(one), room(other)) for one, other in within("data_tools")}
    assert {name for pair in rooms.values() for name in pair} >= set(order), "a floor that is no room"
    up = {
        modules for modules, (one, other) in rooms.items()
        if one != other and one in order and order[one] < order.get(other, len(order))
    }  # fmt: skip
    assert up == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_in_no_circle(package):
    graph: dict[str, set[str]] = {}
    for one, other in within(package):
        graph.setdefault(one, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_commands_know_wings_by_the_registry_alone():
    knowing = {one for one, other in within("hpcgnn") if one.count(".") == 1 and room(other) in WINGS}
    assert knowing == {"hpcgnn.kinds"}


def test_one_lazy_import_leads_to_the_tools():
    """A run with data of its own loads none of them. The command `hpcgnn` has the package found, no more; what makes
    and partitions graph files of objects is loaded when it is used."""
    crossing = {(one, other) for one, other in imports() if one.startswith("hpcgnn") and other.startswith("data_tools")}
    assert crossing == {CROSSING, ("hpcgnn.__main__", "data_tools"), PARTITIONING}
    for name, _ in (CROSSING, PARTITIONING, ("hpcgnn", "")):
        top = [node for node in modules()[name].body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert not any("data_tools" in ast.unparse(node) for node in top)


def test_only_one_room_talks_to_mpi():
    talking = set()
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                text = ast.unparse(node)
                if ("mpi4py" in text or "torch.distributed" in text) and not text.startswith("from hpcgnn"):
                    talking.add(name)
    assert talking, "no imports found: the test looks in the wrong place"
    assert {name for name in talking if room(name) != "comm"} == set()


def test_no_class_name_means_two_things():
    names = Counter(
        node.name for tree in modules().values() for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )  # fmt: skip
    assert {name for name, count in names.items() if count > 1} == set()


def test_no_folder_is_fuller_than_a_reader_can_see():
    rooms = (*PACKAGES, "native", "tests", "docs")
    counts = Counter(
        str(path.parent.relative_to(REPOSITORY))
        for name in rooms for path in (REPOSITORY / name).rglob("*") if path.suffix in SUFFIXES
    )  # fmt: skip
    full = {folder: count for folder, count in counts.items() if count > MOST_FILES}
    assert full == {folder: count for folder, count in FULLER.items() if counts[folder] > MOST_FILES}


def test_no_function_is_longer_than_the_longest_were():
    """Lines from its name to its end, with its docstring."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    lines = {
        f"{name}.{node.name}, line {node.lineno}": (node.end_lineno or 0) - node.lineno + 1
        for name, tree in modules().items() for node in ast.walk(tree) if isinstance(node, kinds)
    }  # fmt: skip
    assert len(lines) > 1000, "no functions found: the test looks in the wrong place"
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
