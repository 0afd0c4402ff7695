"""Moves nodes between parts until no part is too heavy, with the nodes in blocks on the ranks: after ParMETIS.

`data_tools.partition.methods.rebalance` is another search, for a graph in one place: it visits the nodes one after the
other, which ranks cannot do, and its parts are other ones. N nodes, n of them in a rank's block, A adjacency entries of
the block, P parts, C constraints.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.partition.blocks import NodeBlocks, splitmix64
from data_tools.partition.layout import new_numbers, part_ties
from data_tools.partition.methods.rebalance import PENALTY, RISE, SLACK, TARGET, load_limits, spread_giants
from data_tools.partition.methods.swap_nodes import COARSE, swap_nodes
from data_tools.partition.pair_graph import PairGraph
from data_tools.team import Team

ROUNDS = 80  # of moves, before nodes are exchanged
LASTING = 20  # rounds after which one without moves ends them
EXCHANGES = 4
CANDIDATES = 1 << 15  # moves that a rank proposes in a round
AT_ONCE = 1 << 18  # nodes that all ranks look at in a round
CELLS = 1 << 17  # of a table of ties to parts in memory together


class RemoteNodes:
    """Collective to create. The parts of a block's neighbors: asked for once, then brought up to date by one exchange.

    graph: of this rank's block, its neighbors numbered as in the whole graph.
    """

    def __init__(self, blocks: NodeBlocks, graph: PairGraph):
        self.team, self.graph, self.first = blocks.team, graph, blocks.own.start
        nodes, place = np.unique(graph.neighbor, return_inverse=True)
        self._place = place.astype(np.int32 if len(nodes) < 2**31 else np.int64)
        counts = np.diff(np.searchsorted(nodes, blocks.starts))
        requested, self._num_requested = self.team.exchange(nodes, counts)
        self._requested = requested - self.first

    def neighbor_parts(self, part: np.ndarray) -> np.ndarray:
        """Collective. Look up the part [A] of every adjacency entry's neighbor; part [n] of this rank's block."""
        return self.team.exchange(part[self._requested], self._num_requested)[0][self._place]


@dataclass(frozen=True, slots=True)
class BlockLoads:
    """The limits of the loads of the parts, by constraint.

    unit [C]: times a node's weight, its share of the load that a mean part may have; limit [P, C]: of the sums of
    shares. fixed [n]: nodes of this rank's block that stay, because they are heavier than a mean part.
    """

    unit: np.ndarray
    limit: np.ndarray
    fixed: np.ndarray

    def of(self, team: Team, part: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Collective. Compute the loads [P, C] float64 of part [n], from weights [n, C] int64."""
        sums = np.zeros(self.limit.shape, np.int64)  # whole numbers: no order of adding changes them
        np.add.at(sums, part, weights)
        return team.sum(sums) * self.unit


def rebalance_blocks(remote_nodes: RemoteNodes, part: np.ndarray, weights: np.ndarray, num_parts: int) -> np.ndarray:
    """Collective. Move nodes out of parts that are over their limits; returns the part [n] int32.

    weights [n, C]. The overload is the sum of the squares of the parts' excesses over their limits. Every rank proposes
    the moves that lessen it and cost the least: the cut, and a penalty on the overload that rises from round to round.
    The proposals that still do so are made, in the order of their cost. A part may take more of one constraint than it
    should, and pass other nodes on. The result does not depend on how the nodes are dealt to ranks. Where no move
    helps, nodes that take a large share of a part's limit are exchanged.
    """
    total = remote_nodes.team.sum(weights.sum(axis=0))
    weights, means = weights[:, total > 0], total[total > 0] / num_parts
    part = part.copy()
    allowed = allowed_loads(remote_nodes.team, part, weights, means, num_parts)
    for _ in range(EXCHANGES):
        loads = move_nodes(remote_nodes, part, weights, allowed)
        if (loads <= allowed.limit).all() or not exchange_nodes(remote_nodes.team, part, weights, loads, allowed):
            break
    return part


