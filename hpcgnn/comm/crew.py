"""Sampling servers ("samplers") beside the ranks that train: which trainer sends requests to which sampler, and the
messages between them.

T trainers, the first ranks of a job, and S samplers, the last ones. Trainer t sends its requests to sampler t S // T.
All samplers draw together: one without requests of its own gets the number of the next step from the trainer of the
sampler before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.comm.exchange import POLL_SECONDS
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.world import DistributedError, World

LENGTH, PIECE = 1, 2
PATIENT_SECONDS, PATIENT_AFTER = 1e-3, 0.02  # a wait that takes longer polls more rarely


class Lane:
    """Sends messages of bytes between any two ranks of the job, for one thread at a time; they arrive in the order
    sent."""

    def __init__(self, comm: MPI.Comm, max_bytes: int):
        self._comm, self._max_bytes = comm, max_bytes
        self._sending: list[tuple[np.ndarray, np.ndarray, list[MPI.Request]]] = []

    def send(self, message: np.ndarray, rank: int) -> None:
        """Begin to send bytes [n] uint8, which must not change; they are kept until they are sent."""
        self.num_held()  # frees the memory of messages that are sent
        length = np.array([len(message)], np.int64)
        requests = [self._comm.Isend(length, rank, LENGTH)]
        self._sending.append((length, message, requests + self._pieces(self._comm.Isend, message, rank)))

    def send_sized(self, message: np.ndarray, rank: int) -> None:
        """Begin to send bytes as ``send`` does, to a rank that has their number (``receive_into``)."""
        self.num_held()
        self._sending.append((message, message, self._pieces(self._comm.Isend, message, rank)))

    def receive(self, rank: int) -> np.ndarray:
        """Wait for the next message [n] uint8 from a rank."""
        length = np.empty(1, np.int64)
        request = self._comm.Irecv(length, rank, LENGTH)
        _wait(request.Test)
        message = np.empty(int(length[0]), np.uint8)
        self.receive_into(message, rank)
        return message

    def receive_object(self, rank: int) -> Any:
        """Wait for the next object from a rank, which it has packed by ``packed``."""
        return MPI.pickle.loads(self.receive(rank).tobytes())

    def receive_into(self, message: np.ndarray, rank: int) -> None:
        """Wait for the next message from a rank, which is as long as ``message`` [n] uint8."""
        pieces = self._pieces(self._comm.Irecv, message, rank)
        _wait(lambda: MPI.Request.Testall(pieces))

    def _pieces(self, begin: Callable[..., MPI.Request], message: np.ndarray, rank: int) -> list[MPI.Request]:
        """Begin to send or to receive a message in pieces."""
        firsts = range(0, len(message), self._max_bytes)
        return [begin(message[first : first + self._max_bytes], rank, PIECE) for first in firsts]

    def num_held(self) -> int:
        """Count the messages that are not sent yet; the memory of the others is freed."""
        self._sending = [message for message in self._sending if not MPI.Request.Testall(message[2])]
        return len(self._sending)

    def flush(self) -> None:
        """Wait until everything is sent."""
        _wait(lambda: self.num_held() == 0)


def packed(value: Any) -> np.ndarray:
    """Pack an object to the bytes [n] uint8 of a message, as MPI's collective calls of this job do. Raises an exception
    of any kind for objects that cannot be packed."""
    return np.frombuffer(MPI.pickle.dumps(value), np.uint8)


def _wait(done: Callable[[], bool]) -> None:
    """Wait without spinning: other threads and ranks need the core."""
    begin = time.monotonic()
    while not done():
        time.sleep(POLL_SECONDS if time.monotonic() - begin < PATIENT_AFTER else PATIENT_SECONDS)


@dataclass(frozen=True, slots=True)
class Mapping:
    """Assigns a sampler to every trainer, both by their numbers."""

    num_trainers: int
    num_samplers: int

    @property
    def rounds(self) -> int:
        """Number of trainers that the busiest sampler, the first one, draws for, one after the other, in every step."""
        return self._first(1)

    def sampler_of(self, trainer: int) -> int:
        """Return the sampler that draws for a trainer."""
        return trainer * self.num_samplers // self.num_trainers

    def askers(self, sampler: int) -> range:
        """List the trainers that a sampler draws for."""
        return range(self._first(sampler), self._first(sampler + 1))

    def source(self, sampler: int) -> int:
        """Return the trainer that sends a sampler without trainers the number of the next step."""
        return self._first(sampler) - 1

    def followers(self, trainer: int) -> range:
        """List the samplers without trainers to which a trainer sends the number of the next step."""
        return range(self.sampler_of(trainer) + 1, self.sampler_of(trainer + 1))

    def _first(self, sampler: int) -> int:
        """Return the first trainer that asks the sampler or a later one."""
        return -(-sampler * self.num_trainers // self.num_samplers)


class Crew:
    """The trainers and samplers of a job. Collective to create.

    world: the ranks of this rank's side, whose verdicts stay within it; lanes: one for each step that is drawn at the
    same time. met: whether ``meet`` was called; open: whether the lanes are in use.
    """

    def __init__(self, job: World, num_lanes: int):
        """Raises DistributedError, on all ranks, where ``comm.sampling_servers`` leaves no trainer."""
        samplers = job.config.sampling_servers
        if samplers >= job.size:
            message = (
                f"comm.sampling_servers {samplers} leaves no trainer among {job.size} ranks: start more, or lower it"
            )
            raise DistributedError(message, user_error=True)
        self.job, self.mapping = job, Mapping(job.size - samplers, samplers)
        self.world = job.split_off(samplers)
        self.lanes = [Lane(job.mpi.Dup(), job.config.max_message_bytes) for _ in range(num_lanes)]
        self.met = self.open = False

    @property
    def samples(self) -> bool:
        """Whether this rank is a sampler."""
        return self.job.rank >= self.mapping.num_trainers

    def add_lane(self) -> Lane:
        """Collective over the job. Make one more lane."""
        self.lanes.append(Lane(self.job.mpi.Dup(), self.job.config.max_message_bytes))
        return self.lanes[-1]

    def rank_of(self, sampler: int) -> int:
        """Return the rank of a sampler in the job; the rank of a trainer is its number."""
        return self.mapping.num_trainers + sampler

    def meet(self, error: DistributedError | None = None) -> None:
        """Collective over the job, once. Agree that both sides are ready, or raise the error of any rank on all."""
        self.met = True
        verdicts = self.job.allgather(None if error is None else (str(error), error.user_error))
        if error is not None:
            raise error
        for verdict in verdicts:
            if verdict is not None:
                raise DistributedError(*verdict)
        self.open = True
