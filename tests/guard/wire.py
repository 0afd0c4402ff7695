"""Runs a module on this rank and writes down what it sends by alltoall and alltoallv, as digests:

    mpirun -np 2 python tests/guard/wire.py FOLDER hpcgnn.train --recipe tgn

Knows mpi4py and nothing of hpcgnn, so that it holds for every version of it. ``FOLDER/wire-<rank>.json`` has the number
of payload bytes for other ranks, the number of messages, and one digest of all that was sent, in whatever order.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
import threading
from pathlib import Path

from mpi4py import MPI

MODULUS = 1 << 64


class Wire:
    """What this rank has sent so far. Sums of digests do not depend on the order of the messages."""

    def __init__(self) -> None:
        self.bytes = self.messages = self.digest = 0
        self._lock = threading.Lock()

    def add(self, kind: str, content: bytes, payload: int) -> None:
        word = int.from_bytes(hashlib.blake2b(content, digest_size=8, person=kind.encode()).digest(), "little")
        with self._lock:
            self.messages += 1
            self.bytes += payload
            self.digest = (self.digest + word) % MODULUS

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"bytes": self.bytes, "messages": self.messages, "digest": f"{self.digest:016x}"}))


WIRE = Wire()


def sent(comm: MPI.Comm, buffer: object) -> tuple[bytes, int]:
    """The bytes that one alltoallv sends, and how many of them go to other ranks."""
    data, layout, *datatype = buffer
    counts, starts = layout if isinstance(layout, tuple) else (layout, None)
    size = datatype[0].Get_size() if datatype else memoryview(data).itemsize
    raw = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
    content, begin = [], 0
    for rank, count in enumerate(counts):
        begin = starts[rank] * size if starts is not None else begin
        if rank != comm.rank:
            content.append(raw[begin : begin + count * size])
        begin += count * size
    return b"".join(content), sum(map(len, content))


class Recorded(MPI.Intracomm):
    """A communicator that notes what it sends; those made from it do too."""

    def Alltoall(self, sendbuf, recvbuf):
        WIRE.add("counts", bytes(memoryview(sendbuf).cast("B")), 0)
        return super().Alltoall(sendbuf, recvbuf)

    def Ialltoall(self, sendbuf, recvbuf):
        WIRE.add("counts", bytes(memoryview(sendbuf).cast("B")), 0)
        return super().Ialltoall(sendbuf, recvbuf)

    def Alltoallv(self, sendbuf, recvbuf):
        WIRE.add("rows", *sent(self, sendbuf))
        return super().Alltoallv(sendbuf, recvbuf)

    def Ialltoallv(self, sendbuf, recvbuf):
        WIRE.add("rows", *sent(self, sendbuf))
        return super().Ialltoallv(sendbuf, recvbuf)


def main() -> None:
    folder, module, *arguments = sys.argv[1:]
    world = MPI.COMM_WORLD
    MPI.COMM_WORLD = Recorded(world)
    sys.argv = [module, *arguments]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code
    WIRE.write(Path(folder) / f"wire-{world.rank}.json")
    sys.exit(code)


if __name__ == "__main__":
    main()
