"""Runs planned steps on temporal events: memory is read through the step's route, updated, and written back by winners.

`memory.update_at: owner`: the owner works the mail in once, users pull the result, and gradients go back by push_sum.
`user`: users pull memory and mail and each works the mail in for itself: more bytes and flops, one exchange less.

A task adds its scores and its loss. Links: whether an event happens, against negatives. Labels: "node" is dynamic node
classification (Kumar et al., JODIE, KDD 2019; Rossi et al., TGN, 2020). There the label of event (u, v, t) is the state
of u at t, predicted from the embedding of u just before the event. "edge" and "edge_regression" see both endpoints and
the event's features. "node_class" predicts the class of a node at a time from its embedding. b events, k negatives, C
classes, Z embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel, Transfer
from hpcgnn.comm.timers import Timers
from hpcgnn.loop.session import StepTask
from hpcgnn.native import Random, Stream
from hpcgnn.native.layers import KeyedDropout
from hpcgnn.task.goal import StepScores
from hpcgnn.task.labels import MISSING, Head, LabelScores
from hpcgnn.task.links import LinkScores
from hpcgnn.task.losses import Loss
from hpcgnn.temporal.config import TemporalModelConfig, TemporalTaskConfig
from hpcgnn.temporal.graph import EDGE_TYPE, LABEL
from hpcgnn.temporal.memory import NodeMemory, newest_mail
from hpcgnn.temporal.model.model import TemporalModel
from hpcgnn.temporal.model.native_step import LinkStep, make_link_step
from hpcgnn.temporal.node_classes import read_label_input
from hpcgnn.temporal.plan import Announcement, Delivery, StepPlan, WritePlan


@dataclass(slots=True)
class Reading:
    """Rows that a step read. memory [U, D]: of its unique nodes; served [S, D]: the owner's updated rows (owner mode);
    last [U]: times of the last mails (where the model needs them)."""

    memory: torch.Tensor
    served: torch.Tensor | Any
    last: torch.Tensor | None


class TemporalTask(StepTask):
    """Runs planned steps. ``train``, ``evaluate``, ``score`` and ``embed`` are collective.

    A task defines the scores of embeddings (``_score``) and the loss (``_loss``). freeze: the head (the model's
    ``decoder``, and its rows of edge types) alone is trained: all below it works as in evaluation. staleness k: a
    training step reads memory as it was k steps before the newest one, while the writes since then are under way;
    everything else reads all writes.
    """

    def __init__(
        self,
        model: TemporalModel,
        memory: NodeMemory,
        update_at: str,
        seed: int,
        timers: Timers,
        channel: Channel,
        freeze: bool = False,
        staleness: int = 0,
    ):
        super().__init__()
        self.model, self.memory, self._seed, self._timers = model, memory, seed, timers
        self._channel, self._freeze, self._staleness = channel, freeze, staleness
        self._at_owner = update_at == "owner" and model.has_memory
        self._walks: Any = getattr(model, "walks", None)  # a custom model has no such attribute
        if freeze:
            model.requires_grad_(False)
            for part in (model.decoder, getattr(model, "edge_type", None)):  # a custom model may have no edge types
                if part is not None:
                    part.requires_grad_(True)

    def _train(self, plan: StepPlan) -> tuple[torch.Tensor | float, Any]:
        with torch.set_grad_enabled(not self._freeze):
            reading = self._read(plan)
        with self._timers("compute"):
            with torch.set_grad_enabled(not self._freeze):
                embedding, parts = self._embed(plan, reading)
            scores = self._score(self._with_walks(plan, reading), embedding)
            loss = self._loss(scores, plan.batch_size)
            loss.backward()
        self._backward(plan, reading)
        self._write(plan, reading, parts)
        return loss.detach(), scores.detach()

    @torch.no_grad()
    def score(self, plan: StepPlan) -> StepScores:
        """Collective. Score only; memory stays unchanged."""
        self._set_mode(training=False)
        reading = self._read_all(plan)
        return self._score(self._with_walks(plan, reading), self._embed(plan, reading)[0])

    @torch.no_grad()
    def embed(self, plan: StepPlan) -> torch.Tensor:
        """Collective. Compute the embeddings [R, b, Z] of the roots; memory stays unchanged."""
        self._set_mode(training=False)
        embedding, _ = self._embed(plan, self._read_all(plan))
        return plan.query.by_role(embedding)

    @torch.no_grad()
    def evaluate(self, plan: StepPlan) -> StepScores:
        """Collective. Score, then write memory back."""
        self._set_mode(training=False)
        reading = self._read_all(plan)
        with self._timers("compute"):
            embedding, parts = self._embed(plan, reading)
            scores = self._score(self._with_walks(plan, reading), embedding)
        self._write(plan, reading, parts)
        self.memory.settle()  # whatever the staleness: the next plan of evaluation reads this write
        return scores

    def _set_mode(self, training: bool) -> None:
        below = training and not self._freeze
        if (self.model.training, self.model.decoder.training) != (below, training):
            self.model.train(below)
            self.model.decoder.train(training)

    def _with_walks(self, plan: StepPlan, reading: Reading) -> StepPlan:
        """Add the numbers of walks to the numbers of pairs, for a decoder that reads them."""
        if not getattr(self.model, "needs_walks", False):
            return plan
        numbers = self.model.numbers(reading.memory, plan.query, reading.last)
        return replace(plan, clocks=numbers if plan.clocks is None else torch.cat([plan.clocks, numbers], 2))

    def _score(self, plan: StepPlan, embedding: torch.Tensor) -> StepScores:
        """Score the events from the embeddings [N, Z] of the roots."""
        raise NotImplementedError

    def _loss(self, scores: Any, batch_size: int) -> torch.Tensor:
        """Return this rank's share of the loss: sums over its events, divided by the global batch's number of
        events."""
        raise NotImplementedError

    def _read_all(self, plan: StepPlan) -> Reading:
        """Collective. Read what a step needs, behind all writes."""
        self.memory.settle()
        return self._read(plan)

    def _read(self, plan: StepPlan, update: Callable[..., torch.Tensor] | None = None) -> Reading:
        """Collective. Read what a step needs. ``update`` works the mails in; None: the model does."""
        if not self._at_owner:
            return self._read_at_user(plan, update)
        table, served_rows = self.memory.table, plan.route.served
        with self._timers("compute"):
            work_in: Callable[..., torch.Tensor] = update or self.model.update
            served = work_in(*table.tensors(), index=served_rows)
        with self._timers("exchange"):
            times = (self.memory.newest(served_rows),) if self.model.needs_last else ()
            memory, *last = plan.route.pull_served(served.detach(), *times)
        # Autograd ends at the pulled rows: an exchange inside it would hang where a rank's loss does not reach them.
        if torch.is_grad_enabled() and self._walks is None:
            memory.requires_grad_()
        return Reading(memory, served, last[0] if times else None)

    def _read_at_user(self, plan: StepPlan, update) -> Reading:
        if not self.model.has_memory:
            return Reading(self.memory.table.state.new_empty((plan.route.num_wanted, 0)), None, None)
        with self._timers("exchange"):
            rows = plan.route.pull(*self.memory.table.tensors())
        with self._timers("compute"):
            memory = (update or self.model.update)(*rows)
        _, _, _, mailed, delivered = rows
        return Reading(memory, None, newest_mail(mailed, delivered))

    def _embed(self, plan: StepPlan, reading: Reading) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute embeddings [N, Z], and what they put into mails (None: memory does)."""
        node, model = self.model.base(reading.memory, plan.node_feature), self.model
        embedding = model.embed(node, plan.query, reading.last, self._dropout(plan))
        if plan.write is None or model.config.message_from == "memory":
            return embedding, None
        with torch.no_grad():
            return embedding, model.mail_parts(node, plan.query, embedding)

    def _dropout(self, plan: StepPlan) -> KeyedDropout | None:
        return self.model.dropout(Random(self._seed, Stream.DROPOUT, plan.step, plan.epoch), plan.query.identity)

    def _backward(self, plan: StepPlan, reading: Reading) -> None:
        """Send, in owner mode, gradients of the pulled rows to their owners, through the update. On every rank,
        always."""
        if not self._at_owner or self._freeze or self._walks is not None:
            return
        gradient = reading.memory.grad if reading.memory.grad is not None else torch.zeros_like(reading.memory)
        with self._timers("exchange"):
            served_gradient = plan.route.push_sum(gradient)
        if reading.served.requires_grad:
            with self._timers("compute"):
                reading.served.backward(served_gradient)

    @torch.no_grad()
    def _write(self, plan: StepPlan, reading: Reading, parts: torch.Tensor | None) -> None:
        if plan.write is None:
            return
        with self._timers("write-back"):
            if plan.delivery is not None:
                self._deliver(plan, plan.write, plan.delivery, reading, parts, more=plan.hot is not None)
            elif isinstance(plan.write, Announcement):
                self._announce(plan, plan.write, reading, parts)
            else:
                self._write_winners(plan, reading, parts)
            if plan.hot is not None and plan.hot_delivery is not None:
                self._deliver(plan, plan.hot, plan.hot_delivery, reading, parts)
            elif plan.hot is not None:
                self._announce(plan, plan.hot, reading, parts)

    def _write_winners(self, plan: StepPlan, reading: Reading, parts: torch.Tensor | None) -> None:
        write, memory = plan.write, reading.memory.detach()
        assert isinstance(write, WritePlan)
        content = self._mail_content(plan, write, memory, parts)
        if self._at_owner:
            pushed, state, place = write.route.start_push(content), reading.served.detach(), write.place
        else:
            pushed = write.route.start_push(torch.cat([memory[write.node], content], dim=1))
            state = place = None
        self.memory.write(write.rows, write.time, pushed.wait, self._staleness, state, place, plan.hot is not None)

    def _mail_content(self, plan: StepPlan, mails, memory: torch.Tensor, parts: torch.Tensor | None) -> torch.Tensor:
        """Form what the other endpoint and the event put into mails (a WritePlan or Delivery)."""
        table, index = (memory, mails.other) if parts is None else (parts, mails.other_root)
        other = native.gather_rows(table, index)
        if plan.event_feature.shape[1] == 0:
            return other
        return torch.cat([other, plan.event_feature[mails.event]], dim=1)

    def _announce(self, plan: StepPlan, write: Announcement, reading: Reading, parts: torch.Tensor | None) -> None:
        """Send what the winners' states and mails consist of to all ranks, each of which keeps their nodes."""
        states = native.gather_rows(reading.memory.detach(), write.node)
        # Both are started now, and waited for in this order by ``arrive``, on all ranks alike.
        states_on_way = self._channel.start_everyone(states, write.node_counts)
        content = plan.event_feature[write.event]
        if parts is not None:
            content = torch.cat([parts[write.other_root], content], dim=1)
        content_on_way = self._channel.start_everyone(content, write.counts)

        def arrive() -> torch.Tensor:
            all_states = states_on_way.wait()
            places = (write.own, write.other) if parts is None else (write.own,)
            states = [native.gather_rows(all_states, place) for place in places]
            return torch.cat([*states, content_on_way.wait()], dim=1)

        self.memory.write(write.rows, write.time, arrive, self._staleness)

    def _deliver(
        self, plan: StepPlan, write: WritePlan | Announcement, delivery: Delivery, reading: Reading,
        parts: torch.Tensor | None, more: bool = False,
    ) -> None:  # fmt: skip
        """Collective. Write the winners' states where they are kept, and send messages to all nodes that receive one;
        or let walks pass the events. more: hot nodes follow."""
        memory = reading.memory.detach()
        if self._walks is not None:
            self._pass_walks(plan, delivery, memory, reading.last)
            return
        message = torch.cat([memory[delivery.node], self._mail_content(plan, delivery, memory, parts)], dim=1)
        # Both are started now, and waited for in this order by ``arrive``, on all ranks alike.
        messages_on_way, states_on_way = self._start_sending(delivery, message), self._start_states(write, reading)

        def arrive() -> tuple[torch.Tensor, torch.Tensor]:
            received = messages_on_way.wait()
            if delivery.indptr is None:
                return states_on_way(), native.gather_rows(received, delivery.message)
            sums = native.segment_sum_rows(received, delivery.indptr, delivery.message)
            return states_on_way(), sums / (delivery.indptr[1:] - delivery.indptr[:-1]).unsqueeze(1)

        mails = delivery.rows, delivery.number, delivery.time
        self.memory.deliver(write.rows, mails, arrive, self._staleness, more)

    def _start_sending(self, delivery: Delivery, message: torch.Tensor) -> Transfer:
        """Collective. Start to send messages [w, .] to the ranks that keep their receivers."""
        if delivery.to_all:
            return self._channel.start_everyone(message, delivery.receive_counts)
        return self._channel.start(message, delivery.send_counts, delivery.receive_counts)

    def _pass_walks(self, plan: StepPlan, delivery: Delivery, memory: torch.Tensor, last: Any) -> None:
        """Collective. Add the projections of each end of an event, as they were before the step, to the projections of
        its other end. memory [U, C D]: of the unique nodes, as of times last [U]."""
        time = plan.query.time[delivery.event]
        message = self._walks.sent(native.gather_rows(memory, delivery.other), last[delivery.other], time)
        came = native.gather_rows(self._start_sending(delivery, message).wait(), delivery.message)
        rows, table = delivery.rows, self.memory.table
        state, before = native.gather_rows(table.state, rows), self.memory.newest(rows)
        self.memory.move(rows, *self._walks.moved(state, before, came, delivery.time, delivery.indptr))

    def _start_states(self, write: WritePlan | Announcement, reading: Reading) -> Callable[[], torch.Tensor]:
        """Collective. Start to bring the winners' new states to where they are kept; returns what waits for them and
        returns them, [m, D]."""
        memory = reading.memory.detach()
        if isinstance(write, Announcement):
            on_way, own = (
                self._channel.start_everyone(native.gather_rows(memory, write.node), write.node_counts),
                write.own,
            )
            return lambda: on_way.wait()[own]
        if self._at_owner:
            states = reading.served.detach()[write.place]
            return lambda: states
        return write.route.start_push(native.gather_rows(memory, write.node)).wait


