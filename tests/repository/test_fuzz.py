"""A short run of the fuzzer: its valid inputs are taken, changed ones are taken or refused."""

from __future__ import annotations

import pytest
from fuzz import OUTCOMES, TAKEN, fuzz, isolated, make_source
from fuzz_readers import READERS

# It starts processes that need the cores.
pytestmark = [pytest.mark.launcher, pytest.mark.serial]
CASES = 2


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The valid input of every reader."""
    folder = tmp_path_factory.mktemp("sources")
    return {name: make_source(name, folder) for name in READERS}


def test_valid_inputs_are_taken(sources, tmp_path):
    for number, (name, source) in enumerate(sources.items()):
        code, log, *_ = isolated(READERS[name], source, tmp_path / str(number), "")
        assert code == TAKEN, f"{name}: {OUTCOMES[code]}\n{log}"


def test_changed_inputs_are_taken_or_refused(sources):
    tally = fuzz(sources, 7, 600, range(CASES))
    assert not tally.findings
    assert tally.outcomes.total() == CASES * len(sources)
    assert min(tally.outcomes["refused"], tally.outcomes["taken"]) > len(sources) // 4
