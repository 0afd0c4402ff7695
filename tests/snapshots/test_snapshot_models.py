"""Models of snapshots: outputs and all gradients of any number of ranks are those of dense matrices on one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from dense_models import DENSE
from snapshot_runs import assert_like_one_rank, make_config, open_session, random_graph, run_epochs, write_parts

from hpcgnn import train
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.world import DistributedError
from hpcgnn.snapshots.model import MODELS, ModelPart
from hpcgnn.snapshots.model.frame import SequenceModel
from hpcgnn.snapshots.model.stacks import GCNStack, PlainModel

NODES, SNAPSHOTS = 20, 7
CARRIED = [kind for kind, row in MODELS.items() if not row.windowed]
CASES = [(kind, {}) for kind in MODELS] + [
    ("gcn", {"layers": 2}), ("tgcn", {"layers": 3}), ("tgcn_joint", {"layers": 2}), ("mpnn_lstm", {"layers": 2}),
    ("dcrnn", {"order": 3}),
    ("gconv_gru", {"order": 4, "layers": 2}), ("gconv_gru", {"order": 1}), ("gconv_lstm", {"order": 3, "layers": 2}),
    ("sage", {"layers": 2}), ("gat", {"layers": 2}), ("dysat", {"layers": 2}), ("roland", {"layers": 2}),
    ("roland", {"update": "average", "layers": 2}), ("roland", {"update": "concat"}), ("evolvegcn_o", {"layers": 2}),
    ("regcn", {"layers": 2}), ("evolvegcn_h", {"layers": 2}), ("evolvegcn_h", {"layers": 3, "hidden": 24}),
] + [(kind, {"layers": 2, "norm": "batch"}) for kind, row in MODELS.items() if "norm" in row.options]  # fmt: skip


def make_graph(**changes):
    return random_graph(5, NODES, SNAPSHOTS, 30, empty=(2,), **changes)


def matrices(graph):
    """Dense weights [T] of [N, N], rows are destinations."""
    found = torch.zeros(SNAPSHOTS, NODES, NODES, dtype=torch.float64)
    weight = torch.from_numpy(graph.edges["weight"]).double() if graph.edges else torch.ones(len(graph.src))
    return found.index_put((*map(torch.from_numpy, (graph.first, graph.dst, graph.src)),), weight.double(), True)


@pytest.fixture(scope="module")
def parts(comm, tmp_path_factory):
    """A callable that gives the partition set of the graph with or without weights. Collective, as is what it gives."""
    folder = Path(comm.bcast(str(tmp_path_factory.mktemp("snapshots")) if comm.rank == 0 else None))
    found = {}
    for weighted in (False, True):
        place = folder / str(weighted)
        if comm.rank == 0:
            place.mkdir()
        found[weighted] = write_parts(comm, place, make_graph(weighted=weighted), parts=4)
    return found.__getitem__


class Ran:
    """One step of a session, its loss a weighted sum of the outputs [., N, C]; everything in order of row ids."""

    def __init__(self, comm, session):
        task, self.world = session.task, session.world
        plan = session.loaders["train"].planner.plan(session.batches["train"], 0, 0)
        session.model.train()
        chain, self.leaf = HaloChain(), task._learned()
        before = session.graph.channel.sent_bytes
        frames = task._frames(plan, chain, self.leaf)
        outputs, _ = session.model(frames, session.model.begin(frames[0].inputs))
        windowed = session.config.sampling.window_size > 0
        outputs = torch.stack(outputs[-1].unbind(1) if windowed else [rows.squeeze(1) for rows in outputs])
        self.targets, self.rows, self.comm = plan.targets, session.partition.flat_row, comm
        chain.tie((outputs * weights(outputs.shape)[:, self.rows]).sum()).backward()
        self.sent = session.graph.channel.sent_bytes - before
        self.outputs = self.by_row(outputs.detach().transpose(0, 1)).transpose(0, 1)
        if self.leaf is not None:
            self.learned, self.learned_gradient = self.by_row(self.leaf.detach()), self.by_row(self.leaf.grad)
        named = dict(session.model.named_parameters())
        self.parameters = {name: value.detach().clone().requires_grad_() for name, value in named.items()}
        self.gradients = {
            name: torch.from_numpy(self.world.reduce_array(value.grad.numpy())) for name, value in named.items()
        }

    def by_row(self, rows):
        pairs = self.comm.allgather((self.rows, rows.numpy()))
        found = np.empty((NODES, *rows.shape[1:]))
        for place, values in pairs:
            found[place] = values
        return torch.from_numpy(found)


def weights(shape):
    """Of outputs [., n, C], for all nodes."""
    numbers = torch.arange(shape[0] * NODES * shape[2], dtype=torch.float64)
    return torch.cos(numbers).view(shape[0], NODES, shape[2])


def expected_outputs(ran, graph, config, learned):
    """[., N, C] by dense matrices."""
    a, dense = matrices(graph), DENSE[config.model.kind]
    series = torch.from_numpy(graph.series["feat"]).double()
    x = [torch.cat([series[:, t], learned], 1) for t in range(SNAPSHOTS)]
    if not config.sampling.window_size:
        first = ran.targets[0]
        return torch.stack(
            dense(ran.parameters, a[first : ran.targets[-1] + 1], x[first : ran.targets[-1] + 1], config.model)
        )
    windows = [range(t - config.sampling.window_size + 1, t + 1) for t in ran.targets]
    return torch.stack([dense(ran.parameters, a[list(w)], [x[t] for t in w], config.model)[-1] for w in windows])


def assert_near(found, expected):
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-11)


def configured(kind, history=0, batch_size=5, embedding=2, **changes):
    heads = {"heads": 2} if "heads" in MODELS[kind].options else {}
    model = {f"model__{name}": value for name, value in {"hidden": 4, "kind": kind, **heads, **changes}.items()}
    return make_config(
        sampling__window_size=history, node_embedding__dim=embedding, task__forecast_steps=2, data__val_snapshots=0,
        data__test_snapshots=0, train__batch_size=batch_size, **model,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes", "history"),
    [(*case, history) for case in CASES for history in (0, 3) if history or case[0] in CARRIED]
    + [("graph_wavenet", {"layers": 2, "order": 3}, 4)],
    ids=str,
)
def test_model_is_the_dense_one(comm, parts, kind, changes, history):
    """Weighted edges, a snapshot without any, learned inputs beside given ones; carried on and in windows."""
    weighted = not MODELS[kind].make.weighs_edges
    config = configured(kind, history, **changes)
    session = open_session(comm, parts(weighted), config)
    ran = Ran(comm, session)
    leaf = ran.learned.clone().requires_grad_()
    expected = expected_outputs(ran, make_graph(weighted=weighted), config, leaf)
    (expected * weights(expected.shape)).sum().backward()
    assert_near(ran.outputs, expected)
    assert_near(ran.learned_gradient, leaf.grad)
    for name, value in ran.parameters.items():
        gradient = torch.zeros_like(value) if value.grad is None else value.grad
        assert_near(ran.gradients[name], gradient)
    session.close()


def scores(session, steps):
    """Outputs of the first steps' targets, [. n, C]."""
    session.memory.reset()
    plans = [session.loaders["train"].planner.plan(session.batches["train"], 0, step) for step in range(steps)]
    return torch.cat([session.task.score(plan).output for plan in plans])


