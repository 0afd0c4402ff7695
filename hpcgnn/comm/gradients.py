"""Keeps parameters and gradients in flat buffers and sums gradients over ranks in one all-reduce."""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import socket
import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from hpcgnn.comm.devices import gpu_of, is_slice
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World

FOREVER = 1e8  # seconds
LOOPBACK, SIOCGIFADDR = "127.0.0.1", 0x8915  # Linux' request for the address of a network card
CONNECT_SECONDS = 5.0
STORE_PATIENCE = timedelta(minutes=5)  # torch's own


class FlatParameters:
    """All parameters of a module as views into one buffer, and their gradients as views into another. A module without
    parameters has the device and dtype of its buffers.

    parameter: one leaf tensor for the optimizer; extras: a few more elements that travel with the gradients (loss,
    flags).
    """

    def __init__(self, module: torch.nn.Module, num_extras: int = 0):
        parameters = [p for p in module.parameters() if p.requires_grad]
        tensors: Sequence[torch.Tensor] = parameters or list(module.buffers())
        dtypes = {p.dtype for p in tensors}
        if len(dtypes) != 1:
            raise ValueError(f"all trainable parameters must have one dtype, got {dtypes}")
        sizes = [p.numel() for p in parameters]
        first = tensors[0]
        pieces = [first.new_empty(0), *(p.detach().reshape(-1) for p in parameters)]
        self.parameter = torch.nn.Parameter(torch.cat(pieces))
        self._buffer = torch.zeros(sum(sizes) + num_extras, dtype=first.dtype, device=first.device)
        self.gradient, self.extras = self._buffer[: sum(sizes)], self._buffer[sum(sizes) :]
        self.parameter.grad = self.gradient
        views = zip(parameters, self.parameter.data.split(sizes), self.gradient.split(sizes), strict=True)
        for parameter, value, gradient in views:
            parameter.data = value.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)

    def zero(self) -> None:
        """Clear gradients and extras."""
        self._buffer.zero_()  # never .grad = None: the parameters' gradients would leave the buffer

    def sum(self, reducer: GradientSum) -> None:
        """Collective. Sum gradients and extras over ranks."""
        reducer(self._buffer)

    def sum_extras(self, reducer: GradientSum) -> None:
        """Collective. Sum the extras alone, where gradients wait for more steps."""
        reducer(self.extras)

    def gather_gradient(self, reducer: GradientSum) -> torch.Tensor:
        """Collective. Sum the gradient so far over ranks; rank 0 keeps the sum and others zero, so that a later sum
        over ranks is unchanged. Returns a view."""
        reducer(self.gradient)
        return self.set_gradient(self.gradient, reducer)

    def set_gradient(self, total: torch.Tensor, reducer: GradientSum) -> torch.Tensor:
        """Set the gradient to a sum over all ranks: rank 0 keeps it, others zero."""
        if reducer.rank == 0:
            self.gradient.copy_(total)
        else:
            self.gradient.zero_()
        return self.gradient


class GradientSum:
    """Sums a flat tensor over ranks in place, by MPI, gloo or NCCL. Collective to create and to call."""

    def __init__(self, world: World):
        self._comm, self.rank = world.mpi.Dup(), world.rank
        self.backend = _choose(world)
        if self.backend in ("gloo", "nccl") and world.size > 1:
            _join_process_group(self._comm, self.backend, world)

    def __call__(self, tensor: torch.Tensor) -> None:
        if self._comm.size == 1:
            return
        if self.backend in ("gloo", "nccl"):
            torch.distributed.all_reduce(tensor)
        elif tensor.device.type == "cpu":
            self._comm.Allreduce(MPI.IN_PLACE, tensor.detach())
        else:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor.detach())
            self._comm.Allreduce(MPI.IN_PLACE, host)
            tensor.copy_(host)

    def close(self) -> None:
        """Collective. Leave the process group, if there is one, and free the communicator."""
        if self.backend in ("gloo", "nccl") and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._comm.Free()


def join_process_group(world: World) -> None:
    """Collective. Start the default process group of ``torch.distributed`` on the ranks of a world, where there is none
    yet: NCCL if every rank has its own GPU, else gloo. ``DistributedDataParallel`` and the collective calls of torch
    then work as after ``init_process_group``. Raises DistributedError if ranks cannot reach each other."""
    if torch.distributed.is_initialized():
        return
    backend = _choose(world)
    _join_process_group(world.mpi, "nccl" if backend == "nccl" else "gloo", world)


