"""CUDA kernels against the CPU's: equal bit for bit, floating-point sums too (the same additions in the same order)."""

import hpcgnn_native
import numpy as np
import pytest
import torch

from hpcgnn import native
from hpcgnn.native import Random, Stream
from hpcgnn.native.dispatch import compute_backend, download, upload
from hpcgnn.native.relabel import Scratch, unique_on_device

pytestmark = pytest.mark.serial

OPERATIONS = (
    "sample_recent sample_uniform decay_keep temporal_reply count_neighbors sample_neighbors random_integers "
    "dropout_mask gather_rows scatter_rows segment_sum_rows count_reaching segment_sum segment_max "
    "segment_max_backward edge_products "
    "edge_attention edge_attention_backward unique_relabel last_event transpose_index "
    "attention_forward attention_backward "
    "unique_relabel_scratch_bytes last_event_scratch_bytes transpose_index_scratch_bytes"
).split()
ALL_DIFFERENT, FEW_KEYS = 1 << 62, 7


def random_ids(rng, size, limit):
    """Ids in [0, limit), one in ten of them padding."""
    return np.where(rng.random(size) < 0.1, -1, rng.integers(0, limit, size))


def random_history(rng, num_nodes, num_entries):
    """A T-CSR with equal times and, at the end, nodes without entries: (indptr, time, event)."""
    degree = np.bincount(rng.integers(0, max(1, num_nodes - 5), num_entries), minlength=num_nodes)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    gaps = rng.integers(1, 9, num_entries).cumsum()
    event = gaps - np.repeat(np.concatenate([[0], gaps])[indptr[:-1]], degree)
    return indptr, event // 7, event


# ------------------------------------------------------------------------------------------------------- without a GPU


def test_cuda_build_has_all_operations():
    if not native.features()["cuda"]:
        pytest.skip("built without CUDA")
    assert [name for name in OPERATIONS if not hasattr(hpcgnn_native.cuda, name)] == []


def test_tensors_without_kernels_are_refused():
    with pytest.raises(ValueError, match="no kernels for device meta"):
        compute_backend(torch.empty(3, device="meta"))


# ------------------------------------------------------------------------------------------- on a device and emulated


SIZES = pytest.mark.parametrize("size", [0, 1, 1000, 200_000])


@pytest.mark.parametrize("limit", [native.NO_LIMIT, 300])
@pytest.mark.parametrize("fanout", [1, 10, 200])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_sample_recent(device, size, fanout, limit):
    rng = np.random.default_rng(0)
    graph = random_history(rng, 500, 50_000)
    nodes, times = rng.integers(0, 500, size), rng.integers(0, 100, size)
    for since in (None, times - rng.integers(-2, 40, size)):
        expected = native.sample_recent(graph, nodes, times, fanout, event_limit=limit, since=since)
        arrays, bounds = device.put_all(*graph), {"event_limit": limit, "since": device.put(since)}
        with device:
            found = native.sample_recent(arrays, *device.put_all(nodes, times), fanout, **bounds)
        device.assert_same(found, expected)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [1, 10, 200])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_sample_uniform(device, size, fanout, replace):
    rng = np.random.default_rng(1)
    graph = random_history(rng, 500, 50_000)
    nodes, times, identity = rng.integers(0, 500, size), rng.integers(0, 100, size), rng.integers(0, 1 << 48, size)
    key = Random(seed=(1 << 55) + 3, stream=Stream.SAMPLE, step=5, epoch=2, hop=1, relation=4)
    there, arrays = device.put_all(*graph), device.put_all(nodes, times, identity)
    for since in (None, times - rng.integers(-2, 40, size)):
        options = {"replace": replace, "event_limit": 500}
        expected = native.sample_uniform(graph, nodes, times, identity, fanout, key, since=since, **options)
        with device:
            found = native.sample_uniform(there, *arrays, fanout, key, since=device.put(since), **options)
        device.assert_same(found, expected)