@pytest.mark.parametrize("kind", CARRIED)
def test_state_goes_on_from_step_to_step(comm, parts, kind):
    """Four snapshots in four steps are four in one, the second time with kept sums of the inputs."""
    found = []
    for size in (1, 4):
        session = open_session(comm, parts(False), configured(kind, batch_size=size, embedding=0, layers=2))
        found += [scores(session, 4 // size), scores(session, 4 // size)]
        session.close()
    assert all(torch.allclose(some, found[0], rtol=1e-9, atol=1e-11) for some in found[1:])


@pytest.mark.parametrize("kind", ["tgcn", "gconv_gru", "dcrnn"])
def test_what_is_kept_of_inputs_changes_nothing(comm, parts, kind):
    """The same outputs and gradients where nothing is kept; what is kept needs no exchange again."""
    order = {"order": 3} if "order" in MODELS[kind].options else {}
    session = open_session(comm, parts(True), configured(kind, history=3, embedding=0, **order))
    first = Ran(comm, session)
    session.model.zero_grad()
    again = Ran(comm, session)
    session.model.zero_grad()
    for kept in session.task._smoothed.values():
        kept.clear()
    anew = Ran(comm, session)
    session.close()
    for ran in (again, anew):
        assert_near(ran.outputs, first.outputs)
        assert all(torch.allclose(value, first.gradients[name]) for name, value in ran.gradients.items())
    assert anew.sent == first.sent
    assert again.sent < first.sent or comm.size == 1


def test_a_model_of_ones_own_may_sum_and_attend_over_several_snapshots(comm, parts):
    """Snapshots side by side: plain sums of weighted rows are the dense ones, attention that of each snapshot alone."""
    config = configured("gcn", history=2, embedding=0)
    session = open_session(comm, parts(True), config)
    plan = session.loaders["train"].planner.plan(session.batches["train"], 0, 0)
    frame = session.task._frames(plan, HaloChain(), None)[0]
    assert len(frame.distinct) > 1
    sums = frame.propagate("sum", frame.inputs, frame.start(frame.inputs))
    everyone = torch.from_numpy(make_graph().series["feat"]).double()
    dense = matrices(make_graph(weighted=True))
    rows = torch.from_numpy(session.partition.flat_row)
    for place, number in enumerate(plan.frames[0]):
        assert_near(sums[:, place], (dense[number] @ everyone[:, number])[rows])
    source, target = torch.ones(1, 3).double(), torch.full((1, 3), 0.5).double()
    attended = frame.attend(frame.inputs, frame.start(frame.inputs), source, target)
    for place, snapshot in enumerate(frame.snapshots):
        piece = frame.inputs[:, place : place + 1].contiguous()
        alone = snapshot.neighbors.attend(piece, snapshot.neighbors.start(piece.flatten(1)), source, target)
        assert_near(attended[:, place : place + 1], alone)
    session.close()


@pytest.mark.parametrize("kind", ["evolvegcn_h", "gconv_gru", "roland"])
def test_dropout_is_that_of_one_rank(comm, parts, kind):
    """Over an epoch of several steps, with state of nodes or of all; then validation."""
    config = configured(kind, batch_size=2, layers=2, dropout=0.3)
    config.data.val_snapshots = 1
    assert_like_one_rank(comm, parts(True), config)


@pytest.mark.serial
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "regcn"])  # regcn needs types of edges
def test_dropout_with_one_layer_has_an_effect_or_is_refused(comm, parts, kind):
    """Rows of the table without the mark ``drops_one`` learn the same with dropout and one layer."""
    found, history = [], 4 if MODELS[kind].windowed else 0
    for dropout in (0.0, 0.5):
        config = configured(kind, history)
        config.model.dropout = dropout
        found.append(run_epochs(comm, parts(not MODELS[kind].make.weighs_edges), config)[0])
    assert np.array_equal(*found) != MODELS[kind].drops_one
    if MODELS[kind].drops_one:
        configured(kind, history, dropout=0.5)
    else:
        with pytest.raises(ValueError, match=r"model\.dropout 0\.5 is between layers, and model\.layers is 1"):
            configured(kind, history, dropout=0.5)


