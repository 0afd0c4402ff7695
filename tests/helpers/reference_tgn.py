"""A temporal graph network in plain loops, the oracle of the trainer: one process, one node at a time, no kernels.

It takes nothing from hpcgnn but the initial parameters, by name. Events, nodes and pools are those of the graph file
(flat row ids: row ids of all node types, one type after the other); random numbers come from its own Philox4x32-10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

WORD = 0xFFFFFFFF
NEGATIVE, SAMPLE, DROPOUT = 1, 2, 3  # what a random number is for


@dataclass
class Graph:
    """Events in order of row id: src, dst [E] flat row ids, time [E]; feature [E, F]; node_feature [N, .] or None."""

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    feature: np.ndarray
    num_nodes: int
    node_feature: np.ndarray | None = None


@dataclass
class Settings:
    """What the reference shares with a run's configuration."""

    batch_size: int
    train_events: int
    fanout: int
    heads: int
    negatives: int = 1
    strategy: str = "recent"
    in_batch_neighbors: bool = True
    dropout: float = 0.0
    lr: float = 1e-3
    seed: int = 0
    epoch: int = 0
    staleness: int = 0


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3; SC 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(high >> 32) ^ c[1] ^ k[0], high & WORD, (low >> 32) ^ c[3] ^ k[1], low & WORD]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return c


