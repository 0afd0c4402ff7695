"""Sorted lists spread over ranks, and keyed permutations, by which ranks shuffle such lists without communication. The
roots of a step that exceed a rank's share spill to other ranks, by a rule that all ranks can compute.

A permutation of [0, n) is a Feistel network over the next even number of bits, walked until it falls below n. The
method is from Black and Rogaway: Ciphers with arbitrary finite domains, CT-RSA 2002. Every place is computed
independently. S steps, R ranks.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel, ask, exchange_columns
from hpcgnn.comm.group import DistributedError, Group
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import World
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.native import Random, Stream
from hpcgnn.native.random import MOST_CHOICES

BINS_PER_RANK = 256
Self = TypeVar("Self", bound="Directory")


def places_of(keys: np.ndarray, num_keys: int, world: World, channel: Channel) -> tuple[np.ndarray, int]:
    """Collective. Find the place [n] that this rank's unique keys [n] int64 in [0, num_keys) have in the sorted list of
    all ranks' keys, and the length of that list."""
    owner, _ = _even_shares(keys, num_keys, world).locate(keys)
    total = 0

    def places(received: np.ndarray) -> np.ndarray:
        nonlocal total
        counts = world.allgather_array(np.array([len(received)], np.int64)).ravel()
        total, place = int(counts.sum()), np.empty(len(received), np.int64)
        place[np.argsort(received, kind="stable")] = counts[: world.rank].sum() + np.arange(len(received))
        return place

    return ask(keys, owner, channel, places), total


def bounds_of_least(values: np.ndarray, most: np.ndarray, group: Group) -> np.ndarray:
    """Collective. Find for each count of ``most`` [m] a bound [m]: the largest one below which there are at most that
    number of all ranks' values. values [n] int64 are sorted on each rank."""
    # Minima, as one reduction: the larger end is negated.
    ends = np.array([values[0], -values[-1]] if len(values) else [1 << 62, 1 << 62])
    low, high = group.reduce_array(ends, "min")
    low, high = np.full(len(most), low), np.full(len(most), 1 - high)
    while (low < high).any():
        middle = low + (high - low + 1) // 2
        fits = group.reduce_array(np.searchsorted(values, middle)) <= most
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


class Directory:
    """A list of ``size`` rows of integers, sorted by a key that no partition changes, in blocks of nearly equal length
    at the ranks."""

    def __init__(self, world: World, channel: Channel, keys: np.ndarray, rows: np.ndarray, num_keys: int):
        """Collective. keys [n] int64 in [0, num_keys), unique over all ranks, and rows [n, w] int64: what this rank
        puts into the list."""
        self._shares = _even_shares(keys, num_keys, world)
        (received,) = exchange_columns([np.column_stack([keys, rows])], self._shares.locate(keys)[0], channel)
        received = received[np.argsort(received[:, 0], kind="stable")]
        self._keys, self._rows = received[:, 0].copy(), torch.from_numpy(received[:, 1:].copy())
        counts = world.allgather_array(np.array([len(received)], np.int64)).ravel()
        self._ownership = BlockOwnership(np.concatenate(([0], np.cumsum(counts))))
        self._channel = channel
        self.size = int(counts.sum())

    @property
    def own_rows(self) -> np.ndarray:
        """This rank's block of the rows, [b, w]."""
        return self._rows.numpy()

    @property
    def channel(self) -> Channel:
        """The channel over which the list is read."""
        return self._channel

    @property
    def num_ranks(self) -> int:
        """Number of ranks that have blocks of the list."""
        return self._channel.size

    def over(self: Self, channel: Channel) -> Self:
        """Return a twin that is read over another channel."""
        twin = copy.copy(self)
        twin._channel = channel
        return twin

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Collective. Find the places [n] of keys [n], which the list must hold."""
        first = self._ownership.starts[self._channel.rank]
        owner, _ = self._shares.locate(keys)
        return ask(keys, owner, self._channel, lambda asked: first + np.searchsorted(self._keys, asked))

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Collective. Fetch the rows [..., w] at ``places`` [...] in [0, size)."""
        unique, inverse = native.unique_sorted(places)
        (rows,) = Route.plan(self._ownership, unique, self._channel).pull(self._rows)
        return rows.numpy()[inverse]


class NodeDirectory(Directory):
    """A list of nodes in order of flat row id. If it has all nodes of a graph, the place of a node is its flat row
    id."""

    def __init__(self, world: World, channel: Channel, flat_rows: np.ndarray, global_ids: np.ndarray, num_nodes: int):
        """Collective. flat_rows, global_ids [n] int64: the nodes that this rank puts into the list; num_nodes: of the
        graph."""
        super().__init__(world, channel, flat_rows, global_ids[:, None], num_nodes)

    def lookup(self, places: np.ndarray) -> np.ndarray:
        """Collective. Fetch the global ids of the nodes at ``places`` in [0, size), in the shape of ``places``."""
        return self.rows(places)[..., 0]


def check_drawn(pool: str, size: int, remedy: str) -> None:
    """Raise DistributedError for a pool that random numbers are too small for; called on all ranks alike."""
    if size > MOST_CHOICES:
        message = f"{pool}: random numbers choose from at most {MOST_CHOICES}, here are {size}: {remedy}"
        raise DistributedError(message, user_error=True)


