"""Runs planned steps on snapshots: frames, the model, the loss, the backward pass through halo exchanges.

Learnable inputs and what the model remembers are kept at the owners of their nodes, and saved in checkpoints. n nodes
of this rank, k sequences followed at once, C output columns, W columns of a kept row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain, RankHalo, RankRows, StaleRows
from hpcgnn.comm.relay import Handed, Relay
from hpcgnn.comm.timers import Timers
from hpcgnn.graph.embeddings import SparseEmbedding
from hpcgnn.graph.saved_rows import NodeRowStore, SavedRows
from hpcgnn.loop.session import Task
from hpcgnn.native.random import StepKey
from hpcgnn.nn.batch_norm import norms_of
from hpcgnn.snapshots.config import SnapshotSamplingConfig
from hpcgnn.snapshots.goals import SnapshotGoal
from hpcgnn.snapshots.model.frame import RELATION, EvolvedOutputs, Frame, Neighbors, SequenceModel, Snapshot, State
from hpcgnn.snapshots.neighborhood import Neighborhood
from hpcgnn.snapshots.plan import SnapshotPlan


class SequenceRows(NodeRowStore):
    """Keeps rows of nodes from step to step. identity [n]: row ids of this rank's nodes, on the device; state: rows [n,
    W] by name; shared: further state, equal on all ranks; both begin anew with every epoch. learned: learnable
    embeddings, or None."""

    def __init__(
        self, identity: torch.Tensor, widths: dict[str, int], learned: SparseEmbedding | None, dtype: torch.dtype
    ):
        self.identity, self.learned, self._widths = identity, learned, widths
        self._like = torch.empty(0, dtype=dtype, device=identity.device)
        self.saved_shared: dict[str, torch.Tensor] = {}
        self.reset()

    @property
    def num_learned(self) -> int | None:
        """Number of this rank's learnable embeddings; None without any."""
        return None if self.learned is None else len(self.identity)

    def reset(self) -> None:
        """Forget the state."""
        self.state = {name: self._like.new_zeros(len(self.identity), width) for name, width in self._widths.items()}
        self.shared: dict[str, torch.Tensor] = {}  # empty: as the model begins
        self.fresh = True

    def remember(self, state: Mapping[str, torch.Tensor]) -> None:
        """Keep the state after a step: [n, 1, W] of nodes, [1, ...] of all."""
        self.fresh = False
        for name, value in state.items():
            rows = value.detach().squeeze(1 if name in self._widths else 0)
            (self.state if name in self._widths else self.shared)[name] = rows

    def zero(self) -> torch.Tensor:
        """Return the number 0, of the type and device of the rows."""
        return self._like.new_zeros(())

    def saved(self) -> list[SavedRows]:
        """Copy all rows of this rank, and into ``saved_shared`` the state that all ranks share now."""
        self.saved_shared = {name: value.clone() for name, value in self.shared.items()}
        columns = self._columns()
        rows = torch.arange(len(self.identity))
        return [SavedRows(rows, {name: value.clone() for name, value in columns.items()})] if columns else []

    def between_epochs(self) -> list[SavedRows]:
        """Copy the learnable embeddings; the state begins anew."""
        saved = self.saved()
        self.saved_shared = {}
        for piece in saved:
            piece.columns.update({f"state.{name}": torch.zeros_like(value) for name, value in self.state.items()})
        return saved

    def prototype(self) -> dict[str, torch.Tensor]:
        """Return the columns, without any row."""
        return {name: column[:0] for name, column in self._columns().items()}

    def put(self, saved: SavedRows) -> None:
        """Set the columns that are there of some of this rank's rows."""
        columns = self._columns()
        for name, values in saved.columns.items():
            columns[name][saved.rows.to(values.device)] = values
        self.fresh = False

    def put_shared(self, shared: dict[str, torch.Tensor]) -> None:
        """Set the state that all ranks share, from a copy of ``saved_shared``."""
        self.shared = {name: value.to(self._like.device, self._like.dtype) for name, value in shared.items()}
        self.fresh = self.fresh and not shared

    def put_write(self, pieces: list[SavedRows], channel: Channel) -> None:
        """Refuse saved writes that wait: a run on snapshots saves none."""
        raise ValueError("the checkpoint has pending writes of node memory, which runs on snapshot graphs do not have")

    def _columns(self) -> dict[str, torch.Tensor]:
        learned = {} if self.learned is None else self.learned.columns()
        return {**learned, **{f"state.{name}": value for name, value in self.state.items()}}


