"""The training step without autograd against the same steps with it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from training_runs import assert_same, bipartite, make_config, make_parts, on_rank_0, open_session, record_epoch

from hpcgnn import native
from hpcgnn.nn.decoders import DECODERS, MlpDecoder
from hpcgnn.task.losses import binary_loss
from hpcgnn.temporal import step as temporal_link
from hpcgnn.temporal.model import model as models
from hpcgnn.temporal.model.native_step import make_link_step
from hpcgnn.temporal.model.readout import READOUTS, AttentionReadout, TemporalAttentionLayer
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.model.updater import UPDATERS, GruUpdater, RecurrentUpdater, RnnUpdater, UpdaterSizes

RICH = {"edge_width": 3}
BY_HAND = {
    "plain": ({}, {}),
    "update at user, three negatives": ({}, {"memory__update_at": "user", "task__negatives": 3}),
    "edge features, two layers": (RICH, {"model__layers": 2}),
    "rnn, gradients of three steps": (RICH, {"memory__updater": "rnn", "train__accumulate_steps": 3}),
    "replicated memory": ({}, {"memory__placement": "replicated"}),
    "batches smaller than ranks": ({"num_events": 60}, {"train__batch_size": 2}),
}
WITH_AUTOGRAD = {
    "node features": ({"node_width": 4}, {}),
    "learned phase": ({}, {"model__learn_phase": True}),
    "mailbox": ({}, {"memory__updater": "transformer", "memory__mailbox_slots": 2}),
    "pair decoder": ({}, {"task__decoder": "pair"}),
}


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """Makes a partition set of a graph with these options. Collective."""

    def make(options):
        graph = mpi_tmp_path / "graph.h5"
        on_rank_0(comm, lambda: bipartite(graph, **options) and None)
        return make_parts(comm, graph, mpi_tmp_path / "parts")

    return make


@pytest.mark.parametrize("case", BY_HAND)
def test_equals_autograd(comm, parts, case, monkeypatch):
    options, changes = BY_HAND[case]
    folder, config = parts(options), make_config(**changes)
    assert make_link_step(open_session(comm, folder, config).model, binary_loss) is not None
    by_hand = record_epoch(comm, folder, config)
    monkeypatch.setattr(temporal_link, "make_link_step", lambda model, loss: None)
    with_autograd = record_epoch(comm, folder, config)
    if comm.rank == 0:
        assert_same(by_hand, with_autograd)


@pytest.mark.parametrize("case", WITH_AUTOGRAD)
def test_other_models_keep_autograd(comm, parts, case):
    options, changes = WITH_AUTOGRAD[case]
    assert make_link_step(open_session(comm, parts(options), make_config(**changes)).model, binary_loss) is None


@pytest.mark.parametrize("joined", [True, False])
def test_gradients_are_added(comm, parts, joined):
    """To gradients that lie in one piece, as the optimizer's do, or anywhere; where there are none they are made."""
    session = open_session(comm, parts({}), make_config())
    parameters = [p for p in session.model.parameters() if p.requires_grad]
    flat, found = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64), []
    for start in (None, 0.0, 2.0):
        session.memory.reset()
        flat.fill_(start or 0.0)
        pieces = [
            piece.view_as(p) for p, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True)
        ]
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = None if start is None else piece if joined else piece.clone()
        with session.plans("train", 0) as plans:
            for plan in plans:
                if plan.step == 0:
                    session.task.train(plan)
        found.append(torch.cat([p.grad.flatten() for p in parameters]) - (start or 0.0))
    assert found[0].abs().max() > 0
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------ subclasses of what has a kernel


class ScaledGru(GruUpdater):
    """A gated unit whose rows stay within 0.01."""

    def _step(self, state, mail, dt):
        return super()._step(state, mail, dt).clamp(-0.01, 0.01)


class ReluRnn(RnnUpdater):
    """A plain cell that rectifies."""

    def _step(self, state, mail, dt):
        from_mail, from_state = self._products(state, mail, dt)
        return torch.relu(from_mail + from_state)


class Lstm(RecurrentUpdater):
    """Four gates; the state is both hidden row and cell."""

    cell_type, gates = nn.LSTMCell, 4

    def _step(self, state, mail, dt):
        return self.cell(torch.cat([mail, self.time(dt)], dim=1), (state, state))[0]


class HalvedGru(GruUpdater):
    """A gated unit, of whose rows ``forward`` takes the half."""

    def forward(self, *arguments):
        return super().forward(*arguments) / 2


class Sawtooth(TimeEncoding):
    """Another encoding of times."""

    def forward(self, dt):
        return (super().forward(dt) + 1) % 1


def dense_cell(updater, state, mail, dt):
    """The new states by NumPy, from the formulas of the cells in torch's documentation."""
    w_ih, w_hh, b_ih, b_hh = (weight.detach().numpy() for weight in updater.weights())
    angle = dt[:, None] * updater.time.frequency.numpy() + updater.time.phase.detach().numpy()
    encoded = (np.cos(angle) + 1) % 1 if type(updater.time) is Sawtooth else np.cos(angle)
    a, b = np.concatenate([mail, encoded], 1) @ w_ih.T + b_ih, state @ w_hh.T + b_hh
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    if isinstance(updater, ReluRnn):
        return np.maximum(a + b, 0)
    if isinstance(updater, Lstm):
        take, keep, new, show = np.split(a + b, 4, axis=1)
        return sigmoid(show) * np.tanh(sigmoid(keep) * state + sigmoid(take) * np.tanh(new))
    (r, z, n), (hr, hz, hn) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
    z = sigmoid(z + hz)
    new = (1 - z) * np.tanh(n + sigmoid(r + hr) * hn) + z * state
    return {ScaledGru: np.clip(new, -0.01, 0.01), HalvedGru: new / 2}.get(type(updater), new)