@pytest.mark.serial
def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"a3tgcn looks back over a window: set sampling\.window_size"):
        configured("a3tgcn")
    with pytest.raises(ValueError, match=r"model\.heads \(3\) must divide model\.hidden \(4\)"):
        configured("gat", heads=3)
    with pytest.raises(ValueError, match=r"model\.order and model\.heads must be at least 1"):
        configured("dcrnn", order=0)
    with pytest.raises(ValueError, match=r"model\.kind must be one of gcn, sage"):
        make_config(model__kind="lstm")
    with pytest.raises(ValueError, match=r"model\.norm batch is for model\.kind gcn, sage, .*; got tgcn"):
        configured("tgcn", norm="batch")
    with pytest.raises(ValueError, match=r"model\.order 3 is for .* gconv_lstm, dcrnn, graph_wavenet; got tgcn"):
        configured("tgcn", order=3)
    with pytest.raises(ValueError, match=r"model\.update concat is for model\.kind roland; got gcn"):
        configured("gcn", update="concat")


class Halved(PlainModel):
    """Half of what graph convolutions give."""

    stack = GCNStack

    def forward(self, frames, state):
        """As in SequenceModel."""
        rows, state = super().forward(frames, state)
        return [0.5 * some for some in rows], state


@pytest.fixture
def halved(monkeypatch):
    """The name of a model that is a class of this file and a row of the table, no more."""
    monkeypatch.setitem(MODELS, "halved", ModelPart(Halved, "half of gcn", ("norm",)))
    return "halved"