def allowed_loads(team: Team, part: np.ndarray, weights: np.ndarray, means: np.ndarray, num_parts: int) -> BlockLoads:
    """Collective. Allow every part TARGET times the mean; parts have all of their nodes that are heavier than a mean
    part, and the others share what is left. Such nodes, of which every rank has a list, may change their part [n]
    first."""
    giant = np.any(weights > means, axis=1)
    giants_by_rank = team.everyone((part[giant], weights[giant] / means))
    parts, shares = (np.concatenate(column) for column in zip(*giants_by_rank, strict=True))
    everyone = np.arange(len(parts))
    spread_giants(parts, shares, everyone, num_parts, TARGET)
    first = sum(len(rank_parts) for rank_parts, _ in giants_by_rank[: team.rank])
    part[giant] = parts[first : first + np.count_nonzero(giant)]
    return BlockLoads(1 / (TARGET * means), load_limits(parts, shares, everyone, num_parts, TARGET) / TARGET, giant)


def move_nodes(remote_nodes: RemoteNodes, part: np.ndarray, weights: np.ndarray, allowed: BlockLoads) -> np.ndarray:
    """Collective. Move nodes in rounds until no part has too much; part [n] changes in place. Returns the loads [P, C]
    of weights [n, C]."""
    shares, ties = weights * allowed.unit, int(remote_nodes.team.sum(np.array([remote_nodes.graph.weight.sum()]))[0])
    penalty = PENALTY * max(1, ties) / 2 / len(allowed.limit)
    loads = allowed.of(remote_nodes.team, part, weights)
    for number in range(ROUNDS):
        if (loads <= allowed.limit).all():
            break
        excess = loads - (allowed.limit - SLACK)
        nodes = whose_turn(remote_nodes, part, shares, excess > 0, allowed.fixed, number)
        moves = np.concatenate(remote_nodes.team.everyone(propose(remote_nodes, part, nodes, shares, excess, penalty)))
        moves = accept(moves, excess, penalty)
        if not len(moves) and number > LASTING:
            break
        in_block = (moves["node"] >= remote_nodes.first) & (moves["node"] < remote_nodes.first + len(part))
        part[moves["node"][in_block] - remote_nodes.first] = moves["goal"][in_block]
        loads, penalty = allowed.of(remote_nodes.team, part, weights), penalty * RISE
    return loads


def exchange_nodes(team: Team, part: np.ndarray, weights: np.ndarray, loads: np.ndarray, allowed: BlockLoads) -> int:
    """Collective. Exchange nodes by `swap_nodes` among the nodes of all ranks that weigh enough, which every rank
    computes alike; part [n] changes in place. Returns the number of exchanges."""
    shares = weights * allowed.unit
    coarse = np.flatnonzero(shares.max(axis=1, initial=0) > COARSE)
    nodes_by_rank = team.everyone((part[coarse], shares[coarse]))
    parts, weights = (np.concatenate(column) for column in zip(*nodes_by_rank, strict=True))
    first = sum(len(rank_parts) for rank_parts, _ in nodes_by_rank[: team.rank])
    count = swap_nodes(parts, weights, loads.copy(), allowed.limit)
    part[coarse] = parts[first : first + len(coarse)]
    return count


