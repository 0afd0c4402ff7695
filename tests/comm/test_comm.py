"""Exchange, routes, gradient sums: size-agnostic, against what each rank can compute alone."""

import errno
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch.torch_version import TorchVersion

from hpcgnn.comm import exchange, foreign
from hpcgnn.comm import world as worlds
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.gradients import FlatParameters, GradientSum
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.launch import LAUNCHER_SIZES, TORCH_SIZE, TORCH_TASK, launched_tasks
from hpcgnn.comm.relay import Handed, Relay
from hpcgnn.comm.route import Route, narrow_rows
from hpcgnn.comm.watchdog import IDLE, Watchdog, Where, describe, is_stuck
from hpcgnn.comm.world import CommConfig, DistributedError, World, gpu_query
from hpcgnn.graph.book import BlockOwnership, Book

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16]


@pytest.fixture(scope="module")
def world(comm):
    return World(CommConfig(device="cpu", threads=1, watchdog_seconds=0), comm)


def value_of(rank, peer, index):
    return 1000 * rank + 100 * peer + index


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tail", [(), (3,)])
@pytest.mark.parametrize("max_bytes", [1 << 30, 40])
@pytest.mark.parametrize("polite", [False, True])
@pytest.mark.parametrize("memory", ["host", "staged", "direct"])
def test_rows_arrive_by_source_in_order(comm, dtype, tail, max_bytes, polite, memory, monkeypatch):
    """max_bytes = 40 forces rounds; some pairs exchange nothing, and rank 0 sends nothing at all. staged, direct: as
    from the memory of a device."""
    monkeypatch.setattr(exchange, "on_cuda", lambda _: memory != "host")
    channel = Channel(comm, polite=polite, direct=memory == "direct", max_bytes=max_bytes)
    count = lambda source, peer: (source * (3 * peer + 2)) % 7  # noqa: E731
    send = np.array([count(comm.rank, peer) for peer in range(comm.size)])
    receive = channel.counts(send)
    assert receive.tolist() == [count(source, comm.rank) for source in range(comm.size)]
    build = lambda source, peer: [value_of(source, peer, i) for i in range(count(source, peer))]  # noqa: E731
    flat = [v for peer in range(comm.size) for v in build(comm.rank, peer)]
    rows = torch.tensor(flat, dtype=torch.int64).to(dtype).view(-1, *[1] * len(tail)).expand(-1, *tail)
    got = channel.rows(rows, send, receive)
    expected = torch.tensor([v for source in range(comm.size) for v in build(source, comm.rank)], dtype=torch.int64)
    assert torch.equal(got, expected.to(dtype).view(-1, *[1] * len(tail)).expand(-1, *tail))
    channel.close()


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("max_bytes", [1 << 30, 40])
def test_several_exchanges_under_way(comm, max_bytes, direct, monkeypatch):
    """Begun in one order, awaited in another, with exchanges between them; what was sent may be forgotten."""
    monkeypatch.setattr(exchange, "on_cuda", lambda _: direct)
    channel = Channel(comm, direct=direct, max_bytes=max_bytes)
    counts = np.full(comm.size, 5)
    begun = [
        channel.start(torch.arange(5 * comm.size) + 1000 * number + 100 * comm.rank, counts, counts)
        for number in range(3)
    ]
    told = channel.start_everyone(torch.full((3,), comm.rank), np.full(comm.size, 3))
    assert channel.counts(np.full(comm.size, comm.rank)).tolist() == list(range(comm.size))
    for number in (2, 0, 1):
        expected = [1000 * number + 100 * source + 5 * comm.rank + i for source in range(comm.size) for i in range(5)]
        assert begun[number].wait().tolist() == expected
        assert begun[number].wait().tolist() == expected
    assert told.wait().tolist() == np.repeat(np.arange(comm.size), 3).tolist()
    channel.close()


def test_rows_for_all_ranks_are_sent_from_where_they_lie(comm):
    """Not from a copy for each."""
    channel, rows = Channel(comm), torch.arange(6).view(3, 2) + 10 * comm.rank
    transfer = channel.start_everyone(rows, np.full(comm.size, 3))
    assert all(held.data_ptr() == rows.data_ptr() for held in transfer.held[:1])
    assert transfer.wait().tolist() == [
        [10 * rank + i, 10 * rank + i + 1] for rank in range(comm.size) for i in (0, 2, 4)
    ]
    channel.close()


