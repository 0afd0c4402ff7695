"""The sections ``eval`` and ``baseline`` of run files on temporal graphs, and the short forms of ``--eval``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hpcgnn.choices import check_choices
from hpcgnn.graph.files import file_hash
from hpcgnn.graph.splits import SPLITS

NegativeKind = Literal["random", "historical", "inductive", "all", "file"]
NEGATIVE_KINDS: tuple[NegativeKind, ...] = get_args(NegativeKind)
MET_KINDS = ("historical", "inductive")  # pairs that met before


@dataclass
class EvalConfig:
    """Validation and test; --eval tgb is short for --eval.protocol=tgb, --eval KIND for --eval.negatives=KIND.

    Attributes:
        protocol: "tgb": batches of 200, negatives "all" (or negatives_file), no neighbours from within the batch, mean
            reciprocal rank (Huang et al., Temporal graph benchmark, 2023); empty: as below.
        negatives: "random", "historical", "inductive", "all" (every destination that the source does not meet at the
            same time) or "file".
        negatives_file: fixed negatives for "file" and "tgb"; {split} in the path stands for val or test.
        negatives_sha256: of the content of negatives_file, written where a run begins: another content is another run.
        batch_size: events of a batch; 0: as in training.
        chunk: negatives an event that are scored at once; bounds memory when there are many.
    """

    protocol: Literal["", "tgb"] = ""
    negatives: NegativeKind = "random"
    negatives_file: str = ""
    negatives_sha256: str = ""
    batch_size: int = 0
    chunk: int = 100

    def __post_init__(self):
        check_choices("eval", self)
        if self.batch_size < 0 or self.chunk < 1:
            raise ValueError("eval.batch_size must be at least 0 and eval.chunk at least 1")
        if self.negatives == "file" and not self.negatives_file:
            raise ValueError("eval.negatives file needs eval.negatives_file")
        if self.negatives_file and self.negatives != "file" and self.protocol != "tgb":
            raise ValueError("eval.negatives_file is read by eval.negatives file and by eval.protocol tgb only")
        if self.protocol == "tgb":
            self.negatives = "file" if self.negatives_file else "all"
            self.batch_size = self.batch_size or 200

    @property
    def ranking(self) -> bool:
        """Whether events are ranked among many negatives."""
        return self.negatives in ("all", "file")

    @property
    def in_batch_neighbors(self) -> bool:
        """Whether the protocol shows earlier events of a batch as neighbours."""
        return self.protocol != "tgb"

    def read_sha256(self) -> str:
        """Compute the sha256 of negatives_file, of both where validation and test have files; empty without one.

        Raises ValueError for a file that is missing.
        """
        paths = dict.fromkeys(file_of(self.negatives_file, split) for split in SPLITS[1:] if self.negatives_file)
        for path in paths:
            if not os.path.isfile(path):
                raise ValueError(f"eval.negatives_file: {path}: no such file")
        return ",".join(file_hash(path) for path in paths)

    def check_file(self) -> None:
        """Raise ValueError where negatives_file has another content than when the run began."""
        if self.negatives_sha256 and self.read_sha256() != self.negatives_sha256:
            option = f"--eval {self.protocol or self.negatives} --negatives_file {self.negatives_file}"
            raise ValueError(
                f"eval.negatives_file: {self.negatives_file} is not what it was when the run began (another sha256): "
                f"put the old file back, or evaluate by the new one with {option}"
            )

    def under(self, name: Any, negatives_file: str = "") -> EvalConfig:
        """Return the section with another protocol ("tgb") or kind of negatives; the batch size stays unless one of the
        two protocols sets it.

        Raises ValueError.
        """
        if name == "tgb":
            return EvalConfig("tgb", negatives_file=negatives_file, chunk=self.chunk)
        batch_size = 0 if self.protocol == "tgb" else self.batch_size
        return EvalConfig("", name, negatives_file, batch_size=batch_size, chunk=self.chunk)


def file_of(path: str, split: str) -> str:
    """Return the path of the fixed negatives of a split."""
    return path.replace("{split}", split)


def expand_eval(argv: list[str]) -> list[str]:
    """Write out the short forms ``--eval tgb`` and ``--eval KIND`` of a command line."""
    expanded, place = [], 0
    while place < len(argv):
        name, _, value = argv[place].partition("=")
        follows = name == "--eval" and not value and place + 1 < len(argv)
        value = argv[place + 1] if follows else value
        if name == "--eval" and value in ("tgb", *NEGATIVE_KINDS):
            expanded.append(f"--eval.{'protocol' if value == 'tgb' else 'negatives'}={value}")
            place += 1 + follows
        else:
            expanded.append(argv[place])
            place += 1
    return expanded


BaselineKind = Literal["", "unlimited", "time_window", "fixed_window"]
BASELINES: tuple[BaselineKind, ...] = get_args(BaselineKind)[1:]


@dataclass
class BaselineConfig:
    """A heuristic in place of the model: nothing is trained, validation and test are scored.

    Attributes:
        kind: EdgeBank with memory "unlimited", of a "time_window" or of a "fixed_window"; empty: the model.
        share: share of the events ("time_window") or of the time of training ("fixed_window") that a window covers; 0:
            the test's share of all events.
    """

    kind: BaselineKind = ""
    share: float = 0.0

    def __post_init__(self):
        check_choices("baseline", self)
        if not 0 <= self.share <= 1:
            raise ValueError(f"baseline.share must be in [0, 1], got {self.share}")