@pytest.mark.parametrize("half_life", [1, 100, 1 << 62])
@pytest.mark.parametrize("fanout", [1, 10, 200])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_decay_keep(device, size, fanout, half_life):
    rng = np.random.default_rng(10)
    count = rng.integers(0, fanout + 1, size).astype(np.int32)
    positions = np.where(np.arange(fanout) < count[:, None], rng.integers(0, 1000, (size, fanout)), -1)
    remote, age = rng.random((size, fanout)) < 0.7, rng.integers(0, 400, (size, fanout))
    key, identity = Random(3, Stream.DECAY, step=2), rng.integers(0, 1 << 48, size)
    there = device.put_all(positions, count, remote, age, identity)
    native.decay_keep(positions, count, remote, age, half_life, key, identity)
    with device:
        native.decay_keep(*there[:4], half_life, key, there[4])
    device.assert_same(there[:2], [positions, count])


@pytest.mark.parametrize("with_feature", [False, True])
@pytest.mark.parametrize("fanout", [1, 10, 200])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_temporal_reply(device, size, fanout, with_feature):
    rng = np.random.default_rng(11)
    other, time, feature = rng.integers(0, 1 << 40, (3, 5000))
    positions, times = random_ids(rng, (size, fanout), 5000), rng.integers(0, 1 << 40, size)
    arrays = other, time, feature if with_feature else None, positions, times
    expected = native.temporal_reply(*arrays)
    with device:
        found = native.temporal_reply(*device.put_all(*arrays))
    columns = 3 if with_feature else 2
    device.assert_same(found[:columns], expected[:columns])
    assert all(column is None for column in found[columns:])


@pytest.mark.parametrize("bound", [1, 1000, 3 << 30, (1 << 32) - 1])
@pytest.mark.parametrize(("size", "slots"), [(0, 3), (5, 0), (1, 1), (1000, 77), (200_000, 3)])
def test_random_integers(device, size, slots, bound):
    identity = np.random.default_rng(2).integers(0, 1 << 48, size)
    key = Random(7, Stream.NEGATIVE, step=9)
    expected = native.random_integers(key, identity, slots, bound)
    with device:
        found = native.random_integers(key, device.put(identity), slots, bound)
    device.assert_same([found], [expected])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 4, 100, 1030])
@pytest.mark.parametrize("size", [0, 1, 3000])
def test_dropout_mask(device, size, columns, dtype):
    identity = torch.randint(0, 1 << 48, (size,), generator=torch.Generator().manual_seed(3))
    key = Random(1, Stream.DROPOUT, step=3, relation=2)
    expected = native.dropout_mask(key, identity, columns, 0.3, dtype)
    with device:
        found = native.dropout_mask(key, device.put(identity), columns, 0.3, dtype)
    device.assert_same([found], [expected])


@pytest.mark.parametrize("limit", [1, FEW_KEYS, 100_000, ALL_DIFFERENT])
@SIZES
def test_unique_relabel(device, size, limit):
    ids = random_ids(np.random.default_rng(4), size, limit)
    with device:
        found = native.unique_relabel(device.put(ids))
    device.assert_same(found, native.unique_relabel(ids))


@pytest.mark.parametrize("limit", [1, FEW_KEYS, 100_000, ALL_DIFFERENT])
@SIZES
def test_last_event(device, size, limit):
    rng = np.random.default_rng(5)
    nodes, events = random_ids(rng, size, limit), rng.integers(-3, 1000, size)
    with device:
        found = native.last_event(*device.put_all(nodes, events))
    device.assert_same([found], [native.last_event(nodes, events)])


@pytest.mark.parametrize("targets", [1, 7, 8, 255, 256, 300_000])
@SIZES
def test_transpose_index(device, size, targets):
    index = random_ids(np.random.default_rng(6), size, targets).astype(np.int32)
    with device:
        found = native.transpose_index(device.put(index), targets)
    device.assert_same(found, native.transpose_index(index, targets))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64])