@pytest.mark.parametrize("version", ["2.6.0+cu124", "2.9.1"])
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_an_old_torch_is_refused_on_gpus(comm, monkeypatch, version, device):
    """On all ranks; the CPU does not mind."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with pytest.raises(DistributedError, match=f"torch {re.escape(version)} is too old for GPUs: install torch 2.10 "):
        World(CommConfig(device=device), comm)
    assert World(CommConfig(device="cpu", threads=1), comm).device.type == "cpu"


def test_a_new_torch_is_taken_on_gpus(comm, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="one", name="pretended"))
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.10.0+cu130"))
    assert World(CommConfig(gpu_direct="off", threads=1), comm).device.type == "cuda"


def test_mpi_is_asked_about_device_memory():
    """mpi4py keeps the library to itself; asked elsewhere, a library that takes device memory seemed to take none."""
    if "Open MPI" not in MPI.Get_library_version():
        pytest.skip("only Open MPI must answer")
    assert gpu_query()() in (0, 1)


def test_exchange_packs_displacements_beyond_an_int(comm, monkeypatch):
    import hpcgnn.comm.exchange as exchange

    class Tiny:
        max = 16

    monkeypatch.setattr(exchange.np, "iinfo", lambda _: Tiny)
    channel = Channel(comm, max_bytes=64)
    send = np.full(comm.size, 9)
    rows = torch.arange(9 * comm.size, dtype=torch.int64) + 100 * comm.rank
    got = channel.rows(rows, send, send)
    monkeypatch.undo()
    expected = [9 * comm.rank + i + 100 * source for source in range(comm.size) for i in range(9)]
    assert got.tolist() == expected


def test_structured_arrays_travel(comm):
    channel = Channel(comm)
    record = np.dtype([("a", "i4"), ("b", "i8", (2,))])
    rows = np.zeros(comm.size, record)
    rows["a"], rows["b"] = np.arange(comm.size), comm.rank
    got = channel.array(rows, np.ones(comm.size, np.int64), np.ones(comm.size, np.int64))
    assert got["a"].tolist() == [comm.rank] * comm.size
    assert got["b"][:, 1].tolist() == list(range(comm.size))
    empty = channel.array(rows[:0], np.zeros(comm.size, np.int64), np.zeros(comm.size, np.int64))
    assert empty.dtype == record
    assert len(empty) == 0


def random_route(world, seed, total=57, wanted=20):
    """A route over ``total`` ids in blocks; every rank wants other ids, rank 1 none, unsorted."""
    ownership = BlockOwnership.even(total, world.size)
    rng = np.random.default_rng([seed, world.rank])
    ids = rng.choice(total, 0 if world.rank == 1 else wanted, replace=False)
    return ownership, ids, Route.plan(ownership, ids, world.channel())


def table_of(ids, width):
    return torch.from_numpy(np.sin(ids[:, None] * 1.0 + np.arange(width)))


def test_route_pull_gives_the_rows_of_the_wanted_ids(world):
    ownership, ids, route = random_route(world, 0)
    mine = np.arange(ownership.starts[world.rank], ownership.starts[world.rank + 1])
    values, flags = route.pull(table_of(mine, 3), torch.from_numpy(mine % 2 == 0))
    assert torch.equal(values, table_of(ids, 3))
    assert flags.tolist() == (ids % 2 == 0).tolist()
    assert route.num_wanted == len(ids)
    (again,) = route.pull_served(table_of(mine, 3)[route.served])
    assert torch.equal(again, values)


@pytest.mark.parametrize("seed", range(5))
def test_push_sum_is_the_adjoint_of_pull(world, seed):
    ownership, ids, route = random_route(world, seed)
    owned = int(ownership.starts[world.rank + 1] - ownership.starts[world.rank])
    generator = torch.Generator().manual_seed(100 * seed + world.rank)
    x = torch.randn(owned, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    y = torch.randn(len(ids), 4, dtype=torch.float64, generator=generator)
    (pulled,) = route.pull(x.detach())
    pushed = torch.zeros(owned, 4, dtype=torch.float64)
    pushed[route.served] = route.push_sum(y)
    left, right = (pulled * y).sum().item(), (x.detach() * pushed).sum().item()
    assert world.total(left) == pytest.approx(world.total(right), rel=1e-12)
    chain = HaloChain()
    chain.tie((chain.pull(route, x) * y).sum()).backward()
    assert torch.allclose(x.grad, pushed)


class Shifted:
    """Every rank owns every R-th id, and keeps it in a row that many others come before."""

    def __init__(self, size, first):
        self.size, self.first = size, first

    def locate(self, ids):
        return ids % self.size, ids // self.size + self.first


@pytest.mark.parametrize("first", [(1 << 31) - 3, (1 << 32) - 9])
def test_routes_name_rows_beyond_an_int(world, first):
    ids = np.arange(7 * world.size)
    route = Route.plan(Shifted(world.size, first), ids, world.channel())
    assert route.requests.tolist() == world.size * [first + i for i in range(7)]


def test_a_row_that_no_route_can_name_is_refused():
    with pytest.raises(ValueError, match=rf"row {1 << 32} of one rank: a rank has at most {1 << 32} rows"):
        narrow_rows(np.array([0, 1 << 32]))


def test_restrict_keeps_a_subset_without_exchange(world):
    ownership, ids, route = random_route(world, 4)
    start = int(ownership.starts[world.rank])
    keep = lambda x: np.asarray(x) % 3 == 0  # noqa: E731
    part = route.restrict(keep(ids), keep(route.requests.numpy() + start))
    mine = np.arange(start, ownership.starts[world.rank + 1])
    (values,) = part.pull(table_of(mine, 2))
    assert torch.equal(values, table_of(ids[keep(ids)], 2))
    assert part.push(values).shape[0] == part.serve_counts.sum()


def test_book_locates_every_node_for_any_number_of_ranks():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 5, (3, 16))  # some parts without nodes of a type
    ends = np.cumsum(counts.ravel()).reshape(3, 16)
    offsets = np.concatenate([(ends[:, :1] - counts[:, :1]), ends], axis=1)
    for size in (1, 2, 3, 4, 7, 16):
        book = Book(offsets, size, ("a", "b", "c"))
        seen = []
        for rank in range(size):
            ids = book.local_to_global(rank)
            owner, local = book.locate(ids)
            assert (owner == rank).all()
            assert local.tolist() == list(range(len(ids)))
            seen += ids.tolist()
        assert sorted(seen) == list(range(book.num_nodes))
    with pytest.raises(ValueError, match="17 ranks but only 16 parts"):
        Book(offsets, 17, ("a", "b", "c"))


@pytest.mark.parametrize("gradients", ["mpi", "gloo"], ids=["MPI", "gloo"])  # pytest-mpi skips what is called "mpi"
def test_gradient_sum(comm, gradients):
    world = World(CommConfig(device="cpu", threads=1, gradients=gradients), comm)
    module = torch.nn.Linear(3, 2)
    flat = FlatParameters(module, num_extras=1)
    module(torch.full((1, 3), float(comm.rank + 1))).sum().backward()
    flat.extras[0] = 1
    reducer = GradientSum(world)
    flat.sum(reducer)
    total = sum(range(1, comm.size + 1))
    assert module.weight.grad.tolist() == [[total] * 3] * 2
    assert flat.extras.tolist() == [comm.size]
    before = flat.parameter.detach().clone()
    torch.optim.SGD([flat.parameter], lr=1.0).step()
    assert torch.equal(module.bias.detach(), flat.parameter[6:])
    assert not torch.equal(flat.parameter, before)
    reducer.close()
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_plans_are_made_ahead_where_that_pays(comm, monkeypatch, in_flight):
    """Where cores are spare, others sample or ranks lie on several machines; as many as are in flight anyway; those
    that are asked for wherever ranks compute."""
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):  # they would leave cores spare
        monkeypatch.delenv(name, raising=False)
    cores = World(CommConfig(device="cpu"), comm).threads
    busy = World(CommConfig(device="cpu", threads=cores), comm)
    sampled = World(CommConfig(device="cpu", threads=cores, sampling_servers=1), comm)
    assert busy.plans_ahead(-1, in_flight) == (in_flight if in_flight > 1 else 0)
    assert sampled.plans_ahead(-1, in_flight) == max(3, in_flight)
    assert busy.plans_ahead(7, in_flight) == 7
    busy.local_size -= 1
    assert busy.plans_ahead(-1, in_flight) == max(3, in_flight)
    assert busy.plans_ahead(0, 1) == 0
    assert (busy.group, busy.num_groups) == (0, 1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"gradients": "nccl"}, "needs for every rank a GPU of its own, and no slice of one"),
     ({"gradients": "gloo", "device": "cuda"}, "comm.gradients is gloo, which is for CPU ranks; use nccl or mpi")],
)  # fmt: skip
def test_libraries_that_cannot_sum_gradients_are_refused(comm, monkeypatch, keys, message):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="one", name="GPU"))
    one = World(CommConfig(device="cpu", threads=1), comm)
    one.config = CommConfig(**keys)
    one.device = torch.device(keys.get("device", "cpu"), 0)
    with pytest.raises(DistributedError, match=message):
        GradientSum(one)


@pytest.mark.serial
def test_parameters_of_several_types_are_refused():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match=r"must have one dtype, got \{torch\.float\d\d, torch\.float\d\d\}"):
        FlatParameters(module)


def test_a_device_that_is_not_there_is_refused(comm, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DistributedError, match=r"is cuda, but torch sees no GPU on .*; use --comm"):
        World(CommConfig(device="cuda", threads=1), comm)


def test_an_mpi_of_one_thread_plans_nothing_ahead(world, monkeypatch):
    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_FUNNELED)
    assert world.plans_ahead(3) == 0
    with pytest.raises(DistributedError, match="in_flight is 2, but MPI allows no calls from several threads"):
        world.plans_ahead(3, 2)


@pytest.mark.serial
def test_what_the_system_does_not_tell_is_not_asked(monkeypatch, tmp_path):
    """Libraries without the query for device memory; systems without a list of what is loaded."""
    monkeypatch.setattr(worlds.ctypes, "CDLL", lambda name: object())
    assert worlds.gpu_query() is None
    monkeypatch.setattr(foreign, "MAPS", tmp_path / "maps")
    assert foreign.check_one_mpi("libx.so") is None
    (tmp_path / "maps").write_text("1 /a/libmpi.so.40\n2 /b/libmpich.so.12\n")
    with pytest.raises(ValueError, match=r"libx\.so is built for another MPI .*/a/libmpi\.so\.40 and /b/libmpich"):
        foreign.check_one_mpi("libx.so")


@pytest.mark.serial
def test_a_state_is_not_received_before_it_is_read():
    """Its names and their number are known before."""
    state = Handed(Relay.__new__(Relay), {"hidden": torch.ones(1), "cell": torch.ones(1)}, [])
    assert (len(state), list(state)) == (2, ["hidden", "cell"])


def test_agree_raises_everywhere_with_rank_and_stage(world):
    bad = world.size - 1
    error = ValueError("column missing") if world.rank == bad else None
    with pytest.raises(DistributedError, match=rf"column missing \[open, rank {bad} of {world.size}\]") as caught:
        world.agree(error, "open")
    assert caught.value.user_error
    world.agree(None, "nothing wrong")


def test_reductions_and_gathers(world):
    ranks = world.allgather_array(np.array([world.rank]))
    assert ranks.ravel().tolist() == list(range(world.size))
    assert world.reduce_array(np.array([world.rank + 1.0]), "max").tolist() == [world.size]
    rows = world.gather_rows(np.full((world.rank, 2), world.rank))
    assert (rows is None) == (world.rank > 0)
    if rows is not None:
        assert len(rows) == world.size * (world.size - 1) // 2


@pytest.mark.parametrize("variable", [*LAUNCHER_SIZES, TORCH_SIZE])
def test_copies_of_rank_zero_of_one_are_refused(world, comm, monkeypatch, variable):
    for name in (*LAUNCHER_SIZES, TORCH_SIZE, *TORCH_TASK):
        monkeypatch.delenv(name, raising=False)
    World.check_singleton()
    monkeypatch.setenv(variable, "4")
    if variable == TORCH_SIZE:
        World.check_singleton()  # left over in a shell
        monkeypatch.setenv("RANK", "0")
    if world.size == 1:
        with pytest.raises(
            ValueError, match=f"{variable}=4, but MPI sees a single rank.*use .*mpirun.*srun"
        ) as refused:
            World()
        assert str(refused.value).isprintable()  # names of MPI libraries end with a NUL byte
        World.alone()
    else:
        World.check_singleton()
    World(CommConfig(device="cpu", threads=1), comm)


def test_torch_variables_that_fit_the_launcher_are_left_alone(monkeypatch):
    """Lightning and Accelerate set them under mpirun; torchrun may be the one task of each machine under srun."""
    for name in LAUNCHER_SIZES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(TORCH_SIZE, "8")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "8")
    assert launched_tasks() == ("PMI_SIZE", 8)
    monkeypatch.setenv("PMI_SIZE", "1")
    assert launched_tasks() == (TORCH_SIZE, 8)
    monkeypatch.setenv(TORCH_SIZE, "1")
    assert launched_tasks() == ("PMI_SIZE", 1)


@pytest.mark.parametrize("field", ["device", "gradients", "gpu_direct"])
def test_comm_config_refuses_unknown_choices(field):
    with pytest.raises(ValueError, match=f"comm.{field}"):
        CommConfig(**{field: "sometimes"})


def test_watchdog_message_names_a_late_sampler():
    """Samplers report at another pace than trainers, which wait for them; idle ones wait for the trainers."""
    hosts = ["node1", "node1", "node2", "node2"]
    trainers = {0: Where("train", 6, 70, 9.0), 1: Where("train", 6, 70, 9.5)}
    text = describe(trainers | {2: Where("draw", 7, 80, 9.0), 3: Where("draw", 7, 79, 9.1)}, 0, hosts, 5, 2)
    assert "late: rank 3 (sampler) on node2" in text
    assert "rank 2 (sampler): draw, step 7" in text
    idle = trainers | {2: Where(IDLE, 7, 8, 99.0), 3: Where(IDLE, 7, 8, 99.0)}
    assert "all ranks are at the same step" in describe(idle, 0, hosts, 5, 2)
    assert "late: rank 1 on node1;" in describe(idle | {1: Where("val", 2, 69, 9.0)}, 0, hosts, 5, 2).replace("\n", ";")
    trainers |= {2: Where(IDLE, 7, 8, 9.0)}
    assert "no answer from rank 3 (sampler) on node2" in describe(trainers, 0, hosts, 5, 2)
    assert "no answer from rank 0" in describe({1: Where(IDLE, 7, 8, 9.0)}, 1, hosts[:2], 5, 1)


@pytest.mark.parametrize("last", [0.0, 1.5])
def test_an_idle_rank_waits(comm, last):
    """Longer than the watchdog's time, and it hears the others meanwhile; it may be the last one to close."""
    with Watchdog(World(CommConfig(device="cpu", threads=1), comm), 0.5) as watchdog:
        watchdog.idle()
        time.sleep(2)
        comm.Barrier()
        time.sleep(last if comm.rank == comm.size - 1 else 0)


