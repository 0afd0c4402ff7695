"""A short run of the fuzzer: its valid inputs are taken, changed ones are taken or refused."""

from __future__ import annotations

import pytest
from fuzz import OUTCOMES, SECONDS, TAKEN, Tally, fuzz, isolated, make_source
from fuzz_readers import READERS

pytestmark = pytest.mark.serial
CASES = 1


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


@pytest.mark.parametrize(
    ("reader", "innermost", "is_finding"),
    [("graph static", "h5py/_hl/attrs.py", False), ("graph static", "data_tools/inspect.py", True),
     ("part static", "h5py/_hl/attrs.py", True)],
)  # fmt: skip
def test_a_hang_is_no_finding_only_inside_hdf5_on_a_file_without_a_hash(reader, innermost, is_finding):
    tally = Tally()
    log = f'Thread 0x1 (most recent call first):\n  File "/x/{innermost}", line 7 in f\n  File "/x/cli.py", line 9'
    tally.add(reader, 3, SECONDS + 1000, log)
    assert bool(tally.findings) == is_finding
    assert tally.outcomes.total() == 1