@pytest.mark.parametrize("tail", [(), (1,), (5,), (172,), (3, 8)])
@pytest.mark.parametrize("size", [0, 1, 3000])
def test_gather_and_scatter_rows(device, size, tail, dtype):
    generator = torch.Generator().manual_seed(7)
    table = torch.randint(0, 2, (4000, *tail), generator=generator).to(dtype)
    index = torch.randperm(len(table), generator=generator)[:size]
    index[::10] = -1
    rows, target, there = native.gather_rows(table, index), torch.ones_like(table), device.put(torch.ones_like(table))
    native.scatter_rows(target, index, rows)
    with device:
        found = native.gather_rows(device.put(table), device.put(index))
        native.scatter_rows(there, device.put(index), found)
    device.assert_same([found, there], [rows, target])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 5, 300, 40_000])
def test_count_reaching(device, width, dtype):
    generator = torch.Generator().manual_seed(8)
    scores = torch.randint(-3, 4, (9, width), generator=generator).to(dtype)
    row, threshold = torch.randint(0, 9, (50,), generator=generator), torch.randint(-3, 4, (50,), generator=generator)
    expected = native.count_reaching(scores, row, threshold.to(dtype))
    with device:
        found = native.count_reaching(device.put(scores), device.put(row), device.put(threshold.to(dtype)))
    device.assert_same([found], [expected])


def test_gather_rows_from_an_address_that_is_not_aligned(device):
    table = torch.arange(4 * 1001, dtype=torch.float32)[4:].view(1000, 4)
    index = torch.arange(1000).flip(0)
    expected = native.gather_rows(table, index)
    for offset in range(4):
        memory = device.put(torch.zeros(4000 + offset))
        memory[offset:] = device.put(table).reshape(-1)
        with device:
            found = native.gather_rows(memory[offset:].view(1000, 4), device.put(index))
        device.assert_same([found], [expected])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 30, 172, 700])
@pytest.mark.parametrize(("size", "segments"), [(0, 4), (1, 1), (20_000, 3), (20_000, 5000)])
def test_segment_sum_rows(device, size, segments, width, dtype):
    rows = torch.randn(size, width, dtype=dtype, generator=torch.Generator().manual_seed(8))
    index = random_ids(np.random.default_rng(8), size, segments).astype(np.int32)
    transpose = [torch.from_numpy(array) for array in native.transpose_index(index, segments)]
    expected = native.segment_sum_rows(rows, *transpose)
    with device:
        found = native.segment_sum_rows(device.put(rows), *device.put_all(*transpose))
    device.assert_same([found], [expected])


def test_too_small_scratch_is_refused(device):
    ids, memory = device.put(np.arange(100)), device.put(torch.empty(10, dtype=torch.uint8))
    with device:
        kernels, stream = compute_backend(ids)
    with pytest.raises(ValueError, match="scratch has 10 bytes"):
        kernels.last_event(ids, ids, memory.new_empty(100), memory, stream)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (70_001, 130)])
def test_tensors_travel_by_pinned_memory(shape):
    """Also what is still being produced when it is asked for."""
    given = torch.randn(shape)
    there = upload(given, torch.device("cuda"))
    torch.cuda._sleep(20_000_000)
    assert torch.equal(download(there * 2), given * 2)


@pytest.mark.gpu
def test_kernels_follow_the_current_stream():
    """Inputs that are still being produced on another stream are seen complete, and scratch is reused between calls."""
    rng = np.random.default_rng(9)
    ids = random_ids(rng, 300_000, 50_000)
    expected, winners = native.unique_relabel(ids), native.last_event(ids, np.zeros_like(ids))
    scratch, stream = Scratch(), torch.cuda.Stream()
    source = torch.from_numpy(ids).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.cuda._sleep(20_000_000)
            unique, inverse, count = unique_on_device(source.clone(), scratch)
            winner = native.last_event(source.clone(), torch.zeros_like(source), scratch)
            found = unique[: int(count)].cpu().numpy(), inverse.cpu().numpy(), winner.cpu().numpy()
            assert all(map(np.array_equal, found, (*expected, winners)))
