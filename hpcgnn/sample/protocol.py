"""How validation and test are scored."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.sample.eval_negatives import KINDS

PROTOCOLS = ("", "tgb")
ONE_VS_MANY = ("all", "file")


@dataclass
class EvalConfig:
    """Validation and test.

    Attributes:
        protocol: "tgb": batches of 200, every other destination (or negatives_file) as negatives, no neighbours from
            within the batch, mean reciprocal rank (Huang et al., Temporal graph benchmark, 2023); empty: as below.
        negatives: "random", "historical", "inductive", "all" (every other destination) or "file".
        negatives_file: fixed negatives for "file" and "tgb".
        batch_size: events of a batch; 0: as in training.
        chunk: negatives an event that are scored at once; bounds memory when there are many.
    """

    protocol: str = ""
    negatives: str = "random"
    negatives_file: str = ""
    batch_size: int = 0
    chunk: int = 100

    def __post_init__(self):
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"eval.protocol must be tgb or empty, got {self.protocol!r}")
        if self.negatives not in KINDS:
            raise ValueError(f"eval.negatives must be one of {', '.join(KINDS)}, got {self.negatives!r}")
        if self.batch_size < 0 or self.chunk < 1:
            raise ValueError("eval.batch_size must be at least 0 and eval.chunk at least 1")
        if self.negatives == "file" and not self.negatives_file:
            raise ValueError("eval.negatives file needs eval.negatives_file")
        if self.protocol == "tgb":
            self.negatives = "file" if self.negatives_file else "all"
            self.batch_size = self.batch_size or 200

    @property
    def ranking(self) -> bool:
        """Whether events are ranked among many negatives."""
        return self.negatives in ONE_VS_MANY

    @property
    def in_batch_neighbors(self) -> bool:
        """Whether the protocol lets earlier events of a batch be seen."""
        return self.protocol != "tgb"
