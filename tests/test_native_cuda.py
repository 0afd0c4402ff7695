"""CUDA kernels against the CPU's: equal bit for bit, floating-point sums too (the same additions in the same order).

The passes of the relabelling kernels also run on host threads here, so that their logic is tested without a GPU.
"""

import ctypes

import numpy as np
import pytest
import torch
from compiled_elements import compile_elements

from hpcgnn import _native, native, native_cuda
from hpcgnn.native import Random, Stream

OPERATIONS = (
    "sample_recent sample_uniform decay_keep count_neighbors sample_neighbors random_integers dropout_mask "
    "gather_rows scatter_rows segment_sum_rows unique_relabel last_event transpose_index "
    "sample_recent sample_uniform decay_keep random_integers dropout_mask gather_rows scatter_rows segment_sum_rows "
    "segment_sum segment_max segment_max_backward edge_products edge_attention edge_attention_backward "
    "unique_relabel last_event transpose_index "
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


def on_device(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(array)).cuda() for array in arrays]


def assert_same(device_results, host_results):
    for mine, expected in zip(device_results, host_results, strict=True):
        expected = torch.as_tensor(expected)
        assert mine.is_cuda
        assert mine.dtype == expected.dtype
        assert torch.equal(mine.cpu(), expected)


# ------------------------------------------------------------------------------------------------------- without a GPU


def test_cuda_build_has_all_operations():
    if not native.features()["cuda"]:
        pytest.skip("built without CUDA")
    assert [name for name in OPERATIONS if not hasattr(_native.cuda, name)] == []


def test_tensors_without_kernels_are_refused():
    with pytest.raises(ValueError, match="no kernels for device meta"):
        native_cuda.backend(torch.empty(3, device="meta"))


@pytest.fixture(scope="module")
def elements(tmp_path_factory):
    """The element functions of the relabelling passes, compiled for host threads."""
    loaded = compile_elements("relabel_elements.cpp", tmp_path_factory.mktemp("elements"))
    loaded.unique_relabel.restype = ctypes.c_int64
    return loaded


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("limit", [FEW_KEYS, 3000, ALL_DIFFERENT])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_relabel_passes_equal_the_cpu(elements, size, limit, threads):
    ids = random_ids(np.random.default_rng(size + limit), size, limit)
    unique, inverse = np.empty_like(ids), np.empty(size, np.int32)
    count = elements.unique_relabel(pointer(ids), ctypes.c_int64(size), pointer(unique), pointer(inverse), threads)
    expected_unique, expected_inverse = native.unique_relabel(ids)
    assert np.array_equal(unique[:count], expected_unique)
    assert np.array_equal(inverse, expected_inverse)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("limit", [FEW_KEYS, 3000, ALL_DIFFERENT])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_last_event_passes_equal_the_cpu(elements, size, limit, threads):
    rng = np.random.default_rng(size + limit)
    nodes, events = random_ids(rng, size, limit), rng.integers(-3, 100, size)
    winner = np.empty(size, np.uint8)
    elements.last_event(pointer(nodes), pointer(events), ctypes.c_int64(size), pointer(winner), threads)
    assert np.array_equal(winner.view(bool), native.last_event(nodes, events))


@pytest.mark.parametrize("targets", [1, 7, 8, 255, 256, 5000])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_transpose_passes_equal_the_cpu(elements, size, targets):
    index = random_ids(np.random.default_rng(size + targets), size, targets).astype(np.int32)
    indptr, order = np.empty(targets + 1, np.int64), np.empty(size, np.int64)
    sizes = ctypes.c_int64(size), ctypes.c_int64(targets)
    elements.transpose_index(pointer(index), *sizes, pointer(indptr), pointer(order), 4)
    expected_indptr, expected_order = native.transpose_index(index, targets)
    assert np.array_equal(indptr, expected_indptr)
    assert np.array_equal(order[: indptr[-1]], expected_order)


# ---------------------------------------------------------------------------------------------------------- on a device


SIZES = pytest.mark.parametrize("size", [0, 1, 1000, 1_000_000])