STATE = "state."


class SnapshotTask(Task):
    """Runs planned steps; collective to create, and so are ``train``, ``score`` and ``evaluate``. inputs(number):
    features of the nodes in a snapshot [n, F], collective; sampling: the section, None: its defaults. relay: hands
    state from group to group where groups split time, None: there is one group only."""

    def __init__(
        self, model: SequenceModel, goal: SnapshotGoal, rows: SequenceRows, inputs: Callable[[int], torch.Tensor],
        channel: Channel, timers: Timers | None = None, *, sampling: SnapshotSamplingConfig | None = None,
        seed: int = 0, relay: Relay | None = None, overlap: bool = True,
    ):  # fmt: skip
        self.model, self._goal, self._rows, self.inputs = model, goal, rows, inputs
        self._seed, self._channel, self._relay, self._overlap = seed, channel, relay, overlap
        self.timers = timers or Timers()
        self._sampling = sampling or SnapshotSamplingConfig()
        self._stale = StaleRows(self._sampling.halo_staleness) if self._sampling.halo_staleness else None
        self._smoothed: dict[int, dict] = {}
        self._counts = tuple(channel.everyone(torch.tensor([len(rows.identity)])).tolist())
        self._norms = norms_of(model)

    def train(self, plan: SnapshotPlan) -> torch.Tensor:
        """Collective. Form the gradients of one step; returns this rank's part of the loss."""
        self.model.train()
        chain, learned = self._chain(), self._learned()
        with self.timers("compute"):
            scores, tokens = self._run(plan, chain, learned)
            loss = sum((self._goal.loss(score) for score in scores), self._rows.zero()) / max(1, plan.batch_size)
            # Halo exchanges are collective backward, too: the loss is tied to all of them, so that a rank without
            # predictions takes part, and all ranks run them in one order.
            tied = sum((0 * token for token in tokens), chain.tie(loss))
            if tied.requires_grad:
                tied.backward()
        for norm in self._norms:  # in one order in all groups: their sum is collective
            norm.settle(None if self._relay is None else self._relay.sum)
        if learned is not None:
            assert self._rows.learned is not None
            gradient = torch.zeros_like(learned) if learned.grad is None else learned.grad
            self._rows.learned.move(gradient if self._relay is None else self._relay.sum(gradient))
        self.last_scores = self._goal.join(scores if plan.begins else [], True).detach()
        return loss.detach()

    @torch.no_grad()
    def score(self, plan: SnapshotPlan):
        """Collective. Return the scores of one step."""
        self.model.eval()
        with self.timers("compute"):
            return self._goal.join(self._run(plan, self._chain(), self._learned())[0], False)

    evaluate = score

    @torch.no_grad()
    def outputs(self, plan: SnapshotPlan) -> list[torch.Tensor]:
        """Collective. Return the model's outputs [n, C] at every target of a plan; the state moves on."""
        self.model.eval()
        return self._outputs(plan, self._chain(), self._learned())[0]

    def can_resume(self, epoch: int, step: int) -> bool:
        """Whether a run can resume exactly before a step: with stale rows, only where they are brought anew."""
        period = self._sampling.halo_staleness + 1
        return period == 1 or (epoch % period == 0 and step == 0)

    def run_state(self) -> dict[str, torch.Tensor]:
        """Return the state that all ranks share, as of the newest ``saved`` of the rows."""
        return {STATE + name: value for name, value in self._rows.saved_shared.items()}

    def restore_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore the tensors of ``run_state``."""
        shared = {name.removeprefix(STATE): value for name, value in tensors.items() if name.startswith(STATE)}
        self._rows.put_shared(shared)

    def close(self) -> None:
        """Collective. Free the relay between groups that split time."""
        if self._relay is not None:
            self._relay.close()

    def _chain(self) -> HaloChain:
        return HaloChain(self.timers, self._overlap)

    def _run(self, plan: SnapshotPlan, chain: HaloChain, learned: torch.Tensor | None) -> tuple[list, list]:
        """Collective. Score the plan's targets. Also returns a scalar for each send to the next group: add 0 times each
        to the loss, so that the backward pass receives the gradient of what was sent."""
        outputs, tokens = self._outputs(plan, chain, learned)
        pairs = zip(outputs, plan.needs, strict=True)
        return [self._goal.score(rows, needs, chain) for rows, needs in pairs], tokens

    def _outputs(self, plan: SnapshotPlan, chain: HaloChain, learned: torch.Tensor | None) -> tuple[list, list]:
        """Collective. Compute outputs [n, C] at the targets, and the scalars of ``_run``; the state moves on."""
        frames = self._frames(plan, chain, learned)
        tokens: list = []
        if not self._sampling.window_size:
            outputs, state = self._carry(frames, tokens)
            if plan.ends:
                self._rows.remember(state)
        else:
            outputs = self._follow_windows(frames) if frames else []
        return outputs, tokens

    def _follow_windows(self, frames: list[Frame]) -> list:
        """Collective. Compute outputs [n, C] at the ends of windows, with the rows of edge types where the model
        evolves these."""
        outputs, after = self.model(frames, self.model.begin(frames[0].inputs))
        rows = list(outputs[-1].unbind(1))
        if not self.model.evolves_relations:
            return rows
        return [EvolvedOutputs(*pair) for pair in zip(rows, after[RELATION], strict=True)]

    def _carry(self, frames: list[Frame], tokens: list) -> tuple[list[torch.Tensor], State]:
        """Collective. Compute outputs [n, C] of the frames, one sequence, and the state that the next step begins
        with."""
        state = self._state()
        relay = self._relay if state else None  # a model without state has nothing to hand on
        if relay is not None and not relay.is_first:
            state = Handed(relay, state, tokens)
        outputs, after = self.model(frames, state) if frames else ([], dict(state))
        if relay is not None:
            names, values = list(after), list(after.values())
            if not relay.is_last:
                tokens.append(relay.send(values))
            after = dict(zip(names, relay.close_round([value.detach() for value in values]), strict=True))
        return [rows.squeeze(1) for rows in outputs], after

    def _learned(self) -> torch.Tensor | None:
        """Return the learnable embeddings [n, E] as a leaf of the backward pass."""
        if self._rows.learned is None:
            return None
        return self._rows.learned.weight.detach().requires_grad_(torch.is_grad_enabled())

    def _state(self) -> State:
        """Return the state that a step begins with when state is carried on."""
        state = self.model.begin(self._rows.zero().new_zeros(len(self._rows.identity), 1, 0))
        if self._rows.fresh:
            return state
        of_nodes = {name: value.unsqueeze(1) for name, value in self._rows.state.items()}
        return dict(state) | of_nodes | {name: value.unsqueeze(0) for name, value in self._rows.shared.items()}

    def _frames(self, plan: SnapshotPlan, chain: HaloChain, learned: torch.Tensor | None) -> list[Frame]:
        """Collective. Make the frames of a step from its plan."""
        stale = self._stale if self.model.training else None
        if stale is not None:
            stale.begin(plan.epoch, plan.step)  # before any halo: it decides which of them exchange rows in this step
        seen = {id(pair): self._neighbors(pair, chain, stale) for pair in plan.blocks.values()}
        whole = {id(pair): self._neighbors(pair, chain) for pair in plan.whole.values()}
        key = StepKey(self._seed, plan.epoch, plan.step, self.model.training)
        snapshots, standard = {}, self.model.standard_inputs
        for number, pair in plan.blocks.items():
            inputs = self.inputs(number) if standard is None else standard(self.inputs(number))
            if learned is not None:
                inputs = torch.cat([inputs, learned], dim=1)
            smoothed = self._smoothed.setdefault(number, {}) if learned is None else None
            neighbors, all_neighbors = seen[id(pair)], whole[id(plan.whole[number])]
            snapshots[number] = Snapshot(number, neighbors, inputs, self._rows.identity, smoothed, all_neighbors)
        everyone = RankRows(chain, self._channel) if self._channel.size > 1 else None
        shared = key, everyone, self._counts
        return [Frame([snapshots[number] for number in frame], *shared) for frame in plan.frames]

    def _neighbors(
        self, pair: tuple[Neighborhood, Neighborhood | None], chain: HaloChain, stale: StaleRows | None = None
    ) -> Neighbors:
        """Bring to the device a snapshot's neighbors along in-edges and out-edges, with the halos that bring their
        remote nodes."""
        into, out = pair
        halos = [
            RankHalo(chain, side.route.over(self._channel), stale) if side is not None and side.route else None
            for side in pair
        ]
        return Neighbors(into, halos[0], out, halos[1])
