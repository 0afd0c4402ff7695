"""The ranks of a run: how they are placed on machines, cores and GPUs, and how they agree and fail together."""

from __future__ import annotations

import copy
import ctypes
import math
import os
import socket
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mpi4py
import numpy as np
import torch

from hpcgnn import __version__
from hpcgnn.choices import check_choices
from hpcgnn.comm.devices import DeviceRoom, choose_gpus, cores_near, gpu_of, is_slice
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.group import FORWARD_SECONDS, MAX_BYTES, DistributedError, Group, mpi_library
from hpcgnn.comm.launch import CUDA_AWARE, local_rank_for_gpu
from hpcgnn.comm.memory import granted_cores
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.same import same_everywhere
from hpcgnn.native.build import hpcgnn_native

PLANS_AHEAD = 3
# For GPUs, as in the extra "cuda" of pyproject.toml: older ones wait for the legacy stream when they hand a tensor to a
# kernel (DLPack), which no CUDA graph can record.
CUDA_TORCH = "2.10"


@dataclass
class CommConfig:
    """How ranks are placed, and how they exchange data.

    Attributes:
        device: Device of each rank: "cpu", "cuda" (a GPU, of NVIDIA or AMD: PyTorch names both so), or "auto": a GPU
            for each rank where there is one.
        threads: Number of compute threads per rank; 0: the cores of the rank, or fewer if OMP_NUM_THREADS or
            SLURM_CPUS_PER_TASK is lower. A rank's cores are its affinity, or its share of the machine and of the
            control group's quota.
        gradients: Library that sums gradients over ranks: "mpi", "gloo", "nccl", or "auto": NCCL if every rank has its
            own GPU, else MPI.
        gpu_direct: Pass device memory directly to MPI: "on", "off", or "auto": on if the MPI library reports support.
        watchdog_seconds: Seconds that a rank may stay in one step before the watchdog ends the job; 0: no limit.
        max_message_bytes: Maximum size of one round of an exchange, in bytes; larger exchanges take several rounds.
        sampling_servers: Number of ranks, the last ones, that are sampling servers: they hold the graph's edges and
            draw neighbors, and the other ranks train. 0: every rank does both. Static graphs only.
        server_features: Keep the node features on the sampling servers, which send the rows of the nodes that they
            draw; static graphs only.
        server_buffer: Number of steps that a trainer requests ahead from its sampling server, beyond the step that it
            plans. Static graphs only.
        overlap: Compute while the rows of remote neighbors are exchanged inside a model; false: wait for each exchange,
            to measure the effect. Full-graph training and snapshot graphs only.
        ranks_per_machine: Number of consecutive ranks that count as one machine; 0: all that can share memory; 1: no
            shared memory. Ranks of a machine read each other's rows in shared memory and send requests to other
            machines together.
        time_groups: Maximum number of groups of ranks that divide the snapshots of a step; the ranks of a group divide
            the nodes. There are as many groups as divide both this and the number of ranks. Snapshot graphs only.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    gradients: Literal["auto", "mpi", "gloo", "nccl"] = "auto"
    gpu_direct: Literal["auto", "on", "off"] = "auto"
    watchdog_seconds: float = 1800.0
    max_message_bytes: int = MAX_BYTES
    sampling_servers: int = 0
    server_features: bool = False
    server_buffer: int = 2
    overlap: bool = True
    ranks_per_machine: int = 0
    time_groups: int = 1

    def __post_init__(self):
        check_choices("comm", self)
        if self.threads < 0 or self.watchdog_seconds < 0 or self.max_message_bytes < 1:
            raise ValueError("comm.threads and comm.watchdog_seconds must be >= 0, comm.max_message_bytes >= 1")
        if self.sampling_servers < 0 or self.server_buffer < 0:
            raise ValueError("comm.sampling_servers and comm.server_buffer must be >= 0")
        if self.server_features and not self.sampling_servers:
            raise ValueError("comm.server_features: there are no sampling servers; set comm.sampling_servers, too")
        if self.ranks_per_machine < 0:
            raise ValueError(f"comm.ranks_per_machine must be at least 0, got {self.ranks_per_machine}")
        if self.time_groups < 1:
            raise ValueError(f"comm.time_groups must be at least 1, got {self.time_groups}")


class AbortAtError:
    """A ``sys.excepthook`` that ends the job after an uncaught error: the other ranks would wait for this one for ever.
    It is made for users' own programs; commands catch all errors."""

    def __init__(self, report: Callable[..., object]):
        self._report = report

    def __call__(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Report the error, and abort all ranks, except after an error that all ranks raise: then they leave."""
        self._report(kind, error, trace)
        if isinstance(error, DistributedError) or hasattr(sys, "ps1") or MPI.Is_finalized():
            return
        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        print(f"hpcgnn: rank {rank} of {size} on {socket.gethostname()} ends the job", file=sys.stderr, flush=True)
        time.sleep(FORWARD_SECONDS)
        MPI.COMM_WORLD.Abort(1)


class World(Group):
    """The ranks of a run and their communicator: the object through which other rooms reach MPI. Collective to create.
    One of several ranks makes errors that nothing catches end the job (``AbortAtError``).

    ``split`` makes worlds of some of the ranks: ``group`` of ``num_groups``; job: the world of all ranks; room: the
    memory of this rank's device; unused_gpus: the most GPUs of any machine that no rank uses. compares: whether
    ``check_same`` runs; False for commands that report what each rank has.
    """

    job: World

    def __init__(self, config: CommConfig | None = None, comm: MPI.Comm | None = None, compares: bool = True):
        self.config = config or CommConfig()
        super().__init__(comm, self.config.max_message_bytes)
        self.group, self.num_groups = 0, 1
        machine = self._comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        self.local_rank, self.local_size = machine.rank, machine.size
        self._cores_by_rank, cores = _cores(machine)
        self.threads = self.config.threads or min(cores, wanted_threads() or cores)
        self.device = self._agree_device()
        if compares:
            self.check_same()
        self.unused_gpus = self._count_unused_gpus(machine)
        self.room = DeviceRoom(self.device, self._count_sharers(machine))
        machine.Free()
        # Whether device memory goes straight to MPI: for all ranks alike, as both ends of a message must agree on it.
        self.gpu_direct = bool(self._comm.allreduce(self._samples or self._takes_device_memory(), MPI.LAND))
        # For all ranks alike, too, as plans ahead are made in collective calls.
        spare = self.device.type == "cuda" or self.threads < cores
        self._spare_cores = bool(self._comm.allreduce(spare, MPI.LAND))
        torch.set_num_threads(self.threads)
        if self.size > 1 and not isinstance(sys.excepthook, AbortAtError):
            sys.excepthook = AbortAtError(sys.excepthook)
        self._channels: list[tuple[weakref.ref[Channel], MPI.Comm]] = []

    @classmethod
    def alone(cls, config: CommConfig | None = None) -> World:
        """Make a world of this rank only, for work that the others do not share."""
        return cls(config, MPI.COMM_SELF)

    def split(self, most: int) -> World:
        """Collective. Make the world of this rank's group, of as many groups as divide both the ranks and ``most``.

        Groups are equal and of consecutive ranks. Their exchanges stay within them, their verdicts (``any``, ``agree``)
        span all ranks: a group that left alone would leave the others waiting.
        """
        groups = math.gcd(self.size, most)
        if groups == 1:
            return self
        part = copy.copy(self)
        part.group, part.num_groups = self.rank // (self.size // groups), groups
        part._comm = self._comm.Split(part.group, self.rank)
        part.rank, part.size, part._channels = part._comm.rank, part._comm.size, []
        return part

    def split_off(self, last: int) -> World:
        """Collective. Make the world of this rank's side: the ``last`` ranks, or the others. A side is a separate job:
        its verdicts stay within it."""
        part = copy.copy(self)
        part._comm = self._comm.Split(self.rank >= self.size - last, self.rank)
        part.rank, part.size, part.job, part._channels = part._comm.rank, part._comm.size, part, []
        part.gpu_direct = self.gpu_direct and part.device.type == "cuda"
        return part

    def divide(self, groups: int) -> World:
        """Collective. Make the world of this rank's group, one of ``groups`` of equal size, of consecutive ranks. A
        group is a separate job: its verdicts stay within it. Raises DistributedError where the ranks do not divide."""
        if groups < 1 or self.size % groups:
            message = f"{self.size} ranks do not make {groups} equal groups: give a number that divides {self.size}"
            raise DistributedError(message, user_error=True)
        part = copy.copy(self)
        part.group, part.num_groups = 0, 1  # of ``split``, which makes them within the job
        part._comm = self._comm.Split(self.rank // (self.size // groups), self.rank)
        part.rank, part.size, part.job, part._channels = part._comm.rank, part._comm.size, part, []
        machine = part._comm.Split_type(MPI.COMM_TYPE_SHARED, key=part.rank)
        part.local_rank, part.local_size = machine.rank, machine.size
        machine.Free()
        return part

    def apart(self) -> World:
        """Return this world as a separate job: its verdicts stay within it."""
        part = copy.copy(self)
        part.job = part
        return part

    @property
    def can_prefetch(self) -> bool:
        """Whether MPI granted calls from several threads."""
        return MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def plans_ahead(self, wanted: int, in_flight: int = 1) -> int:
        """Return the number of plans to make ahead in the background: ``wanted``, if it is not negative. For -1, it is
        a few where that saves time. That is where every rank has a core (or a GPU) in addition to its compute threads,
        sampling servers sample, or a step would wait on the network between machines. The number is at least
        ``in_flight``, if several are to be in flight, and otherwise 0: a thread would only take turns with the compute
        threads.

        Raises DistributedError, on all ranks alike, for several in flight where MPI allows calls from one thread only.
        """
        if not self.can_prefetch:
            if in_flight > 1:
                message = f"sampling.in_flight is {in_flight}, but MPI allows no calls from several threads: leave it 1"
                raise DistributedError(message, user_error=True)
            return 0
        if wanted >= 0:
            return wanted
        pays = self._spare_cores or self.local_size < self.job.size or self.config.sampling_servers > 0
        return max(PLANS_AHEAD * pays, in_flight if in_flight > 1 else 0)

    def channel(self, polite: bool = False, by_machine: bool = False) -> Channel:
        """Collective. Make a channel with a private communicator. polite: for a background thread; by_machine: with
        another channel between the ranks of a machine, where there are several machines, one of which has several
        ranks. Frees the communicators of channels that are no longer used: MPI libraries have only a few thousand."""
        self.free_channels()
        options = polite, self.gpu_direct, self.config.max_message_bytes
        channel = Channel(self._comm, *options)
        if by_machine:
            machine = self.machine()
            largest, has_several = self.reduce_array(np.array([machine.size, machine.size < self.size]), "max")
            if largest > 1 and has_several:
                channel.machine = Channel(machine, *options)
                channel.machine_ranks = np.array(machine.allgather(self.rank))
            machine.Free()
        self._channels += [(weakref.ref(own), own.mpi) for own in (channel, channel.machine) if own is not None]
        return channel

    def machine(self) -> Any:
        """Collective. Make the communicator of the ranks that share this rank's memory, by ``ranks_per_machine``."""
        machine, most = self._comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank), self.config.ranks_per_machine
        if not most:
            return machine
        part = machine.Split(self.rank // most, self.rank)
        machine.Free()
        return part

    def free_channels(self) -> None:
        """Collective. Free the communicators of channels that no rank holds any more; that of one that another rank
        still holds stays, as all ranks must free it."""
        self._channels = [(channel, comm) for channel, comm in self._channels if comm != MPI.COMM_NULL]
        is_unused = np.array([channel() is None for channel, _ in self._channels], np.int8)
        if len(is_unused):
            for index in np.flatnonzero(self.reduce_array(is_unused, "min")):
                self._channels[index][1].Free()

    def close(self) -> None:
        """Collective. Free the communicator, and the communicators of channels that are no longer used. Neither this
        world nor anything made with it may be used afterwards; the world that it was split off from stays."""
        self.free_channels()
        self._comm.Free()

    def own_channel(self) -> Channel:
        """Make a channel of this rank alone, over which nothing is sent."""
        return Channel(MPI.COMM_SELF)

    def _takes_device_memory(self) -> bool:
        """Say whether MPI takes this rank's device memory. The library is asked, never probed: a wrong guess
        crashes."""
        if self.device.type != "cuda" or self.config.gpu_direct == "off":
            return False
        return self.config.gpu_direct == "on" or mpi_is_gpu_aware()

    def gather(self, value: Any) -> list | Any:
        """Collective. Return one picklable object of each rank, on rank 0 (None elsewhere)."""
        return self._comm.gather(value)

    def allgather_array(self, values: np.ndarray) -> np.ndarray:
        """Collective. Stack equally shaped arrays of all ranks, [R, ...]."""
        out = np.empty((self.size, *values.shape), values.dtype)
        self._comm.Allgather(np.ascontiguousarray(values), out)
        return out

    def gather_rows(self, rows: np.ndarray) -> np.ndarray | Any:
        """Collective. Concatenate rows [n, ...] of all ranks, of one dtype and width, in rank order, on rank 0 (None
        elsewhere)."""
        kinds = self._comm.gather((rows.dtype, rows.shape[1:], len(rows)))
        out = counts = None
        if kinds is not None:
            assert all(kind[:2] == kinds[0][:2] for kind in kinds), kinds
            counts = np.array([kind[2] for kind in kinds])
            out = np.empty((counts.sum(), *rows.shape[1:]), rows.dtype)
        width = rows.dtype.itemsize * math.prod(rows.shape[1:])
        if width == 0:
            return out
        row = MPI.BYTE.Create_contiguous(width).Commit()  # counts and places in rows: bytes may pass 2 GiB
        starts = None if counts is None else np.cumsum(counts) - counts
        self._comm.Gatherv([np.ascontiguousarray(rows), len(rows), row], [out, (counts, starts), row])
        row.Free()
        return out

    def total(self, value: int | float) -> int | float:
        """Collective. Sum a number over ranks."""
        return self._comm.allreduce(value)

    def any(self, flag: bool) -> bool:
        """Collective. Say whether the flag is set on any rank of the job."""
        return bool(self.job.reduce_array(np.array([flag], np.int8), "max")[0])

    def _agree_device(self) -> torch.device:
        """Collective. Choose this rank's device. Raises DistributedError on all ranks when any rank has none."""
        device, error = torch.device("cpu"), None
        try:
            device = device if self._samples else self._bind_device()
        except ValueError as caught:
            error = caught
        self.agree(error, "choose the device")
        return device

    @property
    def _samples(self) -> bool:
        """Whether this rank is a sampling server: what it draws is sent to trainers, so it needs no GPU."""
        return self.rank >= self.size - self.config.sampling_servers

    def check_same(self) -> None:
        """Collective. Raise DistributedError, on all ranks, where one has another version of hpcgnn, another build of
        its kernels, or another kind of device, as on a machine whose GPU is broken."""
        versions = {"version of hpcgnn": __version__, "source of the compiled kernels": hpcgnn_native.SOURCE}
        same_everywhere(self, versions, "install one build on all machines (hpcgnn info says what is there)")
        first, own = self.broadcast(self.device.type), self.device.type
        remedy = "see what nvidia-smi says there, or train without GPUs by comm.device cpu"
        same_everywhere(self, {"kind of device": first if self._samples else own}, remedy)

    def _count_unused_gpus(self, machine: MPI.Comm) -> int:
        """Collective. Count, where the ranks of a machine see all its GPUs, those that none of them has."""
        seen = torch.cuda.device_count() if self.device.type == "cuda" else 0
        devices = machine.allgather((self.device.index, seen))
        used = {index for index, count in devices if count}
        return self._comm.allreduce(max(count for _, count in devices) - len(used), MPI.MAX)

    def _count_sharers(self, machine: MPI.Comm) -> int:
        """Collective. Count the ranks that share a GPU, or a slice of one, at most."""
        gpus = machine.allgather(gpu_of(self.device))
        return self._comm.allreduce(max(gpus.count(gpu) if gpu else 1 for gpu in gpus), MPI.MAX)

    def describe_sharing(self) -> list[str]:
        """Return the warnings of the log where GPUs are not used, or not by one rank each."""
        warnings = []
        if self.unused_gpus:
            warnings.append(f"warning: {self.unused_gpus} GPUs of a machine are not used: start a rank for each GPU")
        if self.room.ranks > 1:
            remedy = "start one rank for each GPU, and let each rank see all GPUs of its machine"
            if is_slice(self.device):
                remedy = "name another slice for each rank by CUDA_VISIBLE_DEVICES"
            warnings.append(f"warning: {self.room.ranks} ranks share a GPU: {remedy}")
        return warnings

    def explain(self, error: BaseException) -> str:
        """Describe an error that a GPU's memory is full, with this rank; empty: it is another error."""
        explained = self.room.explain(error)
        return explained and f"rank {self.job.rank} of {self.job.size} on {self.host}: {explained}"

    def _bind_device(self) -> torch.device:
        device_kind = self.config.device
        count = torch.cuda.device_count() if device_kind != "cpu" and torch.cuda.is_available() else 0
        if device_kind == "cuda" and count == 0:
            raise ValueError(
                f"comm.device is cuda, but torch sees no GPU on {self.host}; use --comm.device=cpu or install a "
                "build of torch for its GPUs"
            )
        if count == 0:
            return torch.device("cpu")
        if torch.__version__ < CUDA_TORCH:  # compared as versions, not as text
            raise ValueError(
                f"torch {torch.__version__} is too old for GPUs: install torch {CUDA_TORCH} or later, or use "
                "--comm.device=cpu"
            )
        index = local_rank_for_gpu()  # that MPI started with, if it is not None
        if index is None:
            near = [cores_near(gpu) for gpu in range(count)]
            index = choose_gpus(self._cores_by_rank, near)[self.local_rank]
        device = torch.device("cuda", index % count)
        torch.cuda.set_device(device)
        return device


def _cores(machine: MPI.Comm) -> tuple[list[set[int]], int]:
    """Collective. Return the cores that each rank of the machine may use, and the number of cores of this rank. That
    is the number of cores that it is bound to, if the launcher bound the ranks apart, else its share of the cores that
    all ranks of the machine may use; in a control group with a quota, it is at most its share of the quota."""
    own_cores, (quota, group) = os.sched_getaffinity(0), granted_cores()
    others = machine.allgather((sorted(own_cores), group))
    cores_by_rank = [set(cores) for cores, _ in others]
    union = set().union(*cores_by_rank)
    is_bound_apart = sum(map(len, cores_by_rank)) == len(union)
    cores = len(own_cores) if is_bound_apart and machine.size > 1 else len(union) // machine.size
    return cores_by_rank, max(1, int(min(cores, quota / [name for _, name in others].count(group))))


def wanted_threads() -> int:
    """Read the number of threads that the site or the user sets for a process: OMP_NUM_THREADS, or Slurm's cores of a
    task; 0: neither is set."""
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        text = os.environ.get(name, "").split(",")[0]  # OpenMP's may have a number for each level of nesting
        if text.isdigit() and int(text):
            return int(text)
    return 0


def gpu_platform() -> str:
    """Name the platform of the GPUs that torch was built for: CUDA, or ROCm for AMD's."""
    return "ROCm" if torch.version.hip else "CUDA"


def mpi_is_gpu_aware() -> bool:
    """Ask the MPI library (Open MPI, Cray MPICH or MVAPICH) whether it takes device memory."""
    library = MPI.Get_library_version().upper()
    for family, variable in CUDA_AWARE.items():
        if family in library and os.environ.get(variable) == "1":  # a site sets it whatever library was loaded
            return True
    query = gpu_query()
    return query is not None and bool(query())


def gpu_query() -> Callable[[], int] | None:
    """Find the MPI library's function that says whether it takes memory of this kind of GPUs, None where it has none.
    mpi4py loads the library for itself alone, so it is looked for through mpi4py's own module."""
    for name in (MPI.__file__, None):
        try:
            return getattr(ctypes.CDLL(name), f"MPIX_Query_{gpu_platform().lower()}_support")
        except (OSError, AttributeError):
            continue
    return None


def mpi_version() -> str:
    """Name mpi4py and the MPI library with their versions, in one line."""
    return f"mpi4py {mpi4py.__version__}, {mpi_library()}"
