"""Even parts out, and order them, with the nodes in blocks on the ranks.

N nodes, n of them in a rank's block, A adjacency entries of these, P parts, C constraints.
"""

from __future__ import annotations

import numpy as np

from data_tools.pair_graph import PairGraph
from data_tools.rebalance import TARGET
from data_tools.streaming import new_numbers
from data_tools.swap_nodes import COARSE, swap_nodes
from data_tools.team import Team
from hpcgnn.store.book import BlockOwnership

ROUNDS = 40  # of moves, before nodes are exchanged
EXCHANGES = 4
CANDIDATES = 1 << 16  # moves that a rank proposes in a round
CELLS = 1 << 21  # of a table of ties to parts in memory together


class Ghosts:
    """Collective to create. The parts of a block's neighbours: asked for once, then brought up to date by one exchange.

    graph: of this rank's block, its neighbours numbered as in the whole graph.
    """

    def __init__(self, team: Team, blocks: BlockOwnership, graph: PairGraph):
        self.team, self.graph, self.first = team, graph, int(blocks.starts[team.rank])
        nodes, place = np.unique(graph.neighbor, return_inverse=True)
        self._place = place.astype(np.int32 if len(nodes) < 2**31 else np.int64)
        counts = np.diff(np.searchsorted(nodes, blocks.starts))
        asked, self._num_asked = team.exchange(nodes, counts)
        self._asked = asked - self.first

    def neighbor_parts(self, part: np.ndarray) -> np.ndarray:
        """Collective. Part [A] of every adjacency entry's neighbour; part [n] of this rank's block."""
        return self.team.exchange(part[self._asked], self._num_asked)[0][self._place]


def rebalance_blocks(ghosts: Ghosts, part: np.ndarray, weights: np.ndarray, num_parts: int) -> np.ndarray:
    """Collective. Part [n] int32 in which parts over TARGET have given nodes away.

    weights [n, C]. Every rank proposes the moves that cost the least cut for what they do to the overload (the sum of
    the squares of what parts have above the target); of all proposals those that lessen it are made, in that order. So
    a part may take more of one constraint than it should, and pass other nodes on. The result is the same however the
    nodes are dealt to ranks. Where no move helps, nodes that weigh much of what a part may have are exchanged.
    """
    total = ghosts.team.sum(weights.sum(axis=0))
    weights, unit = weights[:, total > 0], num_parts / (TARGET * total[total > 0])
    shares = weights * unit  # of what a part may have
    part = part.copy()
    for _ in range(EXCHANGES):
        loads = move_nodes(ghosts, part, weights, unit, num_parts)
        if (loads <= 1).all() or not exchange_nodes(ghosts.team, part, shares, loads):
            break
    return part


def move_nodes(ghosts: Ghosts, part: np.ndarray, weights: np.ndarray, unit: np.ndarray, num_parts: int) -> np.ndarray:
    """Collective. Rounds of moves, while they lessen the overload; part [n] changes in place. Returns the loads [P, C]
    float64: sums of weights [n, C] int64 in units [C]."""
    shares = weights * unit
    for _ in range(ROUNDS):
        sums = np.zeros((num_parts, len(unit)), np.int64)  # whole numbers: no order of adding changes them
        np.add.at(sums, part, weights)
        loads = ghosts.team.sum(sums) * unit
        if (loads <= 1).all():
            break
        moves = accept(np.concatenate(ghosts.team.everyone(propose(ghosts, part, shares, loads))), loads)
        if not len(moves):
            break
        mine = (moves["node"] >= ghosts.first) & (moves["node"] < ghosts.first + len(part))
        part[moves["node"][mine] - ghosts.first] = moves["goal"][mine]
    return loads


def exchange_nodes(team: Team, part: np.ndarray, shares: np.ndarray, loads: np.ndarray) -> int:
    """Collective. `swap_nodes` with the nodes of all ranks that weigh enough, found by every rank alike; part [n]
    changes in place. Returns the number of exchanges."""
    coarse = np.flatnonzero(shares.max(axis=1, initial=0) > COARSE)
    found = team.everyone((part[coarse], shares[coarse]))
    parts, weights = (np.concatenate(column) for column in zip(*found, strict=True))
    first = sum(len(some) for some, _ in found[: team.rank])
    count = swap_nodes(parts, weights, loads.copy(), np.ones_like(loads))
    part[coarse] = parts[first : first + len(coarse)]
    return count