@pytest.mark.gpu
@pytest.mark.parametrize("limit", [native.NO_LIMIT, 300])
@pytest.mark.parametrize("fanout", [1, 10, 200])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_sample_recent(size, fanout, limit):
    rng = np.random.default_rng(0)
    graph = random_history(rng, 500, 50_000)
    nodes, times = rng.integers(0, 500, size), rng.integers(0, 100, size)
    for since in (None, times - rng.integers(-2, 40, size)):
        bounds = {"event_limit": limit, "since": since}
        on_gpu = bounds | {"since": None if since is None else on_device(since)[0]}
        device = native.sample_recent(on_device(*graph), *on_device(nodes, times), fanout, **on_gpu)
        assert_same(device, native.sample_recent(graph, nodes, times, fanout, **bounds))


@pytest.mark.gpu
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [1, 10, 200])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_sample_uniform(size, fanout, replace):
    rng = np.random.default_rng(1)
    graph = random_history(rng, 500, 50_000)
    nodes, times, identity = rng.integers(0, 500, size), rng.integers(0, 100, size), rng.integers(0, 1 << 48, size)
    key = Random(seed=(1 << 55) + 3, stream=Stream.SAMPLE, step=5, epoch=2, hop=1, relation=4)
    arrays = on_device(nodes, times, identity)
    for since in (None, times - rng.integers(-2, 40, size)):
        options = {"replace": replace, "event_limit": 500, "since": since}
        on_gpu = options | {"since": None if since is None else on_device(since)[0]}
        device = native.sample_uniform(on_device(*graph), *arrays, fanout, key, **on_gpu)
        assert_same(device, native.sample_uniform(graph, nodes, times, identity, fanout, key, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("half_life", [1, 100, 1 << 62])
@pytest.mark.parametrize("fanout", [1, 10, 200])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_decay_keep(size, fanout, half_life):
    rng = np.random.default_rng(10)
    count = rng.integers(0, fanout + 1, size).astype(np.int32)
    positions = np.where(np.arange(fanout) < count[:, None], rng.integers(0, 1000, (size, fanout)), -1)
    remote, age = rng.random((size, fanout)) < 0.7, rng.integers(0, 400, (size, fanout))
    key, identity = Random(3, Stream.DECAY, step=2), rng.integers(0, 1 << 48, size)
    on_gpu = on_device(positions, count, remote, age, identity)
    native.decay_keep(*on_gpu[:4], half_life, key, on_gpu[4])
    native.decay_keep(positions, count, remote, age, half_life, key, identity)
    assert_same(on_gpu[:2], [positions, count])


@pytest.mark.gpu
@pytest.mark.parametrize("bound", [1, 1000, 3 << 30, (1 << 32) - 1])
@pytest.mark.parametrize(("size", "slots"), [(0, 3), (5, 0), (1, 1), (1000, 77), (1_000_000, 3)])
def test_random_integers(size, slots, bound):
    identity = np.random.default_rng(2).integers(0, 1 << 48, size)
    key = Random(7, Stream.NEGATIVE, step=9)
    device = native.random_integers(key, *on_device(identity), slots, bound)
    assert_same([device], [native.random_integers(key, identity, slots, bound)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 4, 100, 1030])
@pytest.mark.parametrize("size", [0, 1, 3000])
def test_dropout_mask(size, columns, dtype):
    identity = torch.randint(0, 1 << 48, (size,), generator=torch.Generator().manual_seed(3))
    key = Random(1, Stream.DROPOUT, step=3, relation=2)
    device = native.dropout_mask(key, identity.cuda(), columns, 0.3, dtype)
    assert_same([device], [native.dropout_mask(key, identity, columns, 0.3, dtype)])


@pytest.mark.gpu
@pytest.mark.parametrize("limit", [1, FEW_KEYS, 100_000, ALL_DIFFERENT])
@SIZES
def test_unique_relabel(size, limit):
    ids = random_ids(np.random.default_rng(4), size, limit)
    assert_same(native.unique_relabel(*on_device(ids)), native.unique_relabel(ids))


@pytest.mark.gpu
@pytest.mark.parametrize("limit", [1, FEW_KEYS, 100_000, ALL_DIFFERENT])
@SIZES
def test_last_event(size, limit):
    rng = np.random.default_rng(5)
    nodes, events = random_ids(rng, size, limit), rng.integers(-3, 1000, size)
    assert_same([native.last_event(*on_device(nodes, events))], [native.last_event(nodes, events)])


@pytest.mark.gpu
@pytest.mark.parametrize("targets", [1, 255, 256, 300_000])
@SIZES
def test_transpose_index(size, targets):
    index = random_ids(np.random.default_rng(6), size, targets).astype(np.int32)
    assert_same(native.transpose_index(*on_device(index), targets), native.transpose_index(index, targets))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64])