# Fields of the random numbers that keep the head's dropout, and the choice of shown labels, apart from the embedding's.
HEAD_HOP, LABEL_HOP = 1, 2


def make_head(kind: str, model: TemporalModelConfig, edge_width: int, classes: int) -> Head:
    """Make the head of a task; classes: C, or 1 for numbers."""
    width = model.hidden if kind.startswith("node") else 2 * model.hidden + edge_width
    return Head(width, model.hidden, classes)


class TemporalLabelTask(TemporalTask):
    """Scores the label of every event. The loss is the (weighted) cross entropy or squared error of the labeled events,
    divided by the number of all events of the global batch. So a labeled event counts the same in every batch, and
    nothing has to be counted over ranks."""

    def __init__(self, kind: str, loss: Loss, *shared, **options):
        """loss: a sum over events; shared, options: as TemporalTask. The model's decoder is a Head."""
        super().__init__(*shared, **options)
        self._kind, self._sum = kind, loss

    def _score(self, plan: StepPlan, embedding: torch.Tensor) -> LabelScores:
        source, destination = plan.query.by_role(embedding)[:2]
        rows = source if self._kind == "node" else torch.cat([source, destination, plan.event_feature], dim=1)
        return LabelScores(self.model.decoder(rows, self._mask(plan, rows)), plan.columns["label"])

    def _mask(self, plan: StepPlan, rows: torch.Tensor) -> torch.Tensor | None:
        """Draw the dropout of the head in training, keyed by event."""
        head, p = self.model.decoder, self.model.config.dropout
        if not head.training or p == 0:
            return None
        random = Random(self._seed, Stream.DROPOUT, plan.step, plan.epoch, HEAD_HOP)
        identity = plan.query.identity[: len(rows)]
        return native.dropout_mask(random, identity, head.hidden.out_features, p, rows.dtype)

    def _loss(self, scores: LabelScores, batch_size: int) -> torch.Tensor:
        return self._sum(scores.output, scores.label) / max(1, batch_size)


