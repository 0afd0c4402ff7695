"""Hashes and buckets on disk: equal ids meet, and nothing is lost."""

import numpy as np
import pyarrow as pa
import pytest

from data_tools.source.id_spaces import fixed_width
from data_tools.source.segments import ArraySegments, IdSegments, hash_rows, hash_text, mix, text_parts, to_buckets

pytestmark = pytest.mark.serial

TEXTS = ["", "a", "b", "ab", "ba", "ä", "a" * 70_000, "a" * 70_001, "user-1", "user-10", "\x00", "\x00\x00", "日本"]


def test_equal_text_has_equal_hashes_wherever_it_stands():
    rng = np.random.default_rng(0)
    expected = {text: int(hash_text(pa.array([text]))[0]) for text in TEXTS}
    assert len(set(expected.values())) == len(TEXTS)
    chosen = rng.integers(0, len(TEXTS), 2000)
    text = pa.array([TEXTS[i] for i in chosen])
    for piece in (text, text[7:], text.slice(3, 100), text.cast(pa.large_string())[5:9]):
        assert hash_text(piece).tolist() == [expected[item] for item in piece.to_pylist()]


def test_hashes_spread_ids_that_differ_by_little():
    names = pa.array([f"http://example.org/entity/{i}/page" for i in range(40_000)])
    numbers = np.arange(40_000) * 4096
    for hashes in (hash_text(names), mix(numbers), hash_rows([numbers, numbers])):
        _, _, bounds = to_buckets(hashes, 16)
        assert len(np.unique(hashes)) == 40_000
        assert np.diff(bounds).min() > 2200
        assert np.diff(bounds).max() < 2800


@pytest.mark.parametrize("text", [False, True])
def test_ids_come_back_by_bucket(tmp_path, text):
    rng = np.random.default_rng(1)
    segments = IdSegments(tmp_path, text)
    expected: list[list] = [[] for _ in range(5)]
    for size in (100, 0, 1, 57):
        numbers = rng.integers(0, 40, size)
        ids = pa.array([TEXTS[i % len(TEXTS)] for i in numbers], pa.large_string()) if text else pa.array(numbers)
        buckets, order, bounds = to_buckets(hash_text(ids) if text else mix(numbers), 5)
        segments.append(ids.take(pa.array(order)), bounds)
        for bucket, value in zip(buckets, ids.to_pylist(), strict=True):
            expected[bucket].append(value)
    for bucket in range(5):
        found = [segments.read(batch, bucket).to_pylist() for batch in range(segments.num_batches)]
        assert [value for piece in found for value in piece] == expected[bucket]


def test_rows_are_written_in_place_of_others(tmp_path):
    segments = ArraySegments(tmp_path)
    rows = np.arange(30.0).reshape(10, 3)
    segments.append(rows[:6], np.array([0, 2, 6]))
    segments.append(rows[6:], np.array([0, 4, 4]))
    assert np.concatenate([segments.read(0, 0), segments.read(1, 0)]).tolist() == rows[[0, 1, 6, 7, 8, 9]].tolist()
    assert np.concatenate([segments.read(0, 1), segments.read(1, 1)]).tolist() == rows[2:6].tolist()
    low, high = segments.span(1, 0)
    segments.put(low, -rows[low:high])
    assert segments.get(5, 8).tolist() == [rows[5].tolist(), (-rows[6]).tolist(), (-rows[7]).tolist()]


def test_text_of_fixed_width():
    texts = ["", "bär", "a", "日本"]
    found = fixed_width(pa.array(["skipped", *texts])[1:], np.dtype("S6"))
    assert found.tolist() == [text.encode() for text in texts]
    assert text_parts(pa.array(texts)[1:3])[0].tolist() == [0, 4, 5]
