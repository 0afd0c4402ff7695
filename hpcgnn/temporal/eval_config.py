"""The sections ``eval`` and ``baseline`` of run files on temporal graphs, and the short forms of ``--eval``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from hpcgnn.choices import check_choices, names_with
from hpcgnn.graph.negative_file import sha256_of
from hpcgnn.temporal.baselines import BASELINES
from hpcgnn.temporal.eval_negatives import EVAL_NEGATIVES


@dataclass
class TemporalEvalConfig:
    """Validation and test; --eval tgb is short for --eval.protocol=tgb, --eval KIND for --eval.negative_kind=KIND.

    Attributes:
        protocol: Evaluation protocol; "tgb": batches of 200, negatives "all" (or negatives_file), no neighbors from the
            same batch, mean reciprocal rank (Huang et al., Temporal graph benchmark, 2023). Empty: by the keys below.
        negative_kind: Negatives that events are compared with.
        negatives_file: File of fixed negatives, for negative_kind file and protocol tgb; {split} in the path is
            replaced by val or test.
        negatives_sha256: SHA-256 of negatives_file, recorded when a run starts; a file with another content is refused
            afterwards.
        batch_size: Number of events in a batch of validation and test, the most with sampling.batch_by span; 0: the
            same as in training.
        negatives_per_pass: Number of negatives of an event that are scored at once; bounds memory when there are many.
        train_split: Also score the training split, as validation is scored, but from empty node memory on. Its metrics
            are reported as train_ap and so on.
        batch_means: Also report means over batches, such as ap_per_batch, as DyGLib measures (Yu et al., Towards better
            dynamic graph learning, 2023). They depend on eval.batch_size. Links only.
    """

    protocol: Literal["", "tgb"] = ""
    negative_kind: Annotated[str, EVAL_NEGATIVES] = "random"
    negatives_file: str = ""
    negatives_sha256: str = ""
    batch_size: int = 0
    negatives_per_pass: int = 100
    train_split: bool = False
    batch_means: bool = False

    def __post_init__(self):
        check_choices("eval", self)
        if self.batch_size < 0 or self.negatives_per_pass < 1:
            raise ValueError("eval.batch_size must be at least 0 and eval.negatives_per_pass at least 1")
        reads_file = EVAL_NEGATIVES[self.negative_kind].reads_file
        if reads_file and not self.negatives_file:
            raise ValueError(f"eval.negative_kind {self.negative_kind} needs eval.negatives_file")
        if self.negatives_file and not reads_file and self.protocol != "tgb":
            readers = names_with(EVAL_NEGATIVES, "reads_file")
            raise ValueError(
                f"eval.negatives_file is read by eval.negative_kind {readers} and by eval.protocol tgb only"
            )
        if self.train_split and self.negatives_file:
            raise ValueError("eval.train_split: files of negatives list no training events; use other negatives")
        if self.protocol == "tgb":
            self.negative_kind = "file" if self.negatives_file else "all"
            self.batch_size = self.batch_size or 200

    @property
    def ranking(self) -> bool:
        """Whether events are ranked among many negatives."""
        return EVAL_NEGATIVES[self.negative_kind].ranks

    @property
    def in_batch_neighbors(self) -> bool:
        """Whether the protocol shows earlier events of a batch as neighbors."""
        return self.protocol != "tgb"

    def read_sha256(self) -> str:
        """Compute the sha256 of negatives_file, of both where validation and test have files; empty without one.

        Raises ValueError for a file that is missing.
        """
        return sha256_of(self.negatives_file)

    def check_file(self) -> None:
        """Raise ValueError where negatives_file has another content than when the run began."""
        if self.negatives_sha256 and self.read_sha256() != self.negatives_sha256:
            option = f"--eval {self.protocol or self.negative_kind} --eval.negatives_file {self.negatives_file}"
            raise ValueError(
                f"eval.negatives_file: {self.negatives_file} is not what it was when the run began (another sha256): "
                f"put the old file back, or evaluate by the new one with {option}"
            )

    def under(self, name: Any, negatives_file: str = "") -> TemporalEvalConfig:
        """Return the section with another protocol ("tgb") or kind of negatives; the batch size stays unless one of the
        two protocols sets it.

        Raises ValueError.
        """
        kept: dict[str, Any] = {
            "negatives_file": negatives_file, "negatives_per_pass": self.negatives_per_pass,
            "train_split": self.train_split and not negatives_file, "batch_means": self.batch_means,
        }  # fmt: skip
        if name == "tgb":
            return TemporalEvalConfig("tgb", **kept)
        return TemporalEvalConfig("", name, batch_size=0 if self.protocol == "tgb" else self.batch_size, **kept)


def expand_eval(argv: list[str]) -> list[str]:
    """Write out the short forms ``--eval tgb`` and ``--eval KIND`` of a command line."""
    expanded, place = [], 0
    while place < len(argv):
        name, _, value = argv[place].partition("=")
        follows = name == "--eval" and not value and place + 1 < len(argv)
        value = argv[place + 1] if follows else value
        if name == "--eval" and value in ("tgb", *EVAL_NEGATIVES):
            expanded.append(f"--eval.{'protocol' if value == 'tgb' else 'negative_kind'}={value}")
            place += 1 + follows
        else:
            expanded.append(argv[place])
            place += 1
    return expanded


@dataclass
class BaselineConfig:
    """A baseline in the place of the model: nothing is trained, validation and test are scored.

    Attributes:
        kind: Rule to evaluate in place of the model.
        window_ratio: Share of the events ("time_window") or of the training time ("fixed_window") that the window of
            the baseline covers; 0: the test's share of all events.
        decay_time: Time in which an event loses the factor e = 2.718 of its weight in baseline pair_decay, in the unit
            of the graph's times. 0: the mean time between two successive training events of a pair.
        window: Number of labels of a node that baseline moving_average averages.
        by_relation: Count only events of the relation (edge type) of a scored pair. Baselines of links only.
        batch_decay: Factor by which baseline poptrack multiplies all earlier events after a batch. Smaller values
            forget faster; 1 forgets nothing.
    """

    kind: Annotated[str, BASELINES] = ""
    window_ratio: float = 0.0
    decay_time: float = 0.0
    batch_decay: float = 0.95
    window: int = 7
    by_relation: bool = False

    def __post_init__(self):
        check_choices("baseline", self)
        if not 0 <= self.window_ratio <= 1:
            raise ValueError(f"baseline.window_ratio must be in [0, 1], got {self.window_ratio}")
        if not 0 <= self.decay_time < math.inf:
            raise ValueError(f"baseline.decay_time must be at least 0, got {self.decay_time}")
        if not 0 < self.batch_decay <= 1:
            raise ValueError(f"baseline.batch_decay must be in (0, 1], got {self.batch_decay}")
        if self.window < 1:
            raise ValueError(f"baseline.window must be at least 1, got {self.window}")
        if self.by_relation and not self._is_of_links(self.kind):
            kind = self.kind or "empty"
            raise ValueError(f"baseline.by_relation: baseline.kind {kind} counts no events of pairs; leave it out")
        for name, default in (("window_ratio", 0.0), ("decay_time", 0.0), ("batch_decay", 0.95), ("window", 7)):
            if getattr(self, name) != default and name not in BASELINES[self.kind].options:
                kind = self.kind or "empty"
                raise ValueError(f"baseline.{name}: baseline.kind {kind} does not read it; leave it out")

    def of_kind(self, kind: str) -> BaselineConfig:
        """Return the section for another baseline, with the keys that it reads."""
        options = {name: getattr(self, name) for name in BASELINES[kind].options}
        return BaselineConfig(kind, **options, by_relation=self.by_relation and self._is_of_links(kind))

    @staticmethod
    def _is_of_links(kind: str) -> bool:
        return bool(kind) and "link" in BASELINES[kind].tasks
