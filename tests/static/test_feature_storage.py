"""Features that stay in the part files: read as they are, the same answer as from memory, and what a rank holds."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from itertools import product

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from places import HELPERS
from pretended_device import pretended_device
from static_runs import (
    APART,
    make_static_parts,
    narrow,
    open_graph_session,
    open_graph_trainer,
    plain,
    reference_run,
    static_config,
    typed,
    whole_and_stopped,
)
from test_edge_features import featured

from hpcgnn import native
from hpcgnn.comm.devices import DeviceRoom
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files
from hpcgnn.graph.columns import (
    GAP,
    LONGEST,
    FileTable,
    Piece,
    PinnedTable,
    RowReader,
    StoredColumn,
    _find_stretches,
    _near_rows,
    load,
    seen_from,
)
from hpcgnn.static import features, presample
from hpcgnn.static.features import hot_rows
from hpcgnn.static.inference import infer
from hpcgnn.static.plan import NODE_COLUMNS, GraphSampler
from hpcgnn.static.sampling.draw import BlockSampler
from hpcgnn.static.sampling.neighbors import NeighborSampler

MIB = 1 << 20


def write_pieces(folder, pieces: list[np.ndarray], **layout) -> StoredColumn:
    """A column in part files of their own."""
    found = []
    for number, rows in enumerate(pieces):
        path = folder / f"piece-{number}.h5"
        with files.writing(path, files.PART) as file:
            file.create_dataset("rows", data=rows, **(layout if len(rows) else {}))
        with files.open_checked(path, files.PART) as file:
            found.append(Piece.of(file["rows"]))
    return StoredColumn(found)


LAYOUTS = {
    "in one place": {},
    "chunks": {"chunks": (7, 3)},
    "large chunks": {"chunks": (1000, 3), "maxshape": (None, 3)},
}


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "i4"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_rows_are_read_in_any_order(tmp_path, layout, dtype):
    """From several files, one of them without rows; far apart and near each other."""
    rng = np.random.default_rng(1)
    pieces = [rng.integers(0, 200, (count, 3)).astype(dtype) for count in (1500, 0, 40)]
    column, whole = write_pieces(tmp_path, pieces, **LAYOUTS[layout]), np.concatenate(pieces)
    reader = RowReader(column)
    assert column.shape == whole.shape
    for count in (0, 1, 5, 700, len(whole)):
        rows = rng.permutation(len(whole))[:count]
        found = reader.read(rows)
        assert found.dtype == whole.dtype
        np.testing.assert_array_equal(found, whole[rows])
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in column.slabs()]), whole)


def test_what_cannot_be_read_in_place_is_named(tmp_path):
    rows = np.ones((50, 4), np.float32)
    for layout in ({"compression": "gzip"}, {"chunks": (10, 2)}):
        with pytest.raises(files.FileFormatError, match=r"piece-0.h5: .*features.storage device"):
            RowReader(write_pieces(tmp_path, [rows], **layout))
    with h5py.File(tmp_path / "holes.h5", "w") as file:
        file.create_dataset("feat", (50, 4), np.float32, chunks=(10, 4))[:20] = rows[:20]
    with h5py.File(tmp_path / "holes.h5") as file, pytest.raises(ValueError, match="not in whole rows"):
        _find_stretches(file["feat"])
    with pytest.raises(ValueError, match=r"piece-1.h5: .*3 columns of float32, .*4 of float32"):
        write_pieces(tmp_path, [rows, rows[:, :3]])
    reader = RowReader(write_pieces(tmp_path, [rows]))
    with open(tmp_path / "piece-0.h5", "r+b") as file:
        file.truncate(2400)
    with pytest.raises(files.FileFormatError, match=r"piece-0.h5: ends at byte \d+"):
        reader.read(np.arange(50))


def test_rows_near_each_other_are_read_at_once():
    """Those of one stretch with small gaps, up to a limit."""
    block, offset = np.array([0, 0, 0, 1, 1]), np.array([0, 16, 1 << 20, 0, 16 + GAP])
    assert list(_near_rows(block, offset, 16)) == [(0, 2), (2, 3), (3, 5)]
    many = 3 * LONGEST // (16 + GAP)
    ranges = list(_near_rows(np.zeros(many, np.int64), np.arange(many) * (16 + GAP), 16))
    assert [begin for begin, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
    assert 3 <= len(ranges) <= 4


def test_normalized_rows_are_bounded(tmp_path):
    """Whatever their signs; rows of zeros stay zeros, and NaN stays NaN."""
    rows = np.array([[1, -1.5, 0.4], [1, -1, 0], [1, 2, 1], [0, 0, 0], [-3, -1, 0], [np.nan, 1, 1]])
    column = write_pieces(tmp_path, [rows])
    expected = [[1 / 2.9, -1.5 / 2.9, 0.4 / 2.9], [0.5, -0.5, 0], [0.25, 0.5, 0.25], [0, 0, 0], [-0.75, -0.25, 0]]
    host = torch.device("cpu")
    in_memory = load(column, torch.float64, True, host)
    from_file = FileTable(column, torch.float64, True, host).gather(torch.arange(6))
    for table in (in_memory, from_file):
        torch.testing.assert_close(table[:5], torch.tensor(expected, dtype=torch.float64))
        assert table[5].isnan().all()


CASES = {
    "sage": (typed, {}),
    "embeddings beside features": (typed, {"node_embedding__types": ["paper"], "model__kind": "rgcn"}),
    "residual": (typed, {"model__residual": True, "model__norm": "layer"}),
    "normalized": (plain, {"model__kind": "gcn", "features__normalize": True}),
    "copies": (plain, {"features__cache_ratio": 0.2, **APART}),
    "narrow": (plain, {"features__wire": "bfloat16"}),
    "one layer": (plain, {"model__layers": 1, "sampling__fanouts": [3]}),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_in_files_give_the_answer_of_rows_in_memory(comm, mpi_tmp_path, case):
    """Losses of an epoch and exact inference after it; in float64 nothing but the order of additions in products may
    differ."""
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    found = []
    for storage, ratio in (("device", 0), ("pinned", 0), ("pinned", 0.3), ("file", 0)):
        stored = {"features__storage": storage, "features__device_ratio": ratio}
        config = static_config(**changes, **stored, eval__nodes_per_pass=37)
        trainer = open_graph_trainer(comm, parts, mpi_tmp_path, config)
        trainer.start_epoch(0)
        with trainer.session.plans("train", 0) as plans:
            losses = [trainer.train_step(plan)[0] for plan in plans]
        found.append((torch.tensor(losses), infer(trainer.session), trainer.session.graph.tables.hit_rate()))
    for other in found[1:]:
        for one, another in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, another, rtol=1e-9, atol=1e-12)


@contextmanager
def with_free(on_device: int, on_host: int):
    """A pretended GPU with so many free bytes, on a host with so many for each rank."""
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    with pretended_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceRoom, "free", lambda room: on_device)
        patch.setattr(features, "free_bytes", lambda: on_host * MPI.COMM_WORLD.size)
        yield


def storage_and_losses(comm, folder, parts, config) -> tuple[str, torch.Tensor]:
    trainer = open_graph_trainer(comm, parts, folder, config)
    trainer.start_epoch(0)
    with trainer.session.plans("train", 0) as plans:
        losses = torch.tensor([trainer.train_step(plan)[0] for plan in plans])
    storage = trainer.session.graph.tables.storage
    described = "\n".join(trainer.session.describe())
    assert {"pinned": "in pinned memory", "file": "in the part files"}.get(storage, "") in described
    trainer.session.close()
    return storage, losses


PLENTY = 1 << 40


@pytest.mark.parametrize(("short", "others", "storage"), [
    ((PLENTY, 0), (PLENTY, 0), "device"), ((100, PLENTY), (PLENTY, PLENTY), "pinned"),
    ((100, 100), (PLENTY, PLENTY), "file"), ((100, 100), (100, PLENTY), "file"),
])  # fmt: skip
def test_features_lie_where_there_is_room_on_all_ranks(comm, mpi_tmp_path, short, others, storage):
    """Although one rank alone is short of memory; with the answer of a rank that is not."""
    parts, config = make_static_parts(comm, plain, mpi_tmp_path), static_config()
    with with_free(*(short if comm.rank == comm.size - 1 else others)):
        chosen, losses = storage_and_losses(comm, mpi_tmp_path, parts, config)
    assert chosen == storage
    told = static_config(features__storage="device", comm__device="cpu")
    _, expected = storage_and_losses(comm, mpi_tmp_path, parts, told)
    torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("free", "changes", "storage"), [
    (3200, {}, "device"), (3000, {}, "file"),
    (100, {"features__hops": 2, "model__kind": "mlp", "sampling__fanouts": [0, 0]}, "device"),
    (100, {"train__full_graph": True, "model__kind": "gcn"}, "device"),
    (100, {"features__storage": "device"}, "device"),
])  # fmt: skip
def test_features_of_cpus_lie_in_memory_or_in_files(monkeypatch, tmp_path, free, changes, storage):
    """Three quarters of what is free are for 50 x 6 numbers of 8 bytes. Steps over the whole graph, and propagated
    features, need them in memory."""
    monkeypatch.setattr(features, "free_bytes", lambda: free)
    parts = make_static_parts(MPI.COMM_SELF, lambda path: plain(path, 50, 200), tmp_path)
    session = open_graph_session(MPI.COMM_SELF, parts, static_config(**changes))
    assert session.graph.tables.storage == storage


NARROW = {
    "sage": (typed, {}),
    "embeddings beside features": (typed, {"node_embedding__types": ["paper"], "model__kind": "rgcn"}),
    "normalized copies": (plain, {"features__normalize": True, "features__cache_ratio": 0.2, **APART}),
    "standardized": (plain, {"features__standardize": True, **APART}),
    "propagated": (plain, {"features__hops": 2, "model__kind": "mlp", "sampling__fanouts": [0, 0]}),
    "full graph": (plain, {"train__full_graph": True, "model__kind": "gcn"}),
    "features of edges": (lambda path: featured(path)[0], {"model__edge_features": True, **APART}),
    "features of edges, full graph": (
        lambda path: featured(path)[0],
        {"model__edge_features": True, "train__full_graph": True},
    ),
    "in files": (plain, {"features__storage": "file", "features__cache_ratio": 0.2, **APART}),
    "pinned": (plain, {"features__storage": "pinned", "features__device_ratio": 0.3}),
    "float32": (typed, {"train__precision": "float32", **APART}),
}


IN_ALL, BY_DTYPE = ("sage", "normalized copies"), ("float16", "bfloat16")


def losses_and_outputs(comm, folder, make, config) -> tuple[list[float], torch.Tensor, int]:
    """Of an epoch, and exact inference after it; and the bytes that both have sent, over all ranks."""
    trainer = open_graph_trainer(comm, make_static_parts(comm, make, folder), folder, config)
    session = trainer.session
    before = session.sent_bytes()
    trainer.start_epoch(0)
    with session.plans("train", 0) as plans:
        losses = [trainer.train_step(plan)[0] for plan in plans]
    outputs = infer(session)
    sent = session.world.total(session.sent_bytes() - before)
    session.close()
    return losses, outputs, sent


@pytest.mark.parametrize(("case", "name"), [*((case, "uint8") for case in NARROW), *product(IN_ALL, BY_DTYPE)])
def test_narrow_features_are_wide_ones_rounded(comm, mpi_tmp_path, case, name):
    """To the last bit, on any number of ranks; what one rank gives is what several do."""
    make, changes = NARROW[case]
    config = static_config(**changes, eval__nodes_per_pass=37)
    stored, rounded = (
        losses_and_outputs(comm, mpi_tmp_path / f"{widened}", narrow(make, name, widened), config)
        for widened in (False, True)
    )
    assert stored[0] == rounded[0]
    assert torch.equal(stored[1], rounded[1])
    assert stored[2] <= rounded[2]


def test_a_narrow_run_resumes_and_is_that_of_one_rank(comm, mpi_tmp_path):
    parts = make_static_parts(comm, narrow(plain, "uint8"), mpi_tmp_path)
    config = static_config(train__checkpoint_every=2, train__epochs=2, **APART)
    trainer, _, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, 3)
    second = open_graph_trainer(comm, parts, broken, config)
    second.resume()
    second.run()
    assert torch.equal(second.flat.parameter, trainer.flat.parameter)
    (mpi_tmp_path / f"alone-{comm.rank}").mkdir()
    alone = reference_run(parts, mpi_tmp_path, config)
    torch.testing.assert_close(alone.flat.parameter, trainer.flat.parameter, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "size"), [("float16", 2), ("bfloat16", 2), ("uint8", 1), (None, 4)])
def test_messages_and_tables_are_narrow(comm, mpi_tmp_path, name, size):
    """Bytes of the rows of a batch from other machines, and of what a rank holds, in float32."""
    parts = make_static_parts(comm, narrow(plain, name) if name else plain, mpi_tmp_path)
    shared = {"train__precision": "float32", **APART}
    session = open_graph_session(comm, parts, static_config(features__cache_ratio=0.1, **shared))
    rows, world, channel = session.graph.rows[0], session.world, session.graph.channel
    held = (16 + 6 * size) * (session.partition.num_nodes + rows.num_copies)
    assert session.graph.tables.held_bytes() == held
    fetch = session.loaders["train"].samplers[0].plan(session.batches["train"], 0, 0).fetches[0]
    before = channel.sent_bytes
    pulled = 0 if fetch.pulled is None else len(fetch.pulled)
    assert rows.fetch(fetch, "feature").dtype == torch.float32
    assert world.total(channel.sent_bytes - before) == world.total(pulled) * 6 * size
    assert world.size == 1 or world.total(pulled) > 0


SEEN = {
    "wide": (plain, {}),
    "narrow": (narrow(plain, "uint8"), {}),
    "bfloat16": (narrow(plain, "bfloat16"), {}),
    "typed, learned beside": (typed, {"node_embedding__types": ["paper"], "model__kind": "rgcn"}),
    "rounded as if sent": (plain, {"features__wire": "bfloat16"}),
}


@pytest.mark.several_ranks
@pytest.mark.parametrize("ranks_per_machine", [0, 2])
@pytest.mark.parametrize("case", SEEN)
def test_gpus_of_a_machine_read_each_others_pinned_rows(comm, mpi_tmp_path, case, ranks_per_machine):
    """All of a machine, without a message; those of others come as messages. Rows, losses and exact inference are those
    of the host."""
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    make, changes = SEEN[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    pinned = {"features__storage": "pinned", "features__device_ratio": 0.3}
    config = static_config(**changes, comm__ranks_per_machine=ranks_per_machine)
    expected = losses_and_rows(comm, mpi_tmp_path, parts, config)
    with pretended_device():
        on_device = static_config(**changes, **pinned, comm__ranks_per_machine=ranks_per_machine)
        found = losses_and_rows(comm, mpi_tmp_path, parts, on_device)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9 if one.dtype == torch.float64 else 1e-5, atol=1e-12)


def losses_and_rows(comm, folder, parts, config) -> list[torch.Tensor]:
    """Of an epoch; and the input rows of all nodes of each type, of which those of this machine come without a
    message."""
    trainer = open_graph_trainer(comm, parts, folder, config)
    session, found = trainer.session, []
    tables, channel, device = session.graph.tables, session.graph.channel, session.world.device
    assert tables.is_shared
    trainer.start_epoch(0)
    with session.plans("train", 0) as plans:
        losses = torch.tensor([trainer.train_step(plan)[0] for plan in plans])
    for kind, rows in enumerate(session.graph.rows):
        if "feature" not in rows.tables:
            continue
        starts = session.partition.book.of_type(kind).starts
        ids = np.arange(starts[0], starts[-1])
        near = rows.is_near(ids)
        assert near.all() == (config.comm.ranks_per_machine == 0 or comm.size == 2)
        fetch = rows.plan(ids[near], channel).to(device, channel)
        before = session.sent_bytes()
        found.append(rows.fetch(fetch, "feature").cpu())
        assert session.sent_bytes() == before
        everything = rows.plan(ids, channel).to(device, channel)
        found.append(rows.fetch(everything, "feature").cpu())
    found.append(infer(session).cpu())
    session.close()
    return [losses, *found]


@pytest.mark.several_ranks
def test_narrow_rows_of_a_machine_are_read_where_they_lie(comm, mpi_tmp_path):
    """No message brings them, in training or exact inference."""
    parts = make_static_parts(comm, narrow(plain, "float16"), mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(eval__nodes_per_pass=40))
    tables = session.graph.tables
    assert tables.near(0, "feature").table.dtype == torch.float16
    plan = session.loaders["train"].samplers[0].plan(session.batches["train"], 0, 0)
    before = session.graph.channel.sent_bytes
    session.graph.rows[0].fetch(plan.fetches[0], "feature")
    infer(session)
    assert session.world.total(session.graph.channel.sent_bytes - before) == 0


def test_a_dtype_of_messages_does_not_go_with_narrow_features(comm, mpi_tmp_path):
    parts = make_static_parts(comm, narrow(plain, "uint8"), mpi_tmp_path)
    message = "features.wire float16: column feat of node is stored as uint8, and travels so; leave features.wire empty"
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, static_config(features__wire="float16"))


@pytest.mark.serial
@pytest.mark.parametrize("hot", [[], [3, 50, 99]])
def test_hot_rows_are_taken_from_the_device(device, hot):
    """As rows that are not hot; they count as held twice."""
    rows, index = torch.randn(100, 5), torch.randint(0, 100, (300,))
    with device:
        table = PinnedTable(device.put(rows), np.array(hot, np.int64))
        assert torch.equal(table.gather(device.put(index)).cpu(), rows[index])
        assert table.held_bytes == 4 * (5 * (100 + len(hot)) + 100)


@pytest.mark.serial
@pytest.mark.parametrize(("most_steps", "most_added"), [(1000, 1 << 22), (4, 10), (1, 0)])
def test_rows_that_steps_want_are_counted(monkeypatch, most_steps, most_added):
    """Of all steps, or of some at equal distances; ids that were counted early are counted on."""
    monkeypatch.setattr(presample, "MOST_PRESAMPLED", most_steps)
    monkeypatch.setattr(presample, "MOST_ADDED", most_added)
    rng, world = np.random.default_rng(0), World.alone(CommConfig(device="cpu"))
    wanted = [[rng.choice(40, 15, replace=False), rng.choice(9, size)] for size in rng.integers(0, 2, 12)]
    is_near = [lambda ids: ids < 10, lambda ids: ids < 0]
    some = [wanted[number * 12 // min(12, most_steps)] for number in range(min(12, most_steps))]
    for kind, ranking in enumerate(presample.presample(wanted.__getitem__, 12, is_near, world)):
        uses = Counter(int(node) for step in some for node in step[kind] if not is_near[kind](node))
        assert np.array_equal(ranking.id, sorted(uses, key=lambda node: (-uses[node], node)))
        assert ranking.probability == pytest.approx([uses[node] / len(some) for node in ranking.id])


@pytest.mark.serial
def test_counting_ends_where_a_rank_has_met_many_rows(monkeypatch):
    """What was counted up to there is ranked."""
    monkeypatch.setattr(presample, "MOST_COUNTED", 20)
    wanted = [[np.arange(10 * step, 10 * step + 12)] for step in range(9)]
    (ranking,) = presample.presample(
        wanted.__getitem__, 9, [lambda ids: ids < 0], World.alone(CommConfig(device="cpu"))
    )
    assert ranking.id.tolist() == [10, 11, *range(10), *range(12, 22)]
    assert ranking.probability.tolist() == [1, 1] + [0.5] * 20


def test_the_most_used_rows_are_hot(tmp_path):
    parts = make_static_parts(MPI.COMM_SELF, plain, tmp_path)
    partition = open_graph_session(MPI.COMM_SELF, parts, static_config()).partition
    uses = np.bincount(partition.edges[0].src, minlength=150)
    hot = hot_rows(partition, 0, 0, 0.2)
    assert len(hot) == 30
    assert uses[hot].min() >= np.delete(uses, hot).max()


@pytest.mark.serial
@pytest.mark.gpu
def test_a_device_reads_pinned_memory_in_place():
    table, index = torch.randn(1000, 33), torch.randint(0, 1000, (5000,))
    view = seen_from(torch.device("cuda"), table)
    assert view.is_cuda
    assert view.data_ptr() == table.data_ptr()
    assert torch.equal(native.gather_rows(view, index.cuda()).cpu(), table[index])


@pytest.mark.parametrize("storage", ["device", "file"])
def test_a_rank_holds_its_share_and_its_copies(comm, mpi_tmp_path, storage):
    """Bytes over all ranks: of every node its id and degree, and its features unless they stay in the files; and of
    every copy all three."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(features__cache_ratio=0.2, **APART, features__storage=storage, train__precision="float32")
    session = open_graph_session(comm, parts, config)
    held, nodes = session.graph.tables.held_bytes(), session.partition.num_nodes
    copies = session.graph.rows[0].num_copies
    row = 8 + 8 + 6 * 4
    own = row if storage == "device" else 16
    assert held == own * nodes + row * copies
    assert session.world.total(held) == own * 150 + row * session.graph.tables.num_copies()
    assert any("MiB" in line for line in session.describe())


