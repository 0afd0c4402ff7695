"""Exchanges ragged rows by alltoallv: the one function that every exchange goes through.

R ranks. A message is a matrix of rows, grouped by peer; both sides know the counts. Rows of any dtype travel as bytes.
The first ``limit`` bytes between two ranks travel in the alltoallv, which keeps its total below 2 GiB (Open MPI #5383).
The rest of larger messages follows in point-to-point rounds; both sides can count these rounds without a further
message. Device memory that MPI takes directly travels point to point only: Open MPI's collectives take it only where
they block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.group import MAX_BYTES
from hpcgnn.comm.mpi import MPI
from hpcgnn.native.dispatch import on_cuda
from hpcgnn.native.workspace import empty_like_rows

POLL_SECONDS = 5e-5

# Transfers that nobody waited for: MPI may still write or read their memory.
_abandoned: list[Transfer] = []


class Transfer:
    """Rows under way, begun by ``Channel.start``; the memory that MPI reads and writes is kept until they have
    arrived, also where an error kept everyone from waiting for them."""

    def __init__(self, out: torch.Tensor, wait: Callable[[MPI.Request], None]):
        self._out, self._wait = out, wait
        self.requests: list[MPI.Request] = []
        self.held: list[torch.Tensor] = []
        self.unpack: list[Callable[..., object]] = []

    def wait(self) -> torch.Tensor:
        """Wait for the received rows and return them."""
        for request in self.requests:
            self._wait(request)
        for unpack in self.unpack:
            unpack()
        self.requests, self.held, self.unpack = [], [], []
        return self._out

    def __del__(self, keep=_abandoned.append) -> None:  # as a default, as the module's names may be gone at exit
        if self.requests:
            keep(self)


def _free_abandoned() -> None:
    """Free the memory of abandoned transfers that have ended. Each is taken off the list while it is looked at: several
    threads exchange rows."""
    for _ in range(len(_abandoned)):
        try:
            transfer = _abandoned.pop(0)
        except IndexError:
            return
        if all([request.Test() for request in transfer.requests]):
            transfer.requests, transfer.held = [], []
        else:
            _abandoned.append(transfer)


class Channel:
    """A private communicator (``mpi``) for one thread's exchanges, with counters of what it moved.

    ``polite`` channels wait by Test and short sleeps: a blocking wait in a background thread would spin on a core that
    the main thread needs. ``direct`` sends device memory directly (CUDA-aware MPI); otherwise it is staged in pinned
    memory. machine: a channel of the ranks of this rank's machine, or None.
    """

    def __init__(self, comm: MPI.Comm, polite: bool = False, direct: bool = False, max_bytes: int = MAX_BYTES):
        self.mpi = comm.Dup()
        self.rank, self.size = comm.rank, comm.size
        self.polite, self.direct, self.max_bytes = polite, direct, max_bytes
        self.sent_to = np.zeros(self.size, np.int64)  # bytes by destination
        self.machine: Channel | Any = None
        self.machine_ranks = np.empty(0, np.int64)  # ranks of this channel that ``machine`` joins

    def sent(self) -> np.ndarray:
        """Count the bytes sent so far to every rank [R], including those sent through ``machine``."""
        sent = self.sent_to.copy()
        if self.machine is not None:
            sent[self.machine_ranks] += self.machine.sent_to
        return sent

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to other ranks so far, without those sent through ``machine``."""
        return int(self.sent_to.sum())

    def close(self) -> None:
        """Collective. Free the communicator, and that of the machine."""
        if self.machine is not None:
            self.machine.close()
        self.mpi.Free()

    def counts(self, send: np.ndarray) -> np.ndarray:
        """Collective. Send every rank its row count [R]; returns the counts [R] that other ranks sent."""
        if self.size == 1:
            return send.copy()
        send, receive = np.ascontiguousarray(send, np.int64), np.empty(self.size, np.int64)
        self._wait(self.mpi.Ialltoall(send, receive))
        return receive

    def rows(self, rows: torch.Tensor, send_counts: np.ndarray, receive_counts: np.ndarray) -> torch.Tensor:
        """Collective. Send rows [sum(send_counts), ...], grouped by destination; returns [sum(receive_counts), ...] by
        source."""
        return self.start(rows, send_counts, receive_counts).wait()

    def start(self, rows: torch.Tensor, send_counts: np.ndarray, receive_counts: np.ndarray) -> Transfer:
        """Collective. Start to send rows, without waiting for them. Several may be under way, begun in one order on all
        ranks; the sent rows must not change meanwhile."""
        if self.size == 1:
            return Transfer(rows, self._wait)
        return self._start(rows, _starts(send_counts), send_counts, receive_counts)

    def array(self, rows: np.ndarray, send_counts: np.ndarray, receive_counts: np.ndarray) -> np.ndarray:
        """Collective. Send rows of an array of any dtype, structured ones included; returns the received rows by
        source."""
        width = rows.dtype.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
        flat = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).reshape(len(rows), width)
        received = self.rows(torch.from_numpy(flat), send_counts, receive_counts).numpy()
        return received.view(rows.dtype).reshape(len(received), *rows.shape[1:])

    def everyone(self, rows: torch.Tensor, counts: np.ndarray | None = None) -> torch.Tensor:
        """Collective. Send this rank's rows [n, ...] to all ranks; returns the rows of all ranks [sum(counts), ...] in
        rank order. counts [R]: their numbers, where they are known."""
        if counts is None:
            counts = self.counts(np.full(self.size, len(rows), np.int64))
        return self.start_everyone(rows, counts).wait()

    def start_everyone(self, rows: torch.Tensor, counts: np.ndarray) -> Transfer:
        """Collective. Start to send this rank's rows to all ranks, without waiting."""
        if self.size == 1:
            return Transfer(rows, self._wait)
        first = np.zeros(self.size, np.int64)  # all read the same memory
        return self._start(rows, first, np.full(self.size, len(rows), np.int64), counts)

    def _start(self, rows: torch.Tensor, first: np.ndarray, send_counts, receive_counts) -> Transfer:
        """Start to send to every rank ``send_counts`` [R] rows, from row ``first`` [R] on."""
        _free_abandoned()
        out = empty_like_rows(rows, int(receive_counts.sum()))
        rows = rows.contiguous()
        begin, own = int(first[self.rank]), int(send_counts[self.rank])
        target = int(receive_counts[: self.rank].sum())
        out[target : target + own].copy_(rows[begin : begin + own])
        if rows.is_cuda:  # MPI reads them outside of the stream's order
            torch.cuda.current_stream(rows.device).synchronize()
        if on_cuda(rows) and not self.direct:
            return self._start_staged(rows, out, first, send_counts, receive_counts)
        transfer = Transfer(out, self._wait)
        self._move(transfer, rows, out, first, send_counts, receive_counts, by_pairs=on_cuda(rows))
        return transfer

    def _start_staged(self, rows, out, first, send_counts, receive_counts) -> Transfer:
        """Start to send through pinned buffers, which torch caches; rows for this rank alone stay on the device."""
        transfer, pinned = Transfer(out, self._wait), rows.is_cuda
        host_rows, host_out = (torch.empty(t.shape, dtype=t.dtype, pin_memory=pinned) for t in (rows, out))
        for piece in self._of_others(send_counts) if first.any() else [slice(None)]:
            host_rows[piece].copy_(rows[piece])
        self._move(transfer, host_rows, host_out, first, send_counts, receive_counts)
        for piece in self._of_others(receive_counts):  # torch reuses pinned memory only after the stream has copied it
            transfer.unpack.append(lambda piece=piece: out[piece].copy_(host_out[piece], non_blocking=True))
        return transfer

    def _of_others(self, counts: np.ndarray) -> tuple[slice, slice]:
        """Return the rows before and behind this rank's own rows."""
        own = int(counts[: self.rank].sum())
        return slice(own), slice(own + int(counts[self.rank]), None)

    def _move(self, transfer: Transfer, rows, out, first, send_counts, receive_counts, by_pairs: bool = False) -> None:
        width = rows.element_size() * int(np.prod(rows.shape[1:], dtype=np.int64))
        if width == 0:
            return
        send, receive = (np.asarray(counts, np.int64) * width for counts in (send_counts, receive_counts))
        send_start, receive_start = first * width, _starts(receive)
        send[self.rank] = receive[self.rank] = 0  # these were copied by ``_start``
        self.sent_to += send
        transfer.held += [rows, out]
        limit = 0 if by_pairs else max(1, self.max_bytes // self.size)
        if limit:
            counts = (np.minimum(send, limit), send_start), (np.minimum(receive, limit), receive_start)
            self._alltoallv(transfer, rows, out, *counts)
        self._remainder(transfer, rows, out, (send, send_start), (receive, receive_start), limit)

    def _alltoallv(self, transfer: Transfer, rows, out, send, receive) -> None:
        largest = np.iinfo(np.int32).max
        if max(send[1].max(initial=0), receive[1].max(initial=0)) <= largest:
            transfer.requests.append(self._start_collective(rows, send, out, receive))
            return
        # Displacements beyond an int: pack what the collective carries (at most max_bytes) and unpack it afterwards.
        packed = torch.cat([_piece(rows, start, count) for count, start in zip(*send, strict=True)])
        received = torch.empty(int(receive[0].sum()), dtype=torch.uint8, device=out.device)
        starts = _starts(receive[0])
        request = self._start_collective(packed, (send[0], _starts(send[0])), received, (receive[0], starts))

        def unpack() -> None:
            for count, start, begin in zip(*receive, starts, strict=True):
                _piece(out, start, count).copy_(received[begin : begin + count])

        transfer.requests.append(request)
        transfer.held.append(packed)
        transfer.unpack.append(unpack)

    def _start_collective(self, rows, send: tuple[np.ndarray, ...], out, receive: tuple[np.ndarray, ...]):
        """Start the alltoallv of bytes, from their numbers and first places [R]; as lists, which mpi4py reads eight
        times as fast as arrays: with 1,024 ranks 0.1 in place of 0.9 ms an exchange."""
        (sent, begin), (received, places) = ([numbers.tolist() for numbers in pair] for pair in (send, receive))
        message = [_memory(rows), (sent, begin), MPI.BYTE], [_memory(out), (received, places), MPI.BYTE]
        return self.mpi.Ialltoallv(*message)

    def _remainder(self, transfer: Transfer, rows, out, send, receive, limit: int) -> None:
        # Receives first, so that what arrives has its place. MPI matches the pieces of two ranks by their order alone.
        for (counts, starts), tensor, post in (
            (receive, out, self.mpi.Irecv),
            (send, rows, self.mpi.Isend),
        ):
            for peer in np.flatnonzero(counts > limit).tolist():
                for begin in range(limit, int(counts[peer]), self.max_bytes):
                    size = min(self.max_bytes, int(counts[peer]) - begin)
                    piece = _memory(_piece(tensor, int(starts[peer]) + begin, size))
                    transfer.requests.append(post([piece, size, MPI.BYTE], peer, 7))

    def _wait(self, request: MPI.Request) -> None:
        if not self.polite:
            request.Wait()
            return
        while not request.Test():
            time.sleep(POLL_SECONDS)


def exchange_columns(columns: list[np.ndarray], target: np.ndarray, channel: Channel) -> list[np.ndarray]:
    """Collective. Send the rows of ``columns`` [n, ...] to the ranks ``target`` [n]."""
    order = native.order_of_ranks(target, channel.size)
    send = np.bincount(target, minlength=channel.size).astype(np.int64)
    receive = channel.counts(send)
    return [channel.array(column[order], send, receive) for column in columns]


def ask(
    requests: np.ndarray, target: np.ndarray, channel: Channel, answer: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Collective. Send requests [n, ...] to the ranks ``target`` [n] and return their answers [n, ...], in one round
    trip. answer: makes the answers to the requests that this rank receives, one row each."""
    order = native.order_of_ranks(target, channel.size)
    send = np.bincount(target, minlength=channel.size).astype(np.int64)
    receive = channel.counts(send)
    answers = channel.array(answer(channel.array(requests[order], send, receive)), receive, send)
    out = np.empty_like(answers)
    out[order] = answers
    return out


def check_backward(rows: torch.Tensor, channel_size: int) -> None:
    """Raise ValueError where the backward pass of rows would call MPI from a thread from which MPI takes no calls.
    PyTorch runs the backward pass of a device's tensors in a separate thread."""
    if rows.is_cuda and channel_size > 1 and MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ValueError(
            "the backward pass of this model on a GPU calls MPI from another thread, and this MPI library allows calls "
            "from one thread only: use one with MPI_THREAD_MULTIPLE, or --comm.device=cpu"
        )


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts)[:-1]))


def _piece(tensor: torch.Tensor, start: int, size: int) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)[start : start + size]


def _memory(tensor: torch.Tensor):
    """Make MPI's view of a contiguous tensor's memory, on the host or on a device."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())