@pytest.mark.parametrize("limit", [1, 100, 1 << 20])
def test_a_relay_sums_in_order_of_the_groups(comm, limit):
    """In messages of a bounded size, and rounding as one rank would."""
    groups = comm.size
    world = World(CommConfig(device="cpu", threads=1, max_message_bytes=limit), comm).split(groups)
    values = torch.from_numpy(np.random.default_rng(comm.rank).standard_normal((19, 3), np.float32))
    everyone = comm.allgather(values)
    relay = Relay(world)
    expected = everyone[0].clone()
    for other in everyone[1:]:
        expected += other
    assert torch.equal(relay.sum(values), expected)
    assert torch.equal(relay.sum(values[:0]), values[:0])


@pytest.mark.serial
def test_a_relay_keeps_what_is_under_way(monkeypatch):
    """MPI reads the memory of a message until it is sent."""
    relay = object.__new__(Relay)
    relay._sending = [("sent", [True, True]), ("half", [True, False]), ("waits", [False])]
    monkeypatch.setattr("hpcgnn.comm.relay.MPI", SimpleNamespace(Request=SimpleNamespace(Testall=all)))
    relay.put([], 1)
    assert [memory for memory, _ in relay._sending] == ["half", "waits"]


@pytest.mark.serial
@pytest.mark.parametrize("stage", ["a", "zz"])
def test_a_rank_that_moves_while_it_asks_is_not_stuck(comm, monkeypatch, stage):
    """Wherever it moves to: the others may have ended, and answer no more."""
    reports = []
    monkeypatch.setattr(Watchdog, "_report_and_abort", lambda watchdog, answers: reports.append(answers))
    with Watchdog(World(CommConfig(device="cpu", threads=1), comm), 0.3) as watchdog:

        def ask(watchdog):
            watchdog.at(stage, 0)
            return {}

        monkeypatch.setattr(Watchdog, "_ask", ask)
        watchdog.at("m", 1)
        time.sleep(1.5)
    assert not reports