def _even_shares(keys: np.ndarray, num_keys: int, world: World) -> BlockOwnership:
    """Collective. Divide the range of keys so that ranks have nearly as many keys each. Keys may lie densely in one
    place (the pairs of a graph mostly begin early), so the cuts follow a histogram."""
    bins = max(1, min(num_keys, BINS_PER_RANK * world.size))
    edges = BlockOwnership.even(num_keys, bins).starts
    histogram = np.bincount(np.searchsorted(edges, keys, side="right") - 1, minlength=bins)
    below = np.cumsum(world.reduce_array(histogram.astype(np.int64)))
    cuts = np.searchsorted(below, np.arange(1, world.size) * below[-1] // world.size)
    return BlockOwnership(np.concatenate(([0], edges[cuts], [num_keys])))


def epoch_shuffle(seed: int, epoch: int) -> Random:
    """Make the random key of an epoch's order of seeds."""
    return Random(seed, Stream.SHUFFLE, epoch=epoch)


ROUNDS = 8


def permute(places: np.ndarray, size: int, random: Random) -> np.ndarray:
    """Say where a permutation of [0, size) puts ``places`` [n] int64: a function of the random key alone."""
    return _walk(places, size, random, back=False)


def permute_back(places: np.ndarray, size: int, random: Random) -> np.ndarray:
    """Say which places ``permute`` puts at ``places`` [n] int64: its inverse."""
    return _walk(places, size, random, back=True)


def _walk(places: np.ndarray, size: int, random: Random, back: bool) -> np.ndarray:
    half = max(1, (max(1, size - 1).bit_length() + 1) // 2)
    keys = native.random_integers(random, np.arange(ROUNDS), 2, (1 << 32) - 1).astype(np.uint64)
    out = places.astype(np.uint64)
    outside = np.arange(len(out))
    while len(outside):
        out[outside] = _network(out[outside], np.uint64(half), keys, back)
        outside = outside[out[outside] >= size]
    return out.astype(np.int64)


def _network(values: np.ndarray, half: np.uint64, keys: np.ndarray, back: bool) -> np.ndarray:
    """Apply the Feistel network with a key a round to values of 2 * half bits, or its inverse."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys[::-1] if back else keys:
        if back:
            left, right = right ^ _round(left, key, mask), left
        else:
            left, right = right, left ^ _round(right, key, mask)
    return (left << half) | right


def _round(values: np.ndarray, key: np.ndarray, mask: np.uint64) -> np.ndarray:
    """Mix values with a round's key by a 64-bit finalizer (Stafford's variant 13 of MurmurHash3's)."""
    high, low = key
    return _finalize(values + (high << np.uint64(32)) + low) & mask


def mixed(*columns: np.ndarray) -> np.ndarray:
    """Hash rows of columns [n] int64 to one number each, uint64 [n]."""
    state = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        state = _finalize(state + column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return state


def _finalize(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def surplus_moves(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Apply the rule to counts [S, R] of roots by owner, and sizes [S] of the steps. A rank has a capacity of
    ceil(size / R) roots of a step; its surplus goes, in order of ranks, to ranks with room, in order of ranks.

    Returns moves [m, 4] int64 in that order: step, owner, handler and number of roots.
    """
    size = counts.shape[1]
    capacity = -(-sizes // size)[:, None]
    surplus, room = np.maximum(counts - capacity, 0), np.maximum(capacity - counts, 0)
    before = np.cumsum(room, axis=1) - room
    room = np.clip(surplus.sum(axis=1, keepdims=True) - before, 0, room)  # as much as is needed
    given, taken = np.cumsum(surplus), np.cumsum(room)
    ends = np.union1d(given, taken)
    ends = ends[ends > 0]
    starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    step, owner = np.divmod(np.searchsorted(given, starts, side="right"), size)
    handler = np.searchsorted(taken, starts, side="right") % size
    return np.stack([step, owner, handler, ends - starts], axis=1)


def spill(step: np.ndarray, sizes: np.ndarray, channel: Channel) -> np.ndarray:
    """Collective. Say which rank [n] handles each of this rank's roots, whose steps ``step`` [n] increase: this rank up
    to its capacity, then others by the rule. A rank applies it to every R-th part of the steps, so none holds the
    counts of all."""
    counts = np.bincount(step, minlength=len(sizes)).astype(np.int64)
    shares = BlockOwnership.even(len(sizes), channel.size)
    first, last = shares.starts[channel.rank : channel.rank + 2]
    own = np.full(channel.size, last - first)
    of_all = channel.array(counts, np.diff(shares.starts), own).reshape(channel.size, -1)
    moves = surplus_moves(of_all.T, sizes[first:last])
    (moves,) = exchange_columns([moves[:, 2:]], moves[:, 1], channel)
    place = np.arange(len(step)) - (np.cumsum(counts) - counts)[step]
    target = np.full(len(step), channel.rank)
    target[place >= -(-sizes // channel.size)[step]] = np.repeat(*moves.T)
    return target
