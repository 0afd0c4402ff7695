"""``python -m hpcgnn.info``: what this installation and this allocation can do, and a self-check. Works under mpirun
too."""

from __future__ import annotations

import platform
import sys

import h5py
import jsonargparse
import numpy as np
import torch

import hpcgnn
from hpcgnn import config as configuration
from hpcgnn import native
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import World, mpi_is_cuda_aware, mpi_version
from hpcgnn.run import launch
from hpcgnn.store.book import BlockOwnership


def main(world: World, argv: list[str]) -> int:
    """Collective. Prints on rank 0; exit code 1 when the self-check fails."""
    parser = jsonargparse.ArgumentParser(prog="python -m hpcgnn.info", description=__doc__, exit_on_error=False)
    launch.on_first_rank(world, "arguments", lambda: configuration.parse_arguments(parser, argv))
    world = World()
    lines = _software() + _hardware(world)
    problems = self_check(world)
    if world.rank == 0:
        print("\n".join(lines))
        print(
            "self-check: "
            + ("kernels and exchange agree with their references" if not problems else "; ".join(problems))
        )
    world.barrier()
    return launch.EXIT_FAILURE if problems else launch.EXIT_DONE


def _software() -> list[str]:
    features = native.features()
    built = ", ".join(
        f"{name} {'yes' if value is True else 'no' if value is False else value}" for name, value in features.items()
    )
    return [
        f"hpcgnn {hpcgnn.__version__}, python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}, "
        f"h5py {h5py.__version__}",
        f"MPI: {mpi_version()}",
        f"CUDA-aware MPI: {'yes' if mpi_is_cuda_aware() else 'no (device rows are staged through pinned memory)'}",
        f"kernels: {built}",
    ]


def _hardware(world: World) -> list[str]:
    threads_ok = "yes" if world.can_prefetch else "no (plans are made in place)"
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    placed = world.gather(f"  rank {world.rank}: {world.host}, local rank {world.local_rank} of {world.local_size}, "
                          f"{world.threads} threads, {world.device}")  # fmt: skip
    return [
        f"MPI calls from several threads: {threads_ok}",
        f"GPUs of rank 0: {', '.join(gpus) or 'none'}",
        *(placed or []),
    ]


def self_check(world: World) -> list[str]:
    """Collective. Problems found on any rank: a known random number, an attention kernel against plain torch, a
    route."""
    problems = []
    word = native.random_integers(native.Random(0, 0), np.zeros(1, np.int64), 1, (1 << 32) - 1)[0, 0]
    if word != (0x6627E8D5 * ((1 << 32) - 1)) >> 32:
        problems.append("Philox does not give its known answer")
    if not _attention_agrees():
        problems.append("temporal attention differs from plain torch")
    ownership = BlockOwnership.even(10 * world.size, world.size)
    ids = np.random.default_rng(world.rank).permutation(10 * world.size)
    rows = torch.arange(10) + 10 * world.rank
    (pulled,) = Route.plan(ownership, ids, world.channel()).pull(rows)
    if pulled.tolist() != ids.tolist():
        problems.append("rows pulled over MPI are not the owners'")
    return [f"rank {rank}: {text}" for rank, found in enumerate(world.allgather(problems)) for text in found]


def _attention_agrees() -> bool:
    generator = torch.Generator().manual_seed(0)
    slot = torch.randint(0, 5, (7, 3), generator=generator, dtype=torch.int32)
    transpose = map(torch.from_numpy, native.transpose_index(slot.numpy().ravel(), 5))
    plan = native.AttentionPlan(slot, torch.full((7,), 3, dtype=torch.int32), slot.long(), slot[:, :1], *transpose)
    query, node = torch.randn(7, 2, 8, generator=generator), torch.randn(5, 4, generator=generator)
    given = (query, node, torch.zeros(4), torch.empty(0, 0), torch.ones(4, dtype=torch.float64), plan)
    return torch.allclose(
        native.TemporalAttention.apply(*given), native.temporal_attention_reference(*given), atol=1e-5
    )


if __name__ == "__main__":
    sys.exit(launch.run(main))
