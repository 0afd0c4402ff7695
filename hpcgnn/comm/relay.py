"""Passes a model's state from group to group of ranks: each continues in time where the group before it ends.

A rank's *peers* are the ranks of the other groups with the same place in theirs, which hold the same nodes. Gradients
come back the other way.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from hpcgnn.comm.exchange import check_backward
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.world import World


class Relay:
    """Passes one state a step from the first group to the last one, and from there, without gradient, back to the
    first. Collective over the job to create, over peers to use."""

    def __init__(self, world: World):
        self._comm = world.job.mpi.Split(world.rank, world.group)
        self._max_bytes = world.config.max_message_bytes
        self.group, self.num_groups = self._comm.rank, self._comm.size
        self._sending: list[tuple[np.ndarray, list[MPI.Request]]] = []

    @property
    def is_first(self) -> bool:
        """Whether this is the first group."""
        return self.group == 0

    @property
    def is_last(self) -> bool:
        """Whether this is the last group."""
        return self.group == self.num_groups - 1

    def receive(self, like: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Receive the state of the group before, with the shapes and the dtype of ``like``, and a token. The token must
        be part of the loss: its backward pass sends the state's gradient back."""
        check_backward(like[0], self.num_groups)
        *state, token = _Receive.apply(_anchor(like[0]), self, like)
        return state, token

    def send(self, state: list[torch.Tensor]) -> torch.Tensor:
        """Send the state to the next group; returns a token that must be part of the loss: its backward pass waits for
        the state's gradient."""
        check_backward(state[0], self.num_groups)
        return _Send.apply(_anchor(state[0]), self, *state)

    def close(self) -> None:
        """Collective over peers. Free the communicator once everything is sent."""
        MPI.Request.Waitall([request for _, requests in self._sending for request in requests])
        self._sending = []
        self._comm.Free()

    def close_round(self, state: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the last group's state at the first group, and ``state`` elsewhere."""
        if self.is_last and not self.is_first:
            self.put(state, 0)
        if self.is_first and not self.is_last:
            return self.take(state, self.num_groups - 1)
        return state

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over peers, in order of their groups."""
        own = values.cpu().contiguous().numpy().reshape(-1)
        total, length = np.empty_like(own), max(1, self._max_bytes // (own.itemsize * self.num_groups))
        for begin in range(0, len(own), length):
            piece = slice(begin, begin + length)
            everyone = np.empty((self.num_groups, len(own[piece])), own.dtype)
            self._comm.Allgather(own[piece], everyone)  # no MPI_SUM, which may add in another order
            total[piece] = everyone[0]
            for other in everyone[1:]:
                total[piece] += other
        return torch.from_numpy(total).view(values.shape).to(values.device)

    def put(self, tensors: list[torch.Tensor], group: int) -> None:
        """Begin to send tensors to a peer."""
        self._sending = [message for message in self._sending if not MPI.Request.Testall(message[1])]
        for tensor in tensors:  # copied: the step goes on with its state while this is under way
            flat = tensor.detach().contiguous().cpu().numpy().reshape(-1).view(np.uint8).copy()
            self._sending.append((flat, [self._comm.Isend(piece, group) for piece in self._pieces(flat)]))

    def take(self, like: list[torch.Tensor], group: int) -> list[torch.Tensor]:
        """Receive tensors from a peer, of the shapes and types of ``like``."""
        tensors = []
        for tensor in like:
            host = torch.empty(tensor.shape, dtype=tensor.dtype)
            for piece in self._pieces(host.numpy().reshape(-1).view(np.uint8)):
                self._comm.Recv(piece, group)
            tensors.append(host.to(tensor.device))
        return tensors

    def _pieces(self, flat: np.ndarray) -> list[np.ndarray]:
        return [flat[begin : begin + self._max_bytes] for begin in range(0, len(flat), self._max_bytes)]


class Handed(Mapping):
    """The state of the group before, received when it is first read: what a model computes until then overlaps with the
    groups before. like: a state of the same shapes."""

    def __init__(self, relay: Relay, like: Mapping[str, torch.Tensor], tokens: list[torch.Tensor]):
        self._relay, self._tokens, self._state, self._waits = relay, tokens, like, True

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._waits:
            self._waits = False
            values, token = self._relay.receive(list(self._state.values()))
            self._tokens.append(token)
            self._state = dict(zip(self._state, values, strict=True))
        return self._state[name]

    def __iter__(self):
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def _anchor(like: torch.Tensor) -> torch.Tensor:
    """Make a leaf that lets a backward pass reach the functions below."""
    return torch.zeros((), dtype=like.dtype, device=like.device, requires_grad=torch.is_grad_enabled())


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, relay, like):
        ctx.relay = relay
        return (*relay.take(like, relay.group - 1), anchor.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        *state, token = gradients
        ctx.relay.put(list(state), ctx.relay.group - 1)
        return token, None, None


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, relay, *state):
        ctx.relay, ctx.like = relay, [torch.empty_like(tensor, device="meta") for tensor in state]
        ctx.device = anchor.device
        relay.put(list(state), relay.group + 1)
        return anchor.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, token):
        like = [torch.empty(tensor.shape, dtype=tensor.dtype, device=ctx.device) for tensor in ctx.like]
        return token, None, *ctx.relay.take(like, ctx.relay.group + 1)