def propose(ghosts: Ghosts, part: np.ndarray, shares: np.ndarray, loads: np.ndarray) -> np.ndarray:
    """Collective. The best moves of nodes of this rank out of parts with overload, records sorted by cost and node:
    cost, node, heavy, goal, share [C]. shares [n, C], loads [P, C]: of what a part may have."""
    kinds = [("cost", "f8"), ("node", "i8"), ("heavy", "i4"), ("goal", "i4"), ("share", "f8", (shares.shape[1],))]
    around = ghosts.neighbor_parts(part)
    over = np.maximum(loads - 1, 0)
    nodes = np.flatnonzero(((over > 0)[part] & (shares > 0)).any(axis=1))
    found = [np.empty(0, kinds)]
    for start in range(0, len(nodes), max(1, CELLS // len(loads))):
        some = nodes[start : start + max(1, CELLS // len(loads))]
        ties, here = part_ties_of(ghosts.graph, around, some, len(loads)), np.arange(len(some))
        slope = np.zeros(ties.shape)  # half of what a small move into a part adds to the overload
        for share, excess in zip(shares[some].T, over.T, strict=True):  # a product of matrices may round by its size
            slope += share[:, None] * excess
        gain = slope[here, part[some]][:, None] - slope
        # Among equally connected parts the lightest is preferred.
        goal = np.argmax(np.where(gain > 0, ties - loads.max(axis=1) / (2 * loads.max()), -np.inf), axis=1)
        moves = np.zeros(len(some), kinds)
        moves["node"], moves["heavy"], moves["goal"] = some + ghosts.first, part[some], goal
        moves["share"] = shares[some]
        lessens = gain[here, goal] > 0
        loss = ties[here, part[some]] - ties[here, goal]
        moves["cost"][lessens] = loss[lessens] / gain[here, goal][lessens]
        found.append(moves[lessens])
    return best(np.concatenate(found))[:CANDIDATES]


def best(moves: np.ndarray) -> np.ndarray:
    """Moves in order of cost, then node."""
    return moves[np.lexsort((moves["node"], moves["cost"]))]


def accept(moves: np.ndarray, loads: np.ndarray) -> np.ndarray:
    """The moves that are made: in order of their cost, those that lessen the overload."""
    # Each rank's list ends with its best CANDIDATES: beyond those of all together the order would not be complete.
    moves = best(moves)[:CANDIDATES]
    loads, taken = loads.copy(), []
    for index, (heavy, goal, share) in enumerate(zip(moves["heavy"], moves["goal"], moves["share"], strict=True)):
        pair = np.stack([loads[heavy], loads[goal]])
        moved = pair + np.stack([-share, share])
        if overload(moved) < overload(pair):
            loads[heavy], loads[goal] = moved
            taken.append(index)
    return moves[taken]


def overload(loads: np.ndarray) -> float:
    """The sum of the squares of what loads [..., C] have above 1."""
    return float(np.square(np.maximum(loads - 1, 0)).sum())


def part_ties_of(graph: PairGraph, around: np.ndarray, nodes: np.ndarray, num_parts: int) -> np.ndarray:
    """Weight of the ties of nodes [k] of the block to every part [k, P]; around [A]: parts of neighbours."""
    degrees = graph.degrees()[nodes]
    begin = np.repeat(graph.indptr[nodes] - (np.cumsum(degrees) - degrees), degrees)
    entries = begin + np.arange(degrees.sum())
    cells = np.repeat(np.arange(len(nodes)), degrees) * num_parts + around[entries]
    ties = np.bincount(cells, weights=graph.weight[entries], minlength=len(nodes) * num_parts)
    return ties.reshape(len(nodes), num_parts)


def order_blocks(ghosts: Ghosts, part: np.ndarray, num_parts: int, seed: int) -> np.ndarray:
    """Collective. Parts [n] renumbered so that consecutive ones are near, as `order_parts` does."""
    around = ghosts.neighbor_parts(part)
    own = np.repeat(part, ghosts.graph.degrees()).astype(np.int64)
    ties = np.bincount(own * num_parts + around, weights=ghosts.graph.weight, minlength=num_parts**2)
    return new_numbers(ghosts.team.sum(ties.astype(np.int64)).reshape(num_parts, num_parts), seed)[part]