@pytest.mark.parametrize("tail", [(), (1,), (5,), (172,), (3, 8)])
@pytest.mark.parametrize("size", [0, 1, 30_000])
def test_gather_and_scatter_rows(size, tail, dtype):
    generator = torch.Generator().manual_seed(7)
    table = torch.randint(0, 2, (40_000, *tail), generator=generator).to(dtype)
    index = torch.randperm(len(table), generator=generator)[:size]
    index[::10] = -1
    rows, device_rows = native.gather_rows(table, index), native.gather_rows(table.cuda(), index.cuda())
    assert_same([device_rows], [rows])
    target, device_target = torch.ones_like(table), torch.ones_like(table).cuda()
    native.scatter_rows(target, index, rows)
    native.scatter_rows(device_target, index.cuda(), device_rows)
    assert_same([device_target], [target])


@pytest.mark.gpu
def test_gather_rows_from_an_address_that_is_not_aligned():
    table = torch.arange(4 * 1001, dtype=torch.float32)[4:].view(1000, 4)
    index = torch.arange(1000).flip(0)
    for offset in range(4):
        memory = torch.zeros(4000 + offset, device="cuda")
        memory[offset:] = table.reshape(-1).cuda()
        rows = native.gather_rows(memory[offset:].view(1000, 4), index.cuda())
        assert_same([rows], [native.gather_rows(table, index)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 30, 172, 700])
@pytest.mark.parametrize(("size", "segments"), [(0, 4), (1, 1), (20_000, 3), (20_000, 5000)])
def test_segment_sum_rows(size, segments, width, dtype):
    rows = torch.randn(size, width, dtype=dtype, generator=torch.Generator().manual_seed(8))
    index = random_ids(np.random.default_rng(8), size, segments).astype(np.int32)
    transpose = [torch.from_numpy(array) for array in native.transpose_index(index, segments)]
    device = native.segment_sum_rows(rows.cuda(), *(array.cuda() for array in transpose))
    assert_same([device], [native.segment_sum_rows(rows, *transpose)])


@pytest.mark.gpu
def test_kernels_follow_the_current_stream():
    """Inputs that are still being produced on another stream are seen complete, and scratch is reused between calls."""
    rng = np.random.default_rng(9)
    ids = random_ids(rng, 300_000, 50_000)
    expected = native.unique_relabel(ids)
    scratch, stream = native_cuda.Scratch(), torch.cuda.Stream()
    (source,) = on_device(ids)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.cuda._sleep(20_000_000)
            unique, inverse, count = native_cuda.unique_relabel(source.clone(), scratch)
            winner = native_cuda.last_event(source.clone(), torch.zeros_like(source), scratch)
            assert_same([unique[: int(count)], inverse], expected)
            assert_same([winner], [native.last_event(ids, np.zeros_like(ids))])


@pytest.mark.gpu
def test_too_small_scratch_is_refused():
    (ids,) = on_device(np.arange(100))
    memory = torch.empty(10, dtype=torch.uint8, device="cuda")
    with pytest.raises(ValueError, match="scratch has 10 bytes"):
        _native.cuda.last_event(ids, ids, memory.new_empty(100), memory, native_cuda.backend(ids)[1])