def random_word(
    settings: Settings, stream: int, step: int, identity: int, slot: int, attempt: int = 0, hop: int = 0
) -> int:  # fmt: skip
    """The 32 random bits of one slot of one identity."""
    key = [settings.seed & WORD, (((settings.seed >> 32) << 8 | stream) + attempt * 0x9E3779B9) & WORD]
    counter = [identity & WORD, (identity >> 32) | (slot // 4) << 16, step, settings.epoch | hop << 16]
    return philox(counter, key)[slot % 4]


def random_below(
    settings: Settings, stream: int, step: int, identity: int, slot: int, bound: int, hop: int = 0
) -> int:  # fmt: skip
    """An unbiased integer in [0, bound): the upper half of word * bound, drawn again in the biased zone."""
    attempt = 0
    while True:
        product = random_word(settings, stream, step, identity, slot, attempt, hop) * bound
        if product & WORD >= (1 << 32) % bound:
            return product >> 32
        attempt += 1


class Reference:
    """Trains step by step. Memory is a list of one row per node, so that every rule is an ``if`` about one node."""

    def __init__(self, parameters: dict[str, torch.Tensor], graph: Graph, settings: Settings):
        self.p = {name: v.detach().clone().requires_grad_(v.requires_grad) for name, v in parameters.items()}
        self.trained = [name for name, value in self.p.items() if value.requires_grad]
        self.graph, self.settings = graph, settings
        width = self.p["updater.cell.weight_hh"].shape[1]
        self.state = [torch.zeros(width, dtype=torch.float64) for _ in range(graph.num_nodes)]
        self.updated = [0] * graph.num_nodes
        self.mail: list[torch.Tensor | None] = [None] * graph.num_nodes
        self.mailed = [0] * graph.num_nodes
        self.waiting: list[dict[int, tuple]] = []
        self.pool = sorted(set(graph.dst[: settings.train_events].tolist()))
        self.history: list[list[int]] = [[] for _ in range(graph.num_nodes)]
        for event in range(settings.train_events):
            for node in {int(graph.src[event]), int(graph.dst[event])}:
                self.history[node].append(event)
        self.moments = {name: (torch.zeros_like(v), torch.zeros_like(v)) for name, v in self.p.items()}
        self.steps_taken = 0

    def train_step(self, step: int) -> float:
        """One optimizer step; returns the loss, the mean over the batch."""
        begin = step * self.settings.batch_size
        events = range(begin, min(begin + self.settings.batch_size, self.settings.train_events))
        current: dict[int, torch.Tensor] = {}
        loss = sum(self._event_loss(step, begin, event, current) for event in events) / len(events)
        gradients = torch.autograd.grad(loss, [self.p[name] for name in self.trained], allow_unused=True)
        self._adam(dict(zip(self.trained, gradients, strict=True)))
        self._write_memory(events, current)
        return float(loss.detach())

    # --------------------------------------------------------------------------------------------------------- sampling

    def _identity(self, event: int, role: int) -> int:
        """Sources, destinations and negatives: three of them an event, further negatives a whole graph of events on."""
        return (max(0, role - 2) * len(self.graph.src) + event) * 3 + min(role, 2)

    def negative(self, event: int, number: int) -> int:
        """A destination that some training event has, drawn for this event; its own one is drawn again among the
        others."""
        place = random_below(self.settings, NEGATIVE, 0, event, number, len(self.pool))
        if self.pool[place] != self.graph.dst[event]:
            return self.pool[place]
        others = [node for node in self.pool if node != self.graph.dst[event]]
        return others[random_below(self.settings, NEGATIVE, 0, event, number, len(others), hop=1)]

    def neighbors(self, node: int, event: int, role: int, step: int, begin: int) -> list[int]:
        """Events of the node strictly before this event's time, in order, at most ``fanout``."""
        settings, time = self.settings, self.graph.time
        seen = [e for e in self.history[node] if time[e] < time[event] and (settings.in_batch_neighbors or e < begin)]
        if len(seen) <= settings.fanout:
            return seen
        if settings.strategy == "recent":
            return seen[-settings.fanout :]
        identity, chosen = self._identity(event, role), set()
        for slot in range(settings.fanout):  # Floyd's algorithm (Bentley and Floyd, CACM 1987)
            last = len(seen) - settings.fanout + slot
            place = random_below(settings, SAMPLE, step, identity, slot, last + 1)
            chosen.add(last if place in chosen else place)
        return [seen[place] for place in sorted(chosen)]

    # ------------------------------------------------------------------------------------------------------------ model

    def phi(self, dt: int) -> torch.Tensor:
        """Encoded time difference: cos(w dt + b) with w = 10^-linspace(0, 9)."""
        phase = self.p["updater.time.phase"]
        return torch.cos(10.0 ** -torch.linspace(0, 9, len(phase), dtype=torch.float64) * float(dt) + phase)

    def memory(self, node: int, current: dict[int, torch.Tensor]) -> torch.Tensor:
        """Memory with the pending mail worked in by a gated recurrent unit (Cho et al., 2014)."""
        if node not in current:
            state, mail = self.state[node], self.mail[node]
            if mail is not None:
                given = torch.cat([mail, self.phi(self.mailed[node] - self.updated[node])])
                given = self.p["updater.cell.weight_ih"] @ given + self.p["updater.cell.bias_ih"]
                kept = self.p["updater.cell.weight_hh"] @ state + self.p["updater.cell.bias_hh"]
                (given_r, given_z, given_n), (kept_r, kept_z, kept_n) = given.chunk(3), kept.chunk(3)
                reset, update = torch.sigmoid(given_r + kept_r), torch.sigmoid(given_z + kept_z)
                state = (1 - update) * torch.tanh(given_n + reset * kept_n) + update * state
            current[node] = state
        return current[node]

    def node_row(self, node: int, current: dict[int, torch.Tensor]) -> torch.Tensor:
        """Memory plus projected node features."""
        row = self.memory(node, current)
        if self.graph.node_feature is not None:
            given = torch.from_numpy(self.graph.node_feature[node]).double()
            row = row + self.p["feature.weight"] @ given + self.p["feature.bias"]
        return row

    def embed(self, node: int, event: int, role: int, step: int, begin: int, current) -> torch.Tensor:
        """Attention of the node over its neighbors at the event's time, head by head, slot by slot."""
        own, time = self.node_row(node, current), self.graph.time
        query = (
            self.p["embedding.layers.0.query.weight"] @ torch.cat([own, self.phi(0)])
            + self.p["embedding.layers.0.query.bias"]
        )
        seen = [self._neighbor_row(node, e, time[event] - time[e], current) for e in
                self.neighbors(node, event, role, step, begin)]  # fmt: skip
        heads = []
        for head, head_query in enumerate(query.chunk(self.settings.heads)):
            key, value = self.p["embedding.layers.0.key"][head], self.p["embedding.layers.0.value"][head]
            scores = [torch.dot(head_query, key @ row) / math.sqrt(len(head_query)) for row in seen]
            weights = [torch.exp(s - max(scores)) for s in scores]
            parts = [w / sum(weights) * (value @ row) for w, row in zip(weights, seen, strict=True)]
            heads.append(sum(parts, torch.zeros_like(head_query)))
        merged = (
            self.p["embedding.layers.0.merge.weight"] @ torch.cat([*heads, own])
            + self.p["embedding.layers.0.merge.bias"]
        )
        if self.settings.dropout:
            merged = merged * self._dropout(self._identity(event, role), step, len(merged))
        row = torch.relu(merged)
        row = (row - row.mean()) / torch.sqrt(((row - row.mean()) ** 2).mean() + 1e-5)
        return row * self.p["embedding.layers.0.norm.weight"] + self.p["embedding.layers.0.norm.bias"]

    def _neighbor_row(self, node: int, event: int, dt: int, current) -> torch.Tensor:
        src, dst = int(self.graph.src[event]), int(self.graph.dst[event])
        other = dst if src == node else src
        edge = torch.from_numpy(self.graph.feature[event]).double()
        return torch.cat([self.node_row(other, current), edge, self.phi(dt)])

    def _dropout(self, identity: int, step: int, width: int) -> torch.Tensor:
        p = self.settings.dropout
        words = [random_word(self.settings, DROPOUT, step, identity, column) for column in range(width)]
        return torch.tensor([0.0 if word < int(p * 2**32) else 1 / (1 - p) for word in words], dtype=torch.float64)

    def score(self, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        """Logit of a pair."""
        given = self.p["decoder.source.weight"] @ source + self.p["decoder.source.bias"]
        hidden = torch.relu(given + self.p["decoder.destination.weight"] @ destination)
        return (self.p["decoder.out.weight"] @ hidden + self.p["decoder.out.bias"]).squeeze()

    def _event_loss(self, step: int, begin: int, event: int, current) -> torch.Tensor:
        """-log p of the event - mean over its negatives of log(1 - p)."""
        settings, graph = self.settings, self.graph
        source = self.embed(int(graph.src[event]), event, 0, step, begin, current)
        loss = -torch.log(
            torch.sigmoid(self.score(source, self.embed(int(graph.dst[event]), event, 1, step, begin, current)))
        )
        for number in range(settings.negatives):
            other = self.embed(self.negative(event, number), event, 2 + number, step, begin, current)
            loss = loss - torch.log(1 - torch.sigmoid(self.score(source, other))) / settings.negatives
        return loss

    # ----------------------------------------------------------------------------------------------------------- writes

    def _write_memory(self, events: range, current: dict[int, torch.Tensor]) -> None:
        """The last event of each endpoint leaves its mail; the state is what the batch was predicted with. The newest
        ``staleness`` batches' writes are not to be seen yet."""
        last: dict[int, int] = {}
        for event in events:
            last[int(self.graph.src[event])] = last[int(self.graph.dst[event])] = event
        rows = {node: self.memory(node, current).detach() for node in last}
        write = {}
        for node, event in last.items():
            src, dst = int(self.graph.src[event]), int(self.graph.dst[event])
            other = dst if src == node else src
            time = int(self.graph.time[event])
            updated = time if self.mail[node] is None else self.mailed[node]
            mail = torch.cat([rows[node], rows[other], torch.from_numpy(self.graph.feature[event]).double()])
            write[node] = rows[node], updated, mail, time
        self.waiting.append(write)
        if len(self.waiting) > self.settings.staleness:
            for node, row in self.waiting.pop(0).items():
                self.state[node], self.updated[node], self.mail[node], self.mailed[node] = row

    @torch.no_grad()
    def _adam(self, gradients: dict[str, torch.Tensor | None]) -> None:
        """Adam (Kingma and Ba, 2015)."""
        self.steps_taken += 1
        for name in self.trained:
            parameter = self.p[name]
            gradient = torch.zeros_like(parameter) if gradients[name] is None else gradients[name]
            first, second = self.moments[name]
            first.mul_(0.9).add_(0.1 * gradient)
            second.mul_(0.999).add_(0.001 * gradient**2)
            corrected = first / (1 - 0.9**self.steps_taken), second / (1 - 0.999**self.steps_taken)
            parameter -= self.settings.lr * corrected[0] / (torch.sqrt(corrected[1]) + 1e-8)
