"""Generated lists of snapshots and contacts, as text: what is read is what was written, or it is refused by file and
row."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools.snapshots.text import MOST_SNAPSHOTS, read_contacts, read_lists
from hpcgnn.graph.files import FileFormatError

pytestmark = pytest.mark.serial

NUMBER = st.integers(0, 5) | st.sampled_from([(1 << 31) - 1, 1 << 31, 1 << 53, (1 << 53) + 1, (1 << 63) - 1])
# Without what separates columns, or begins a comment.
NAME = st.text(st.sampled_from("aZ0.-'`;|äßλ中🙂"), min_size=1, max_size=5)
CONTACT = st.tuples(NUMBER, st.integers(0, 4), st.integers(0, 4))
LARGEST = float(np.finfo(np.float32).max)
WEIGHT = st.sampled_from([0.0, -0.0, 1e-45, 1e-46, LARGEST, 1.1 * LARGEST, 0.1]) | st.floats(-1e300, 1e300)


@pytest.fixture
def folder(tmp_path):
    """A folder that an example empties before it begins."""
    return tmp_path / "example"


@given(
    rows=st.lists(st.tuples(st.integers(0, 4) | NUMBER, NUMBER, NUMBER, WEIGHT), min_size=1, max_size=6),
    names=st.none() | st.lists(NAME, min_size=6, max_size=6, unique=True), weighted=st.booleans(),
    separator=st.sampled_from([",", " ", "\t", "  "]), end=st.sampled_from(["\n", "\r\n"]), header=st.booleans(),
    bom=st.booleans(), comment=st.sampled_from(["", "# none\n"]),
)  # fmt: skip
def test_lists(folder, rows, names, weighted, separator, end, header, bom, comment):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "edges.txt"
    word = str if names is None else lambda number: names[number % 6]
    ends = [(word(u), word(v)) for _, u, v, _ in rows]
    lines = [("snapshot", "u", "v", "weight")[: 3 + weighted]] if header else []
    lines += [(str(row[0]), *pair, repr(row[3]))[: 3 + weighted] for row, pair in zip(rows, ends, strict=True)]
    text = comment + "".join(separator.join(line) + end for line in lines)
    path.write_text(text, encoding="utf-8-sig" if bom else "utf-8", newline="")
    number, weight = np.array([row[0] for row in rows]), np.array([row[3] for row in rows])
    with np.errstate(over="ignore"):
        stored = weight.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(stored)) if weighted else []
    if len(wrong) or int(number.max()) - int(number.min()) >= MOST_SNAPSHOTS:
        with pytest.raises(FileFormatError, match=r"edges\.txt: .*(row \d|snapshots)"):
            read_lists(path, "int" if names is None else "string")
        return
    graph = read_lists(path, "int" if names is None else "string")
    known = sorted({end for pair in ends for end in pair}, key=int if names is None else str.encode)
    assert [int(node) if names is None else node.decode() for node in graph.id] == (
        [int(node) for node in known] if names is None else known
    )
    assert graph.first.tolist() == (number - number.min()).tolist()
    assert graph.num_snapshots == number.max() - number.min() + 1
    assert [(known[u], known[v]) for u, v in zip(graph.src, graph.dst, strict=True)] == ends
    if weighted:
        assert graph.edges["weight"].dtype == np.float32
        assert graph.edges["weight"].tobytes() == stored.tobytes()


@given(
    days=st.lists(st.lists(CONTACT, max_size=5), min_size=1, max_size=4),
    merge=st.booleans(), separator=st.sampled_from([" ", "\t"]), far=st.sampled_from([1, 1 << 40]),
)  # fmt: skip
def test_contacts(folder, days, merge, separator, far):
    """A file a snapshot, in order of the numbers in its name; both directions of every contact."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    days = [day or [(0, 1, 2)] for day in days]
    for number, day in enumerate(days):
        lines = [separator.join(map(str, (t, i * far, j * far))) for t, i, j in day]
        (folder / f"day_{9 + number}.txt").write_text("\n".join(lines) + "\n")
    graph = read_contacts(folder, merge)
    expected = []
    for number, day in enumerate(days):
        both = [(number, *pair) for _, i, j in day for pair in {(i * far, j * far), (j * far, i * far)}]
        expected += set(both) if merge else both
    id_of = graph.id.tolist()
    found = [(day, id_of[u], id_of[v]) for day, u, v in zip(graph.first, graph.src, graph.dst, strict=True)]
    assert sorted(found) == sorted(expected)
    if merge:
        counts = [sum({i * far, j * far} == {u, v} for _, i, j in days[day]) for day, u, v in found]
        assert graph.edges["weight"].tolist() == counts