def average_by_seeds(model: torch.nn.parallel.DistributedDataParallel, loader: Any) -> None:
    """Make the gradients of a ``DistributedDataParallel`` model the gradients of the mean over a global batch.

    Each rank takes the mean loss of its seeds. DDP averages over ranks, which is the mean over all seeds only where
    ranks have equal shares. After this call, each rank's gradient counts by its share of the seeds of the loader's
    newest batch, and the gradient of a rank without seeds is left out, although the mean of nothing is NaN. loader: of
    the training batches, with the attribute ``share``.
    """

    def hook(state, bucket):  # DDP refuses annotations that are text, as they all are here
        gradient = bucket.buffer()
        if state.share == 0:
            gradient.zero_()
        else:
            gradient.mul_(state.share)
        work = torch.distributed.all_reduce(gradient, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(loader, hook)


def _choose(world: World) -> str:
    """Collective. Choose the configured backend; "auto" is NCCL when every rank has a GPU of its own, else MPI."""
    # Host and device of this rank's GPU: ranks may each see one device, or all of them.
    gpu = None
    if world.device.type == "cuda" and not is_slice(world.device):
        gpu = world.host, gpu_of(world.device)
    gpus = world.allgather(gpu)
    own_gpus = None not in gpus and len(set(gpus)) == world.size
    backend, error = "mpi", None
    try:
        backend = _backend(world, own_gpus)
    except ValueError as caught:
        error = caught
    world.agree(error, "choose how gradients are summed")
    return backend


def _backend(world: World, own_gpus: bool) -> str:
    backend = world.config.gradients
    if backend == "auto":
        return "nccl" if own_gpus and torch.distributed.is_nccl_available() else "mpi"
    if backend == "nccl" and not own_gpus:
        raise ValueError(
            "comm.gradients is nccl, which needs for every rank a GPU of its own, and no slice of one (MIG); use mpi "
            "or auto"
        )
    if backend == "gloo" and world.device.type == "cuda":
        raise ValueError("comm.gradients is gloo, which is for CPU ranks; use nccl or mpi with GPUs")
    return backend


def _addresses(world: World) -> list[str]:
    """List addresses of this machine at which the other ranks may reach it: the loopback for its own ranks, the
    addresses of its network cards, and its name, which may have no address, or another one, on other machines."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, card in socket.if_nameindex():
            with contextlib.suppress(OSError):  # of a card without an address
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", card.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [LOOPBACK, *(address for address in found if address != LOOPBACK), world.host]


def _reach(addresses: list[str], port: int, token: str, size: int) -> torch.distributed.TCPStore:
    """Connect to the store of rank 0, which alone has ``token``: an address may lead to another machine. Raises
    ValueError where none leads there."""
    for address in addresses:
        with contextlib.suppress(OSError, RuntimeError):
            socket.create_connection((address, port), CONNECT_SECONDS).close()
            store = torch.distributed.TCPStore(
                address, port, size, is_master=False, timeout=timedelta(seconds=CONNECT_SECONDS)
            )
            if store.check([token]):
                store.set_timeout(STORE_PATIENCE)
                return store
    raise ValueError(
        f"{socket.gethostname()} cannot connect to port {port} of rank 0 at {' or '.join(addresses)}: let the machines "
        "of the job connect to each other, or use --comm.gradients=mpi"
    )


def _join_process_group(comm: MPI.Comm, backend: str, world: World) -> None:
    """Start torch.distributed by MPI: rank 0 opens a store on a free port and broadcasts its addresses."""
    store: Any = None
    offer: Any = None
    with together(world, "open a process group"):
        if comm.rank == 0:
            # Without waiting: the others learn the port from the broadcast below.
            store = torch.distributed.TCPStore(LOOPBACK, 0, comm.size, is_master=True, wait_for_workers=False)
            offer = _addresses(world), store.port, secrets.token_hex(8)
            store.set(offer[-1], "")
    addresses, port, token = comm.bcast(offer)
    with together(world, "join a process group"):
        if store is None:
            store = _reach(addresses, port, token, comm.size)
    patience = timedelta(seconds=world.config.watchdog_seconds or FOREVER)  # the watchdog is to speak first
    torch.distributed.init_process_group(
        backend, store=store, rank=comm.rank, world_size=comm.size, timeout=patience + timedelta(minutes=5),
        device_id=world.device if backend == "nccl" else None,
    )  # fmt: skip
