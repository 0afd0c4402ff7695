"""Trains and scores queries by states of all nodes, which are computed for each query from its node on.

B queries of a step, alike on all ranks; n nodes of this rank, all of one type; W width of a state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hpcgnn.comm.halo import HaloChain
from hpcgnn.native.random import StepKey
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.paths.known import KnownFacts
from hpcgnn.static.plan import GraphPlan
from hpcgnn.static.sampling.queries import ALL_ENDS, ALL_NODES, ALL_SIZES, ALL_TYPES, ANSWERS, SOURCE
from hpcgnn.static.step import GraphQueryTask
from hpcgnn.static.whole import FullGraph, FullGraphPass
from hpcgnn.task.all_candidates import BlockAnswers


class PathStates:
    """Computes the states of this rank's nodes for queries; collective. decoder: of paths; telling: what ``KnownFacts``
    takes; at_once: number of queries that are scored together."""

    def __init__(self, whole: FullGraphPass, decoder: Any, graph: StaticGraph, telling: np.ndarray, at_once: int):
        self.whole, self.channel, self._at_once, self._decoder = whole, graph.channel, at_once, decoder
        self._world, partition = graph.world, graph.partition
        starts = partition.book.of_type(0).starts
        self.first, self.count = int(starts[partition.rank]), len(partition.flat_row)
        self.flat_row = partition.flat_row
        self.known = KnownFacts(whole.graph, partition.book.num_nodes, telling)
        decoder.paths = self

    def compute(
        self, graph: FullGraph, query: torch.Tensor, asked: torch.Tensor, key: StepKey, chain: HaloChain
    ) -> torch.Tensor:  # fmt: skip
        """Collective. Compute the states [n, B, W] for queries, global ids [B] and rows [B, W], over a graph."""
        place = query - self.first
        number = ((place >= 0) & (place < self.count)).nonzero().squeeze(1)
        start = asked.new_zeros(self.count, *asked.shape).index_put((place[number], number), asked[number])
        model: Any = self.whole.model
        model.asked = asked
        rows = self.whole.over(graph).run({0: start.flatten(1)}, key, chain, model.num_hops)
        return rows[:, : asked.numel()].view(-1, *asked.shape)[graph.place]

    @torch.no_grad()
    def score(self, query: torch.Tensor, edge_type: torch.Tensor | None, reverse: bool) -> torch.Tensor:
        """Collective. Score queries, global ids and edge types [Q], alike on all ranks, with this rank's nodes: [Q,
        n]."""
        edge_type = torch.zeros_like(query) if edge_type is None else edge_type
        found = [self._decoder.out.weight.new_empty(0, self.count)]
        self.whole.model.eval()
        for at in range(0, len(query), self._at_once):
            part = slice(at, at + self._at_once)
            asked = self._decoder.ask(edge_type[part], torch.full_like(edge_type[part], reverse, dtype=torch.bool))
            states = self.compute(self.whole.graph, query[part], asked, StepKey(0), HaloChain())
            found.append(self._decoder.match(states, asked))
        return torch.cat(found)

    def score_pairs(
        self, source: torch.Tensor, destination: torch.Tensor, edge_type: torch.Tensor | None
    ) -> torch.Tensor:  # fmt: skip
        """Collective. Score this rank's pairs, global ids and edge types [m], as destinations of their sources: [m]."""
        columns = [source, destination, torch.zeros_like(source) if edge_type is None else edge_type]
        own = torch.stack([column.long() for column in columns], dim=1)
        counts = self.channel.counts(np.full(self.channel.size, len(own), np.int64))
        pairs = self.channel.everyone(own, counts)
        queries, number = pairs[:, [0, 2]].unique(dim=0, return_inverse=True)
        score = self.score(queries[:, 0], queries[:, 1], False)
        place = pairs[:, 1] - self.first
        here = ((place >= 0) & (place < self.count)).nonzero().squeeze(1)
        found = score.new_zeros(len(pairs))
        found[here] = score[number[here], place[here]]
        found = torch.from_numpy(self._world.reduce_array(found.cpu().numpy())).to(found.device)
        begin = int(counts[: self.channel.rank].sum())
        return found[begin : begin + len(own)]

    def facts(self, query: torch.Tensor, edge_type: torch.Tensor, pairs: torch.Tensor) -> np.ndarray:
        """Collective. Find the facts [F, 3] of queries, global ids and edge types [B]: both ends, as flat row ids, and
        edge type. pairs [x, 2]: a query and an answer, counted among this rank's nodes."""
        place = query.cpu().numpy() - self.first
        here = np.flatnonzero((place >= 0) & (place < self.count))
        asked = np.zeros(len(place), np.int64)
        asked[here] = self.flat_row[place[here]]
        number, answer = pairs.cpu().numpy().T
        own = [self._world.reduce_array(asked)[number], self.flat_row[answer], edge_type.cpu().numpy()[number]]
        return self.channel.everyone(torch.from_numpy(np.column_stack(own))).numpy()


class PathTask(GraphQueryTask):
    """Steps whose seeds are a mini-batch of queries against all nodes. The edges that tell of their facts carry no
    messages in the step. ``train`` and ``rows`` are collective."""

    def __init__(self, states: PathStates, *scoring):
        """scoring: what GraphQueryTask takes."""
        super().__init__(*scoring)
        self._states = states

    def _train(self, plan: GraphPlan) -> tuple[torch.Tensor, None]:
        states, columns, decoder = self._states, plan.columns, self._decoder
        query, pairs = columns[ALL_NODES], columns[ANSWERS]
        with self.timers("exchange"):
            graph = states.known.without(states.facts(query, columns[ALL_TYPES], pairs))
        with self.timers("compute"):
            self.model.train()
            whole = states.whole
            chain, key = whole.chain(), StepKey(self._options.seed, plan.epoch, plan.step, True)
            asked = decoder.ask(columns[ALL_TYPES], columns[ALL_ENDS] == SOURCE)
            score = decoder.match(states.compute(graph, query, asked, key, chain), asked)
            number, place = pairs.T
            answers = BlockAnswers(number, place, columns[ALL_SIZES], self._options.total, self._reduce)
            share, slope = self._sum(score.detach().clone(), answers)
            size = max(1, plan.batch_size)
            chain.tie((score * slope).sum() / size).backward()
        return share / size, None

    def rows(self, hops: int) -> torch.Tensor:
        """Return the global ids [n, 1] of all local nodes, by which the decoder scores them."""
        device = self._decoder.out.weight.device
        return torch.arange(self._states.first, self._states.first + self._states.count, device=device).unsqueeze(1)
