"""The run file's ``data`` section of snapshot graphs, and the splits of their snapshots by time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SnapshotDataConfig:
    """The graph and its splits.

    Attributes:
        path: folder of a partition set; empty: a built-in synthetic graph.
        val_fraction: share of the snapshots that predictions are made from, for validation.
        test_fraction: likewise for the test, at the end.
        val_snapshots: so many instead; -1: by fraction.
        test_snapshots: likewise.
        check_hash: compare every part with its hash in the book before use.
        stage_to: a folder on a disk of the node that a rank copies its parts to first; empty: none.
        synthetic_nodes: size of the built-in graph.
        synthetic_snapshots: its snapshots.
    """

    path: str = ""
    val_fraction: float = 0.1
    test_fraction: float = 0.2
    val_snapshots: int = -1
    test_snapshots: int = -1
    check_hash: bool = True
    stage_to: str = ""
    synthetic_nodes: int = 400
    synthetic_snapshots: int = 40

    def __post_init__(self):
        if min(self.val_fraction, self.test_fraction) < 0 or self.val_fraction + self.test_fraction >= 1:
            raise ValueError("data.val_fraction and data.test_fraction must be >= 0 and leave something to train on")
        if min(self.val_snapshots, self.test_snapshots) < -1:
            raise ValueError("data.val_snapshots and data.test_snapshots must be at least 0, or -1: by fraction")
        if self.synthetic_nodes < 20 or not 10 <= self.synthetic_snapshots < 1 << 16:
            raise ValueError("data.synthetic_nodes must be at least 20, data.synthetic_snapshots 10 to 65535")

    def split(self, first: int, last: int) -> dict[str, range]:
        """The snapshots ``first`` .. ``last`` that predictions are made from, by split, in order of time. Raises
        ValueError when none is left to train on."""
        total = last - first + 1
        val, test = (
            round(fraction * total) if count < 0 else count
            for fraction, count in ((self.val_fraction, self.val_snapshots), (self.test_fraction, self.test_snapshots))
        )
        train = total - val - test
        if train < 1:
            raise ValueError(
                f"{max(0, total)} snapshots can be predicted from, {val} for validation and {test} for the test: none "
                "is left to train on; lower inputs.lags, sampling.history or the shares of data"
            )
        begin = first + train
        return {
            "train": range(first, begin), "val": range(begin, begin + val), "test": range(begin + val, last + 1)
        }  # fmt: skip
