"""Runs planned steps on snapshots: frames, the model, the loss, the backward pass through halo exchanges.

n nodes of this rank, k sequences followed at once, C output columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from hpcgnn.comm.everyone import RankRows
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain, RankHalo, StaleRows
from hpcgnn.comm.relay import Handed, Relay
from hpcgnn.nn.batch_norm import BatchNorm
from hpcgnn.nn.sequence_model import SequenceModel, State
from hpcgnn.nn.snapshot import Frame, Graph, Snapshot
from hpcgnn.nn.step_key import StepKey
from hpcgnn.sample.snapshot_blocks import Block
from hpcgnn.sample.snapshot_plan import SnapshotPlan
from hpcgnn.store.sequence_rows import SequenceRows
from hpcgnn.timers import Timers


class Objective(Protocol):
    """What a goal tells of one target: scores from the model's outputs, and the loss, a sum over what is predicted."""

    def score(self, outputs: torch.Tensor, wanted: Any, chain: HaloChain) -> Any:
        """Collective. Scores from the outputs [n, C] at one target."""

    def loss(self, scores: Any) -> torch.Tensor:
        """The sum over this rank's predictions."""

    def join(self, scores: list, training: bool) -> Any:
        """Scores of several targets, or of none, as those of one step."""


class SnapshotTask:
    """Collective to create; so are ``train``, ``score`` and ``evaluate``. inputs(number): what is known of the nodes in
    a snapshot [n, F], collective; carries: state goes on from step to step; relay: hands it from group to group where
    groups split time, None: there is but one. last_scores: of the newest training step."""

    def __init__(
        self, model: SequenceModel, objective: Objective, rows: SequenceRows, inputs: Callable[[int], torch.Tensor],
        identity: torch.Tensor, carries: bool, seed: int, channel: Channel, timers: Timers,
        relay: Relay | None = None, staleness: int = 0, overlap: bool = True,
    ):  # fmt: skip
        self.model, self._objective, self._rows, self._inputs = model, objective, rows, inputs
        self._identity, self._carries, self._seed, self._channel = identity, carries, seed, channel
        self.timers, self.last_scores, self._relay = timers, None, relay
        self._stale, self._overlap = StaleRows(staleness) if staleness else None, overlap
        self._smoothed: dict[int, dict] = {}
        self._counts = tuple(channel.everyone(torch.tensor([len(identity)])).tolist())
        self._norms = [part for part in model.modules() if isinstance(part, BatchNorm)]

    def train(self, plan: SnapshotPlan) -> torch.Tensor:
        """Collective. Gradients of one step; returns this rank's part of the loss."""
        self.model.train()
        chain, learnt = self._chain(), self._learnt()
        with self.timers("compute"):
            scores, tokens = self._run(plan, chain, learnt)
            loss = sum((self._objective.loss(score) for score in scores), self._zero()) / max(1, plan.batch_size)
            tied = sum((0 * token for token in tokens), chain.tie(loss))
            if tied.requires_grad:
                tied.backward()
        for norm in self._norms:
            norm.settle(None if self._relay is None else self._relay.sum)
        if learnt is not None:
            assert self._rows.learnt is not None
            gradient = torch.zeros_like(learnt) if learnt.grad is None else learnt.grad
            self._rows.learnt.move(gradient if self._relay is None else self._relay.sum(gradient))
        self.last_scores = self._objective.join(scores if plan.begins else [], True).detach()
        return loss.detach()

    @torch.no_grad()
    def score(self, plan: SnapshotPlan):
        """Collective. Scores of one step."""
        self.model.eval()
        with self.timers("compute"):
            return self._objective.join(self._run(plan, self._chain(), self._learnt())[0], False)

    evaluate = score

    @torch.no_grad()
    def outputs(self, plan: SnapshotPlan) -> list[torch.Tensor]:
        """Collective. The model's outputs [n, C] at every target of a plan; the state moves on."""
        self.model.eval()
        return self._outputs(plan, self._chain(), self._learnt())[0]

    def _chain(self) -> HaloChain:
        return HaloChain(self.timers, self._overlap)

    def _run(self, plan: SnapshotPlan, chain: HaloChain, learnt: torch.Tensor | None) -> tuple[list, list]:
        """Collective. Scores of the plan's targets, and tokens that must be part of the loss; the state moves on."""
        outputs, tokens = self._outputs(plan, chain, learnt)
        found = zip(outputs, plan.wanted, strict=True)
        return [self._objective.score(rows, wanted, chain) for rows, wanted in found], tokens

    def _outputs(self, plan: SnapshotPlan, chain: HaloChain, learnt: torch.Tensor | None) -> tuple[list, list]:
        """Collective. Outputs [n, C] at the targets, and tokens that must be part of the loss; the state moves on."""
        frames = self._frames(plan, chain, learnt)
        tokens: list = []
        if self._carries:
            outputs, state = self._carry(frames, tokens)
            if plan.ends:
                self._rows.remember(state)
        else:
            outputs = list(self.model(frames, self.model.begin(frames[0].inputs))[0][-1].unbind(1)) if frames else []
        return outputs, tokens

    def _carry(self, frames: list[Frame], tokens: list) -> tuple[list[torch.Tensor], State]:
        """Collective. Outputs [n, C] of the frames, one sequence, and the state that the next step begins with."""
        state = self._state()
        relay = self._relay if state else None  # nothing is remembered: nothing is handed on
        if relay is not None and not relay.is_first:
            state = Handed(relay, state, tokens)
        outputs, after = self.model(frames, state) if frames else ([], dict(state))
        if relay is not None:
            names, values = list(after), list(after.values())
            if not relay.is_last:
                tokens.append(relay.send(values))
            after = dict(zip(names, relay.close_round([value.detach() for value in values]), strict=True))
        return [rows.squeeze(1) for rows in outputs], after

    def _zero(self) -> torch.Tensor:
        """The loss of nothing."""
        return self._rows.zero()

    def _learnt(self) -> torch.Tensor | None:
        """Learnable inputs [n, E] as a leaf of the backward pass."""
        if self._rows.learnt is None:
            return None
        return self._rows.learnt.weight.detach().requires_grad_(torch.is_grad_enabled())

    def _state(self) -> State:
        """As a step begins that carries on."""
        state = self.model.begin(self._rows.zero().new_zeros(len(self._identity), 1, 0))
        if self._rows.fresh:
            return state
        kept = {name: value.unsqueeze(1) for name, value in self._rows.state.items()}
        return dict(state) | kept | {name: value.unsqueeze(0) for name, value in self._rows.shared.items()}

    def _frames(self, plan: SnapshotPlan, chain: HaloChain, learnt: torch.Tensor | None) -> list[Frame]:
        """Collective."""
        stale = self._stale if self.model.training else None
        if stale is not None:
            stale.begin(plan.epoch, plan.step)
        graphs = {id(pair): self._graph(pair, chain, stale) for pair in plan.blocks.values()}
        whole = {id(pair): self._graph(pair, chain) for pair in plan.whole.values()}
        key = StepKey(self._seed, plan.epoch, plan.step, self.model.training)
        snapshots = {}
        for number, pair in plan.blocks.items():
            inputs = self._inputs(number)
            if learnt is not None:
                inputs = torch.cat([inputs, learnt], dim=1)
            kept = self._smoothed.setdefault(number, {}) if learnt is None else None
            graph = graphs[id(pair)]
            snapshots[number] = Snapshot(number, graph, inputs, self._identity, kept, whole[id(plan.whole[number])])
        everyone = RankRows(chain, self._channel) if self._channel.size > 1 else None
        shared = key, everyone, self._counts
        return [Frame([snapshots[number] for number in frame], *shared) for frame in plan.frames]

    def _graph(self, pair: tuple[Block, Block | None], chain: HaloChain, stale: StaleRows | None = None) -> Graph:
        into, out = pair
        halos = [None if block is None else self._halo(block, chain, stale) for block in pair]
        return Graph(into.neighborhood, halos[0], None if out is None else out.neighborhood, halos[1])

    def _halo(self, block: Block, chain: HaloChain, stale: StaleRows | None) -> RankHalo | None:
        return None if block.route is None else RankHalo(chain, block.route.over(self._channel), stale)