@pytest.mark.serial
def test_a_row_makes_choices_help_and_checks(halved, capsys):
    with pytest.raises(SystemExit, match="0"):
        train._parse(["--kind", "snapshots", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "dysat, halved; default" in text
    assert "; halved: half of gcn." in text
    with pytest.raises(ValueError, match=r"model\.kind must be one of gcn, .*, dysat, halved, got 'halve'"):
        make_config(model__kind="halve")
    with pytest.raises(ValueError, match=r"model\.heads 2 is for model\.kind gat, dysat; got halved"):
        make_config(model__kind=halved, model__heads=2)


@pytest.mark.serial
def test_help_has_a_line_for_every_key(capsys):
    with pytest.raises(SystemExit, match="0"):
        train._parse(["--kind", "snapshots", "--help_all"])
    text = capsys.readouterr().out
    for section, keys in make_config().to_dict().items():
        for key in keys if isinstance(keys, dict) else ():
            said = text.partition(f"\n  --{section}.{key} ")[2].partition("\n  --")[0]
            words = [word for word in said.split() if word.isalpha()]
            assert len(words) > 4, f"{section}.{key}: {said}"


def test_a_row_trains(comm, parts, halved):
    assert_like_one_rank(comm, parts(True), configured(halved, norm="batch"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"embedding": 0}, r"learns an adjacency: set node_embedding\.dim above 0"),
        (
            {"history": 3, "layers": 2},
            r"back over 4 snapshots with model\.layers 2: set sampling\.window_size to 4",
        ),
        ({"order": 1}, r"needs model\.order 2 or more"),
    ],
)
def test_graph_wavenet_refuses_what_leaves_nothing_to_learn(comm, parts, changes, reason):
    with pytest.raises(DistributedError, match=reason):
        open_session(comm, parts(True), configured("graph_wavenet", **{"history": 3, **changes}))


def test_a_learned_adjacency_trains_as_on_one_rank(comm, parts):
    """Over an epoch of several steps with dropout, in windows that share snapshots; then validation."""
    config = configured("graph_wavenet", history=4, batch_size=1, layers=2, dropout=0.3)
    config.data.val_snapshots = 1
    assert_like_one_rank(comm, parts(True), config)


def test_attention_refuses_weights(comm, parts):
    with pytest.raises(DistributedError, match=r"gat computes its edge weights: set model\.edge_weights false"):
        open_session(comm, parts(True), configured("gat"))


@pytest.mark.parametrize("kind", ["gcn", "dcrnn"])
@pytest.mark.parametrize("value", [-1.9999, -3])
def test_weights_that_sums_cannot_be_divided_by_are_refused(comm, mpi_tmp_path, kind, value):
    """In-weights of 1 and -1.9999 would make a factor of thousands, those of 1 and -3 would silence a node."""
    graph = make_graph()
    graph.edges["weight"][7] = value
    parts = write_parts(comm, mpi_tmp_path, graph)
    with pytest.raises(DistributedError, match=rf"weight of edges: {value} in row 7 of .*model.edge_weights false"):
        open_session(comm, parts, configured(kind))
    config = configured(kind)
    config.model.edge_weights = False
    session = open_session(comm, parts, config)
    found = session.task.outputs(session.loaders["train"].planner.plan(session.batches["train"], 0, 0))
    session.close()
    assert all(torch.isfinite(rows).all() for rows in found)


class Signed(SequenceModel):
    """One operator over the inputs, without weights."""

    name = "sum"

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, frames, state):
        """As in SequenceModel."""
        started = [frame.start(frame.inputs) for frame in frames]
        pairs = zip(frames, started, strict=True)
        rows = [frame.propagate(self.name, frame.inputs, start)[..., :1] for frame, start in pairs]
        return [self.scale * some for some in rows], dict(state)


class Divided(Signed):
    """An operator that divides by sums of weights."""

    name = "mean"


def test_a_model_of_ones_own_may_sum_signed_weights(comm, mpi_tmp_path):
    """The dense sums; a mean is refused, on all ranks alike."""
    graph = make_graph()
    graph.edges["weight"][::3] *= -1
    parts = write_parts(comm, mpi_tmp_path, graph)
    config = configured("gcn", embedding=0)
    config.model.class_path = f"{__name__}.Signed"
    session = open_session(comm, parts, config)
    plan = session.loaders["train"].planner.plan(session.batches["train"], 0, 0)
    found, rows = session.task.outputs(plan), session.partition.flat_row
    for number, mine in zip(plan.targets, found, strict=True):
        dense = np.zeros((graph.num_nodes, graph.num_nodes))
        here = graph.first == number if graph.last is None else (graph.first <= number) & (number <= graph.last)
        np.add.at(dense, (graph.dst[here], graph.src[here]), graph.edges["weight"][here].astype(np.float64))
        assert_near(mine[:, 0], torch.from_numpy((dense @ graph.series["feat"][:, number])[rows, 0]))
    session.close()
    config.model.class_path = f"{__name__}.Divided"
    session = open_session(comm, parts, config)
    plan = session.loaders["train"].planner.plan(session.batches["train"], 0, 0)
    with pytest.raises(DistributedError, match="operator mean divides by sums of the edges' column weight"):
        session.task.outputs(plan)
    session.close()