PEAK = """
import resource, sys
from pathlib import Path
from mpi4py import MPI
sys.path.insert(0, {tests!r})
from static_runs import open_graph_trainer, static_config
from hpcgnn.static.inference import infer

def run(folder, storage):
    config = static_config(features__storage=storage, features__cache_ratio=0.02, train__precision="float32",
                           train__batch_size=64, sampling__prefetch=0, data__check_hash=False, eval__nodes_per_pass=64,
                           comm__ranks_per_machine=1)
    trainer = open_graph_trainer(MPI.COMM_WORLD, Path(folder, "parts"), Path(folder), config)
    trainer.start_epoch(0)
    with trainer.session.plans("train", 0) as plans:
        for _, plan in zip(range(4), plans):
            trainer.train_step(plan)
    infer(trainer.session)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

narrow, wide = sys.argv[1:]
peaks = MPI.COMM_WORLD.gather([run(narrow, "file"), run(wide, "file"), run(wide, "device")])
if MPI.COMM_WORLD.rank == 0:
    print("PEAKS", *sum(peaks, []))
"""


@pytest.mark.launcher
@pytest.mark.nightly
def test_peak_memory_of_a_rank_is_its_share_and_its_copies(tmp_path, mpirun):
    """4 ranks, 64 MiB of features, against a run on the same graph with hardly any: the copies of a fiftieth, and
    where they are in memory a quarter of them; and 40 MiB for what is on its way."""
    for name, width in (("narrow", 1), ("wide", 2048)):
        make = lambda path, width=width: plain(path, 8192, 8000, width=width)  # noqa: E731
        make_static_parts(MPI.COMM_SELF, make, tmp_path / name)
    program = tmp_path / "peak.py"
    program.write_text(PEAK.format(tests=str(HELPERS)))
    found = mpirun(4, program, tmp_path / "narrow", tmp_path / "wide", env={"OMP_NUM_THREADS": "1"}).stdout
    peaks = np.array(found[found.index("PEAKS") :].split()[1:], float).reshape(4, 3)
    copies, share = 64 / 50, 64 / 4 * 1.05
    assert (peaks[:, 1] - peaks[:, 0]).max() < copies + 40
    assert (peaks[:, 2] - peaks[:, 0]).max() < copies + share + 40


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({"model__dropout": 0.0}, ()),
        ({"model__dropout": 0.0, "model__input_dropout": 0.1}, ("identity",)),
        ({"model__dropout": 0.0, "model__kind": "gcn"}, ("degree",)),
        ({"model__kind": "gcn"}, ("identity", "degree")),
    ],
)
def test_only_what_the_model_uses_of_its_nodes_is_fetched(comm, mpi_tmp_path, changes, columns):
    """And the losses are those of a sampler that fetches everything."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(**changes)
    assert config.model.node_columns == columns
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, config)
    session, losses = trainer.session, []
    sampler = session.loaders["train"].samplers[0]
    for step in range(3):
        plan = sampler.plan(session.batches["train"], 0, step)
        for name in NODE_COLUMNS:
            assert (len(getattr(plan.batch, name)[0]) > 0) == (name in columns and plan.batch.blocks[0].num_src[0] > 0)
        neighbors = NeighborSampler(session.partition, config.sampling.strategy, session.graph.channel)
        everything = GraphSampler(
            session.graph.rows, BlockSampler(neighbors, config.sampling, config.train.seed), session.goal.roots,
            config.train.seed, session.graph.channel, session.graph.channel, session.world.device,
        ).plan(session.batches["train"], 0, step)  # fmt: skip
        losses += [(session.task.train(plan), session.task.train(everything))]
    assert all(torch.equal(one, other) for one, other in losses)
