"""Draws by sampler ranks: what trainers ask for, what comes back, and how much of it waits.

A message is bytes: a header of int64, then what it announces. A trainer asks ahead, for no more steps than
``comm.sampler_buffer`` besides the one it plans; so neither side ever holds more drawn steps than that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.crew import Crew, Lane
from hpcgnn.comm.world import DistributedError
from hpcgnn.nn.message_blocks import Adjacency, Block
from hpcgnn.sample.draw import Drawn, Groups, Steps

STEP, LEAVE = 0, 1


@dataclass(frozen=True, slots=True)
class Request:
    """The draw of a step for groups of root nodes; of a sampler that nobody asks, without any."""

    epoch: int
    step: int
    training: bool
    groups: Groups

    def pack(self) -> np.ndarray:
        """As a message."""
        sizes = [number for kind, ids in self.groups for number in (kind, len(ids))]
        header = [STEP, self.epoch, self.step, self.training, len(self.groups), *sizes]
        return _bytes(np.array(header, np.int64), *(ids for _, ids in self.groups))


@dataclass(frozen=True, slots=True)
class Leave:
    """No more steps: the trainers end with an exit code, or with an error and whether it is the user's."""

    code: int = 0
    error: str = ""
    user_error: bool = False

    def pack(self) -> np.ndarray:
        """As a message."""
        header = np.array([LEAVE, self.code, self.user_error], np.int64)
        return np.concatenate([_bytes(header), np.frombuffer(self.error.encode(), np.uint8)])


def read_request(message: np.ndarray) -> Request | Leave:
    """What a trainer sent."""
    if message[:8].view(np.int64)[0] == LEAVE:
        _, code, user_error = message[:24].view(np.int64).tolist()
        return Leave(code, message[24:].tobytes().decode(), bool(user_error))
    values = message.view(np.int64)
    _, epoch, step, training, count = values[:5].tolist()
    kinds, sizes = values[5 : 5 + 2 * count].reshape(count, 2).T
    ids = np.split(values[5 + 2 * count :], np.cumsum(sizes)[:-1]) if count else []
    return Request(epoch, step, bool(training), list(zip(kinds.tolist(), ids, strict=True)))


def pack_drawn(drawn: Drawn) -> np.ndarray:
    """As a message: places, offsets and sources of edges as int32 (they count within a batch), ids as int64."""
    header = [len(drawn.places), len(drawn.wanted), len(drawn.blocks), *map(len, drawn.places), *map(len, drawn.wanted)]
    narrow = [*drawn.places]
    for block in drawn.blocks:
        header += [len(block.relations), *block.num_src, *block.num_dst]
        for adjacency in block.relations:
            header += [adjacency.relation, adjacency.src_type, adjacency.dst_type, len(adjacency.source)]
            narrow += [adjacency.indptr.numpy(), adjacency.source.numpy()]
            assert len(adjacency.source) < 1 << 31
    whole = np.array([len(header), *header], np.int64)
    return np.concatenate([_bytes(whole, *drawn.wanted), *(_bytes(array.astype(np.int32)) for array in narrow)])


def read_drawn(message: np.ndarray) -> Drawn:
    """The inverse of ``pack_drawn``."""
    length = int(message[:8].view(np.int64)[0])
    header = iter(message[8 : 8 + 8 * length].view(np.int64).tolist())
    at = 8 + 8 * length

    def take(count: int, dtype: type) -> np.ndarray:
        nonlocal at
        begin, at = at, at + count * np.dtype(dtype).itemsize
        return message[begin:at].view(dtype).astype(np.int64)

    num_places, num_types, num_blocks = (next(header) for _ in range(3))
    place_sizes, sizes = ([next(header) for _ in range(count)] for count in (num_places, num_types))
    wanted = [take(size, np.int64) for size in sizes]
    places = [take(size, np.int32) for size in place_sizes]
    blocks = []
    for _ in range(num_blocks):
        num_relations = next(header)
        num_src, num_dst = (tuple(next(header) for _ in range(num_types)) for _ in range(2))
        relations = []
        for _ in range(num_relations):
            relation, src_type, dst_type, edges = (next(header) for _ in range(4))
            indptr, source = (torch.from_numpy(take(count, np.int32)) for count in (num_dst[dst_type] + 1, edges))
            relations.append(Adjacency(relation, src_type, dst_type, indptr, source))
        blocks.append(Block(tuple(relations), num_src, num_dst))
    return Drawn(places, tuple(blocks), wanted)


