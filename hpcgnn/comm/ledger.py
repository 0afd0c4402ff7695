"""Frees, when a call ends, the communicators and the shared memory that it left: a process that catches an error lives
on, and MPI libraries have only a few thousand communicators."""

from __future__ import annotations

from typing import Any

from hpcgnn.comm.mpi import MPI


class Ledger(MPI.Intracomm):
    """A communicator of all ranks that remembers the communicators made of it, of these in turn, and the windows of
    shared memory on them."""

    _made: list[Any]

    def __new__(cls, comm: MPI.Comm | None = None, made: list[Any] | None = None):
        """comm: the communicator that it stands for; None: all ranks. made: what is remembered so far."""
        ledger = super().__new__(cls, comm or MPI.COMM_WORLD)
        ledger._made = [] if made is None else made
        return ledger

    def Dup(self, info: MPI.Info | None = None) -> Any:
        """Collective. As of every communicator."""
        return self._remember(super().Dup(info or MPI.INFO_NULL))

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Collective. As of every communicator."""
        return self._remember(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info | None = None) -> Any:
        """Collective. As of every communicator."""
        return self._remember(super().Split_type(split_type, key, info or MPI.INFO_NULL))

    def remember_window(self, window: MPI.Win) -> None:
        """Remember a window of shared memory that all ranks of this communicator have locked."""
        self._made.append(window)

    def free(self, windows: bool = True) -> None:
        """Collective. Free what was made and is not freed yet, newest first. windows: free shared memory, too, which
        nothing may refer to any more, no thread either."""
        if self._made:
            self.Barrier()  # messages of a watchdog on another rank have arrived
        while self._made:
            made = self._made.pop()
            if isinstance(made, MPI.Win):
                if windows and made != MPI.WIN_NULL:
                    made.Unlock_all()
                    made.Free()
            elif made != MPI.COMM_NULL:
                made.Free()

    def _remember(self, made: MPI.Comm) -> MPI.Comm:
        if made == MPI.COMM_NULL:  # of a rank that was left out
            return made
        self._made[:] = [old for old in self._made if old not in (MPI.COMM_NULL, MPI.WIN_NULL)]
        self._made.append(Ledger(made, self._made))
        return self._made[-1]