class NodeClassTask(TemporalLabelTask):
    """Scores the classes of nodes. Plans have labels [b] of the sources, or [b, 2] of both ends of events; plans
    without labels only move node memory on. The loss is divided by the number of events, or of questions, of the
    step.

    With ``task.label_input``, the features of a training node end with its class. A training step shows the classes of
    a random share of the nodes, and the loss is of the others."""

    def __init__(self, config: TemporalTaskConfig, loss: Loss, classes: int, *shared, **options):
        """config: the section ``task``; classes: C; others: as TemporalLabelTask."""
        super().__init__(config.kind, loss, *shared, **options)
        self._shown, self._classes = config.label_input, classes

    def _train(self, plan: StepPlan) -> tuple[torch.Tensor | float, Any]:
        if LABEL in plan.columns:
            return super()._train(plan)
        return 0.0, self._pass_events(plan, self._read)

    @torch.no_grad()
    def evaluate(self, plan: StepPlan) -> StepScores:
        """Collective. Score a plan with labels, or move memory on."""
        return super().evaluate(plan) if LABEL in plan.columns else self._pass_events(plan, self._read_all)

    @torch.no_grad()
    def _pass_events(self, plan: StepPlan, read: Callable[[StepPlan], Reading]) -> LabelScores:
        """Collective. Let the events of a plan change node memory; returns no scores."""
        self._set_mode(training=False)
        reading, parts = read(plan), None
        if self.model.config.message_from != "memory":
            parts = self._embed(plan, reading)[1]
        self._write(plan, reading, parts)
        rows = reading.memory
        outputs = self.model.decoder.out.out_features
        return LabelScores(rows.new_empty((0, outputs)), torch.empty(0, dtype=torch.int64, device=rows.device))

    def _score(self, plan: StepPlan, embedding: torch.Tensor) -> LabelScores:
        label, rows = plan.columns[LABEL], plan.query.by_role(embedding)[:2]
        rows = rows[0] if label.dim() == 1 else rows.flatten(0, 1)
        label = label if label.dim() == 1 else label.T.reshape(-1)
        if self._shown and self.model.decoder.training:
            label = label.masked_fill(self._inputs(plan)[1][plan.query.root[: len(label)]] >= 0, MISSING)
        return LabelScores(self.model.decoder(rows, self._mask(plan, rows)), label)

    def _embed(self, plan: StepPlan, reading: Reading) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._shown:
            feature, label = self._inputs(plan)
            classes = torch.arange(self._classes, device=label.device)
            plan = replace(plan, node_feature=torch.cat([feature, (label[:, None] == classes).to(feature)], dim=1))
        return super()._embed(plan, reading)

    def _inputs(self, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the features [U, F] of the unique nodes, and the classes [U] that the step shows, else -1."""
        assert plan.node_feature is not None
        feature, label, row = read_label_input(plan.node_feature)
        if not self.model.decoder.training:
            return feature, label
        random = Random(self._seed, Stream.DROPOUT, plan.step, plan.epoch, LABEL_HOP)
        is_shown = native.dropout_mask(random, row, 1, 1 - self._shown, feature.dtype)[:, 0] > 0
        return feature, label.masked_fill(~is_shown, MISSING)


class TemporalLinkTask(TemporalTask):
    """Scores events and negatives. The loss is divided by the number of events of the global batch."""

    def __init__(self, loss: Loss, *shared, **options):
        """loss: a sum over events; shared, options: as TemporalTask."""
        super().__init__(*shared, **options)
        self._sum, self._step = loss, make_link_step(self.model, loss)

    def _train(self, plan: StepPlan) -> tuple[torch.Tensor | float, LinkScores]:
        """Train on a plan; without autograd where the model's parts allow it."""
        return super()._train(plan) if self._step is None or plan.paired else self._train_by_hand(plan, self._step)

    @torch.no_grad()
    def _train_by_hand(self, plan: StepPlan, step: LinkStep) -> tuple[float, LinkScores]:
        reading, roles = self._read(plan, step.update), 2 + plan.num_negatives
        with self._timers("compute"):
            loss, gradient, logits = step.learn(
                reading.memory, plan.query, self._dropout(plan), roles, plan.batch_size
            )  # fmt: skip
        if self._at_owner:
            with self._timers("exchange"):
                gradient = plan.route.push_sum(gradient)
        with self._timers("compute"):
            step.update_backward(gradient)
        self._write(plan, reading, None)
        return loss, LinkScores(logits[0], logits[1:])

    def _score(self, plan: StepPlan, embedding: torch.Tensor) -> LinkScores:
        query, nearby, further = plan.query, plan.nearby, {}
        if EDGE_TYPE in plan.columns:
            further["edge_type"] = plan.columns[EDGE_TYPE]
        if plan.clocks is not None:
            further["clocks"] = plan.clocks
        embeds_pairs = getattr(self.model, "embeds_pairs", False)  # a custom model has no such attribute
        if embeds_pairs or plan.paired:
            shape = 2, 1 + plan.num_negatives, plan.num_events, embedding.shape[1]
            source, destination = embedding.view(shape) if embeds_pairs else query.pairs(embedding)
            if nearby is not None:
                sources, destinations = zip(*map(query.pairs, nearby), strict=True)
                nearby = (*(ids.expand(len(destination), *ids.shape[1:]) for ids in sources), *destinations)
            logits = self.model.decode_pairs(source, destination, nearby, **further)
        else:
            logits = self.model.decode(
                query.by_role(embedding), nearby and tuple(map(query.by_role, nearby)), **further
            )
        return LinkScores(logits[0], logits[1:], count=plan.columns.get("count"))

    def _loss(self, scores: LinkScores, batch_size: int) -> torch.Tensor:
        return scores.loss(self._sum) / max(1, batch_size)