def _bytes(*arrays: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arrays])


class RemoteDraw:
    """Asks this trainer's sampler. For one thread at a time, which has the lane for itself."""

    def __init__(self, crew: Crew, lane: Lane, ahead: int):
        """ahead: steps asked for besides the one that is wanted."""
        self._lane, self._ahead, trainer = lane, ahead, crew.job.rank
        self._sampler = crew.rank_of(crew.mapping.sampler_of(trainer))
        self._followers = [crew.rank_of(sampler) for sampler in crew.mapping.followers(trainer)]
        self._asked: deque[tuple[str, int, int]] = deque()

    @property
    def num_asked(self) -> int:
        """Steps asked for that were not taken yet."""
        return len(self._asked)

    def draw(self, steps: Steps, step: int, stride: int = 1) -> Drawn:
        """Collective over the trainers. As in Draw."""
        name = steps.batches.name
        while self._asked and self._asked[0] != (name, steps.epoch, step):
            self._take()
        if not self._asked:
            self._ask(steps, step)
        else:
            steps.groups(step)
        while self.num_asked <= self._ahead and (after := self._asked[-1][2] + stride) < steps.batches.num_steps:
            self._ask(steps, after)
        return read_drawn(self._take())

    def settle(self) -> None:
        """Take what was asked for plans that were then given up."""
        while self._asked:
            self._take()

    def leave(self, reason: Leave) -> None:
        """Collective over the trainers. The samplers may go."""
        self.settle()
        self._send(reason, reason)
        self._lane.flush()

    def _ask(self, steps: Steps, step: int) -> None:
        training, epoch = steps.training, steps.epoch
        self._send(Request(epoch, step, training, steps.groups(step)), Request(epoch, step, training, []))
        self._asked.append((steps.batches.name, epoch, step))

    def _take(self) -> np.ndarray:
        self._asked.popleft()
        return self._lane.receive(self._sampler)

    def _send(self, mine: Request | Leave, others: Request | Leave) -> None:
        self._lane.send(mine.pack(), self._sampler)
        for rank in self._followers:
            self._lane.send(others.pack(), rank)


class Samplers:
    """The sampler ranks as a trainer knows them. draws: one for each plan in flight."""

    def __init__(self, crew: Crew):
        self._crew = crew
        ahead = crew.job.config.sampler_buffer // len(crew.lanes)
        self.draws = [RemoteDraw(crew, lane, ahead) for lane in crew.lanes]

    def describe(self) -> str:
        """Which ranks they are."""
        mapping = self._crew.mapping
        ranks = ", ".join(str(self._crew.rank_of(sampler)) for sampler in range(mapping.num_samplers))
        return f"{mapping.num_trainers} ranks train, samplers: rank {ranks}"

    def meet(self) -> None:
        """Collective over the job. The trainers are ready to ask. Raises DistributedError when the samplers are not."""
        self._crew.meet()

    def settle(self) -> None:
        """Take all that was asked for."""
        for draw in self.draws:
            draw.settle()

    def leave(self, code: int) -> None:
        """Collective over the trainers. The samplers end with an exit code."""
        self._leave(Leave(code))

    def fail(self, error: DistributedError) -> None:
        """Collective over the trainers. The samplers leave with the error that the trainers leave with."""
        if not self._crew.met:
            self._crew.meet(error)
        elif self._crew.open:
            self._leave(Leave(0, str(error), error.user_error))

    def _leave(self, reason: Leave) -> None:
        for draw in self.draws:
            draw.leave(reason)