@pytest.mark.serial
def test_a_job_that_was_suspended_goes_on(comm, monkeypatch):
    """Nobody has moved meanwhile, as the clock tells when it goes on."""
    reports, suspended = [], 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + suspended, sleep=time.sleep)
    monkeypatch.setattr("hpcgnn.comm.watchdog.time", clock)
    monkeypatch.setattr(Watchdog, "_report_and_abort", lambda watchdog, answers: reports.append(answers))
    with Watchdog(World(CommConfig(device="cpu", threads=1), comm), 60) as watchdog:
        watchdog.at("train", 1)
        time.sleep(0.3)
        suspended = 100.0
        time.sleep(0.8)
    assert not reports


def test_ranks_wait_for_one_that_is_at_work():
    """However long they have waited; not for one that does not answer, nor for idle ones."""
    waits, works = Where("val", 2, 8, 9.0), Where("write", 1, 7, 0.3)
    idle = Where("".join(list(IDLE)), 1, 7, 0.3)  # another text, as it comes from another rank
    assert not is_stuck({0: waits, 1: works}, 0, 2, 5)
    assert is_stuck({0: waits, 1: waits}, 0, 2, 5)
    assert is_stuck({0: waits, 1: idle}, 0, 2, 5)
    assert is_stuck({0: waits, 1: works}, 0, 3, 5)
    assert not is_stuck({0: idle, 1: waits}, 0, 2, 5)
    assert is_stuck({0: idle}, 0, 2, 5)


