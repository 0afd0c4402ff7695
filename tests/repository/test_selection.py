"""Which tests run on how many ranks, without starting any."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import selection
from conftest import clean_environment
from places import REPOSITORY, TESTS

pytestmark = pytest.mark.serial

MARKS = {
    "any": [], "several": [pytest.mark.several_ranks], "three or four": [pytest.mark.ranks(3, 4)],
    "one of both": [pytest.mark.several_ranks, pytest.mark.ranks(1, 4)], "one": [pytest.mark.serial],
    "a job": [pytest.mark.launcher],
}  # fmt: skip
NUMBERS = {"any": {1, 2, 3, 4}, "several": {2, 3, 4}, "three or four": {3, 4}, "one of both": {4}}


class Item(SimpleNamespace):
    """A test, as far as its selection looks at it."""

    __hash__ = object.__hash__


def item_of(path, marks):
    def iterate(name):
        return (mark.mark for mark in marks if mark.name == name)

    closest = lambda name: next(iterate(name), None)  # noqa: E731
    return Item(path=path, nodeid=str(path), iter_markers=iterate, get_closest_marker=closest)


def numbers_of(item) -> set[int]:
    """Of ranks, on which an item runs once."""
    return {
        ranks for ranks in range(1, 9)
        if selection.RankSelection(ranks, True, None, lambda _: True).why_not(item) is None
    }  # fmt: skip


@pytest.mark.parametrize("marks", MARKS)
def test_every_test_runs_once_on_a_number_of_ranks_that_it_is_for(marks):
    found = Counter()
    for path in sorted(TESTS.rglob("test_*.py")):
        (ranks,) = numbers_of(item_of(path, MARKS[marks]))
        found[ranks] += 1
    assert set(found) == NUMBERS.get(marks, {1})


@pytest.mark.parametrize(("core", "reason"), [(None, None), ((), "long")], ids=["all", "short"])
def test_a_long_test_is_none_of_the_short_suite(core, reason):
    item = item_of(TESTS / "test_any.py", [pytest.mark.serial, pytest.mark.long])
    assert selection.RankSelection(1, True, core, lambda _: True).why_not(item) == reason


@pytest.mark.parametrize(("count", "kept"), [(1, [0]), (4, [0, 1, 2, 3]), (5, [0, 2, 3, 4]), (9, [0, 3, 5, 7])])
def test_some_cases_of_a_test_that_knows_ranks_stand_for_all(count, kept):
    cases = [item_of(f"test_a.py::test_b[{case}]", []) for case in range(count)]
    alone = [item_of(f"test_a.py::test_c[{case}]", [pytest.mark.serial]) for case in range(count)]
    left_out = selection.further_cases([*cases, *alone], 4)
    assert [place for place, case in enumerate(cases) if case not in left_out] == kept
    assert not any(case in left_out for case in alone)


@pytest.mark.parametrize(("once", "core", "kept"), [(False, None, 20), (True, None, 4), (True, (), 2), (False, (), 2)])
def test_how_many_cases_a_session_runs(once, core, kept):
    cases = [item_of(TESTS / "test_any.py", []) for _ in range(20)]
    ranks = next(iter(numbers_of(cases[0]))) if once else 1
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config = SimpleNamespace(hook=hook, args=["tests/test_any.py::test_b"])
    selection.RankSelection(ranks, once, core, lambda _: True).pytest_collection_modifyitems(config, cases)
    assert len(cases) == kept


def test_tests_for_more_ranks_than_a_suite_starts_are_left_to_others():
    assert numbers_of(item_of(TESTS / "test_any.py", [pytest.mark.ranks(8)])) == set()


def test_single_tests_can_be_asked_for_in_the_short_suite():
    """Those of core.toml in the same file are no reason to refuse."""
    one = "tests/static/test_graph_predict.py::test_embeddings_are_what_the_output_layer_takes"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--short", "--collect-only", one]
    ended = subprocess.run(
        command, cwd=REPOSITORY, env=clean_environment(), capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