def whose_turn(
    remote_nodes: RemoteNodes, part: np.ndarray, shares: np.ndarray, over: np.ndarray, fixed: np.ndarray, number: int
) -> np.ndarray:
    """Collective. Choose the nodes of this rank's block that may leave their part in a round. Their part is over (mask
    [P, C]) in a constraint in which they have weight; of many such nodes, a fraction is chosen, others in other
    rounds."""
    nodes = np.flatnonzero((over[part] & (shares > 0)).any(axis=1) & ~fixed)
    turns = max(1, int(remote_nodes.team.sum(np.array([len(nodes)]))[0]) // AT_ONCE)
    return nodes[(nodes + remote_nodes.first) % turns == number % turns]


def propose(
    remote_nodes: RemoteNodes,
    part: np.ndarray,
    nodes: np.ndarray,
    shares: np.ndarray,
    excess: np.ndarray,
    penalty: float,
) -> np.ndarray:
    """Collective. Propose the best moves of nodes of this rank's block, records sorted by cost and node: cost, loss (of
    cut), node, heavy, goal, share [C]. shares [n, C]; excess [P, C]: loads less their limits."""
    names = [("cost", "f8"), ("loss", "f8"), ("node", "i8"), ("heavy", "i4"), ("goal", "i4")]
    kinds = [*names, ("share", "f8", (shares.shape[1],))]
    around, num_parts = remote_nodes.neighbor_parts(part), len(excess)
    proposals, part_keys = [np.empty(0, kinds)], splitmix64(np.arange(num_parts, dtype=np.uint64))
    for start in range(0, len(nodes), max(1, CELLS // num_parts)):
        chunk = nodes[start : start + max(1, CELLS // num_parts)]
        ties, here = part_ties_of(remote_nodes.graph, around, chunk, num_parts), np.arange(len(chunk))
        loss = ties[here, part[chunk]][:, None] - ties
        change = added_overload(excess, shares[chunk], part[chunk])
        cost = loss + penalty * change
        cost[change >= 0] = 0
        # The lightest part is the best for all: some take another, or it would be full at once.
        keys = splitmix64((chunk + remote_nodes.first).astype(np.uint64))[:, None] ^ part_keys
        preference = 0.5 + (keys >> np.uint64(40)) * 2.0**-25  # from 0.5 to 1, the same on any rank
        goal = np.argmin(np.minimum(cost, 0) * preference, axis=1)
        moves = np.zeros(len(chunk), kinds)
        moves["node"], moves["heavy"], moves["goal"] = chunk + remote_nodes.first, part[chunk], goal
        moves["cost"], moves["loss"], moves["share"] = cost[here, goal], loss[here, goal], shares[chunk]
        proposals.append(moves[moves["cost"] < 0])
    return best(np.concatenate(proposals))[:CANDIDATES]


def added_overload(excess: np.ndarray, share: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Compute what moves of nodes [k] from part [k] to every part add to the overload [k, P]; excess [P, C], share [k,
    C]."""
    added = np.zeros((len(part), len(excess)))
    # By constraint: a product of matrices may round by its size.
    for shares, over in zip(share.T, excess.T, strict=True):
        before = np.square(np.maximum(over, 0))
        added += np.square(np.maximum(over + shares[:, None], 0)) - before
        added += (np.square(np.maximum(over[part] - shares, 0)) - before[part])[:, None]
    added[np.arange(len(part)), part] = 0
    return added


def best(moves: np.ndarray) -> np.ndarray:
    """Sort moves by cost, then node."""
    return moves[np.lexsort((moves["node"], moves["cost"]))]


def accept(moves: np.ndarray, excess: np.ndarray, penalty: float) -> np.ndarray:
    """Choose the moves to make, in order of their cost: a move must lessen the overload by more than it costs."""
    # Each rank's list ends with its best CANDIDATES: beyond those of all together the order would not be complete.
    moves = best(moves)[:CANDIDATES]
    excess, taken = excess.copy(), []
    columns = (moves[name] for name in ("heavy", "goal", "share", "loss"))
    for index, (heavy, goal, share, loss) in enumerate(zip(*columns, strict=True)):
        pair = np.stack([excess[heavy], excess[goal]])
        moved = pair + np.stack([-share, share])
        change = overload(moved) - overload(pair)
        if change < 0 and loss + penalty * change < 0:
            excess[heavy], excess[goal] = moved
            taken.append(index)
    return moves[taken]


def overload(excess: np.ndarray) -> float:
    """Sum the squares of what loads have above their limits: of the values of excess [..., C] that are above 0."""
    return float(np.square(np.maximum(excess, 0)).sum())


def part_ties_of(graph: PairGraph, around: np.ndarray, nodes: np.ndarray, num_parts: int) -> np.ndarray:
    """Add up the weight of the ties of nodes [k] of the block to every part [k, P]; around [A]: parts of neighbors."""
    degrees = graph.degrees()[nodes]
    begin = np.repeat(graph.indptr[nodes] - (np.cumsum(degrees) - degrees), degrees)
    entries = begin + np.arange(degrees.sum())
    cells = np.repeat(np.arange(len(nodes)), degrees) * num_parts + around[entries]
    ties = np.bincount(cells, weights=graph.weight[entries], minlength=len(nodes) * num_parts)
    return ties.reshape(len(nodes), num_parts)


def order_blocks(remote_nodes: RemoteNodes, part: np.ndarray, num_parts: int, seed: int) -> np.ndarray:
    """Collective. Renumber parts [n] so that consecutive ones are near."""
    own = np.repeat(part, remote_nodes.graph.degrees())
    ties = part_ties(own, remote_nodes.neighbor_parts(part), remote_nodes.graph.weight, num_parts)
    return new_numbers(remote_nodes.team.sum(ties), seed)[part]