@pytest.mark.serial
@pytest.mark.parametrize("time", [TimeEncoding, Sawtooth])
@pytest.mark.parametrize("updater_type", [GruUpdater, ScaledGru, ReluRnn, Lstm, HalvedGru])
def test_an_updater_of_ones_own_keeps_its_step(updater_type, time):
    """The kernel has two cells; a subclass of theirs is not one of them, whichever rows are updated."""
    torch.manual_seed(1)
    updater = updater_type(UpdaterSizes(5, 4, time(3))).double()
    state, mail = torch.randn(7, 4).double(), torch.randn(7, 1, 5).double()
    mailed, updated = torch.arange(7) * 3 + 10, torch.arange(7)
    expected = dense_cell(updater, state.numpy(), mail[:, 0].numpy(), (mailed - updated).numpy())
    tables = (state, mail, updated, mailed[:, None], torch.ones(7, dtype=torch.int64))
    with torch.no_grad():
        rows, some = updater(*tables), updater(*tables, torch.tensor([5, 2]))
    np.testing.assert_allclose(rows.numpy(), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(some.numpy(), expected[[5, 2]], rtol=0, atol=1e-12)


class Squashed(AttentionReadout):
    """Attention whose rows are between -1 and 1."""

    def forward(self, *arguments):
        return torch.tanh(super().forward(*arguments))


class SquashedLayer(TemporalAttentionLayer):
    """A layer whose rows are between -1 and 1."""

    def forward(self, *arguments):
        return torch.tanh(super().forward(*arguments))


class Negated(MlpDecoder):
    """Scores of the other sign."""

    def forward(self, source, destination):
        return -super().forward(source, destination)


class PlainNorm(nn.Module):
    """A norm that is none of torch's, with the attributes that the kernel would read."""

    def __init__(self, width):
        super().__init__()
        self.eps = 1e-5
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, rows):
        return rows * self.weight + self.bias


class Halved(TimeEncoding):
    """Half of the built-in encoding."""

    def forward(self, dt):
        return torch.cos(dt.unsqueeze(1) * self.frequency + self.phase) / 2


class OtherNorm(AttentionReadout):
    """Attention with another norm in its layers, put in from outside."""

    def __new__(cls, *arguments):
        made = AttentionReadout(*arguments)
        for layer in made.layers:
            layer.norm = PlainNorm(layer.merge.out_features)
        return made


class OtherLayers(AttentionReadout):
    """Attention by layers of a subclass."""

    def __new__(cls, *arguments):
        made = AttentionReadout(*arguments)
        for layer in made.layers:
            layer.__class__ = SquashedLayer
        return made


def with_part(table, name, make):
    """A table whose row of a name makes another part."""
    return {**table, name: replace(table[name], make=make)}


REPLACED = {
    "clamped updater": (models, "UPDATERS", with_part(UPDATERS, "gru", ScaledGru)),
    "lstm": (models, "UPDATERS", with_part(UPDATERS, "gru", Lstm)),
    "times": (models, "TimeEncoding", Sawtooth),
    "halved times": (models, "TimeEncoding", Halved),
    "readout": (models, "READOUTS", with_part(READOUTS, "attention", Squashed)),
    "layer": (models, "READOUTS", with_part(READOUTS, "attention", OtherLayers)),
    "norm": (models, "READOUTS", with_part(READOUTS, "attention", OtherNorm)),
    "decoder": (models, "DECODERS", with_part(DECODERS, "mlp", lambda sizes: Negated(sizes.width))),
}


@pytest.mark.parametrize("case", REPLACED)
def test_parts_of_ones_own_are_computed_in_training_and_evaluation(comm, parts, case, monkeypatch):
    """As where no layer is native at all; and they do change the numbers."""
    folder, config = parts({}), make_config(model__layers=2)
    built_in = record_epoch(comm, folder, config, steps=4)
    monkeypatch.setattr(*REPLACED[case])
    assert make_link_step(open_session(comm, folder, config).model, binary_loss) is None
    own = record_epoch(comm, folder, config, steps=4)
    for module in ("temporal.model.updater", "temporal.model.readout", "nn.decoders"):
        monkeypatch.setattr(f"hpcgnn.{module}.can_multiply", lambda *tensors: False)
    plain = record_epoch(comm, folder, config, steps=4)
    if comm.rank == 0:
        assert_same(own, plain)
        assert not np.allclose(own.losses, built_in.losses, rtol=1e-6)


@pytest.mark.serial
def test_attention_sees_times_as_they_are_encoded():
    """Half of an encoding with doubled weights for it, in query and keys, gives what the whole one does."""
    torch.manual_seed(3)
    one, other = (TemporalAttentionLayer(4, 2, 6, 2, time(3)).double() for time in (TimeEncoding, Halved))
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        other.query.weight[:, 4:] *= 2
        other.key[..., 6:] *= 2
        other.value[..., 6:] *= 2
    slot = torch.tensor([[0, 3, -1], [1, -1, -1], [-1, -1, -1]], dtype=torch.int32)
    count, dt = (slot >= 0).sum(1).int(), torch.tensor([[5, 70, 0], [900, 0, 0], [0, 0, 0]])
    order = torch.argsort(slot.flatten()[slot.flatten() >= 0])
    edge_of = torch.where(slot >= 0, torch.tensor([[0, 1, 0], [2, 0, 0], [0, 0, 0]], dtype=torch.int32), -1)
    plan = native.AttentionPlan(slot, count, dt, edge_of.int(), torch.tensor([0, 1, 2, 2, 3]), order)
    node, edge = torch.randn(4, 4).double(), torch.randn(3, 2).double()
    rows = [layer(node, node[:3], edge, plan) for layer in (one, other)]
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-12)