def test_watchdog_message_names_the_late_rank():
    hosts = ["node1", "node1", "node2"]
    text = describe({0: Where("val", 2, 8, 9.0), 1: Where("train", 6, 7, 9.5), 2: Where("val", 2, 8, 9.1)}, 0, hosts, 5)
    assert text.startswith("hpcgnn watchdog: rank 0 on node1 made no progress for 5 s; late: rank 1 on node1\n")
    assert "rank 1: train, step 6" in text
    two = {rank: Where("a", 1, 1, 1.0) for rank in (0, 1)}
    assert "no answer from rank 2 on node2" in describe(two, 0, hosts, 5)


def fail_watched(comm):
    with Watchdog(World(CommConfig(device="cpu", threads=1), comm), 0) as watchdog:
        watchdog.at("train", 3)
        raise KeyError


def test_an_error_tells_its_stage(comm):
    with pytest.raises(KeyError) as caught:
        fail_watched(comm)
    assert caught.value.stage == "train, step 3"


def test_watchdog_knows_the_line_of_the_main_thread(comm):
    with Watchdog(World(CommConfig(device="cpu", threads=1), comm), 0) as watchdog, ThreadPoolExecutor(1) as pool:
        where = pool.submit(watchdog._where).result()
    assert where.stage == "start"
    assert "threading.py:" in where.line


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EROFS, "choose another folder"), (errno.EACCES, "permission"), (errno.ENOSPC, "make room")],
)
def test_what_the_system_refuses_comes_with_a_remedy(comm, number, remedy):
    world = World(CommConfig(device="cpu", threads=1), comm)
    error = OSError(number, os.strerror(number), "/gone") if comm.rank == comm.size - 1 else None
    with pytest.raises(DistributedError, match=f"'/gone'; .*{remedy}") as caught:
        world.agree(error, "write")
    assert not caught.value.user_error
