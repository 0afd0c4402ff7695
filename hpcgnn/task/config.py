"""The section ``task`` of run files: keys for all kinds of graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from hpcgnn.choices import check_choices
from hpcgnn.nn.decoders import DECODERS
from hpcgnn.task.losses import CLASSES, CUSTOM, LINKS, LOSSES, NUMBERS, losses_of
from hpcgnn.task.negatives import NEGATIVES

LINK = "link"
# Keys that some losses and decoders read.
OPTIONS = (
    "margin", "adversarial", "positive_weight", "negative_weight", "label_smoothing", "answer_power", "class_weights",
    "loss_path",
)  # fmt: skip
TEMPERATURE = "temperature"
DECODER_OPTIONS = (TEMPERATURE, "distance", "offset")


@dataclass
class TaskConfig:
    """The task.

    Attributes:
        classes: Number of classes, at least 2; 0: from the labels. Classification only.
        class_weights: Factors of the loss, one for each class; empty: all 1. Classification only.
        decoder: Decoder that scores a pair of embeddings; link prediction only.
        temperature: Divisor of the scores of decoder cosine.
        distance: Length of a difference of rows: "l1", the sum of absolute values, or "l2", the Euclidean length.
            Decoder transe only.
        offset: Number that distances are subtracted from, so that scores may be above 0, which loss binary needs (the
            gamma of RotatE). Decoders transe and rotate only.
        loss: Loss that training minimizes; empty: the first one in the list that fits task.kind.
        loss_path: Custom function that computes the loss, such as package.module.function. It returns the sum over
            the rows that it gets. Loss custom only, which this key implies.
        margin: Margin between the score of a pair and the scores of its negatives. With loss ccl, the cosine above
            which a negative counts, below 1. Losses margin and ccl only.
        adversarial: Self-adversarial weighting (Sun et al., RotatE, 2019): the softmax of this times their scores
            weighs the negatives of a pair; 0: equal weights. Losses binary and margin only.
        positive_weight: Weight of a pair's loss; the mean over its negatives has weight 1. Loss binary only.
        label_smoothing: Share of the target that all nodes have in equal parts. Losses one_vs_all, k_vs_all and
            k_vs_all_binary only.
        answer_power: Weight of a query in the loss: the number of its known answers to this power. 0: all queries weigh
            the same; 1: all facts do, as with loss one_vs_all. Loss k_vs_all only.
        negative_weight: Weight of the mean over the negatives of a pair; the pair has weight 1. Loss ccl only.
        negative_kind: Distribution of training negatives. Random negatives of validation and test are always uniform.
            Link prediction only.
    """

    has_paths: ClassVar[bool] = False  # a model may have states of queries
    has_events: ClassVar[bool] = False  # neighborhoods have times, at which a decoder can compare them
    scores_all: ClassVar[bool] = False  # queries can be scored with all nodes in a training step

    kind: str = LINK
    classes: int = 0
    class_weights: list[float] = field(default_factory=list)
    decoder: Annotated[str, DECODERS] = "dot"
    temperature: float = 1.0
    distance: Literal["l1", "l2"] = "l1"
    offset: float = 0.0
    loss: Annotated[str, LOSSES] = ""
    loss_path: str = ""
    margin: float = 1.0
    adversarial: float = 0.0
    positive_weight: float = 1.0
    label_smoothing: float = 0.0
    answer_power: float = 0.0
    negative_weight: float = 1.0
    negative_kind: Annotated[str, NEGATIVES] = "uniform"

    def __post_init__(self):
        self.loss = self.loss or (CUSTOM if self.loss_path else losses_of(self.learns)[0])
        check_choices("task", self)
        for name in (TEMPERATURE, "margin", "positive_weight", "negative_weight"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"task.{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.adversarial < math.inf:
            raise ValueError(f"task.adversarial must be at least 0, got {self.adversarial}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"task.label_smoothing must be in [0, 1), got {self.label_smoothing}")
        if not 0 <= self.answer_power <= 1:
            raise ValueError(f"task.answer_power must be in [0, 1], got {self.answer_power}")
        if not math.isfinite(self.offset):
            raise ValueError(f"task.offset must be a finite number, got {self.offset}")
        self._check_classes()
        self._check_loss()
        self._check_decoder()

    @property
    def learns(self) -> str:
        """Kind of values in the loss: LINKS, CLASSES or NUMBERS."""
        if self.kind == LINK:
            return LINKS
        return NUMBERS if self.kind.endswith("regression") else CLASSES

    @property
    def further(self) -> Mapping[str, Any]:
        """The tasks that are learned together with this one, by name."""
        return {}

    @property
    def is_typed(self) -> bool:
        """Whether the decoder has weights by edge type."""
        return DECODERS[self.decoder].typed

    def _check_classes(self) -> None:
        weights = self.class_weights
        if self.learns != CLASSES and (weights or self.classes):
            raise ValueError(f"task.kind {self.kind} has no classes: leave task.classes and task.class_weights")
        if self.classes < 0 or self.classes == 1:
            raise ValueError(f"task.classes must be 0 (from the data) or at least 2, got {self.classes}")
        if not all(0 <= weight < math.inf for weight in weights):
            raise ValueError(f"task.class_weights must not be negative, got {weights}")
        if weights and self.classes and len(weights) != self.classes:
            raise ValueError(f"task.class_weights has {len(weights)} numbers for task.classes = {self.classes}")

    def _check_loss(self) -> None:
        """Raise ValueError for a loss of something else than what is learned, and for keys that nothing reads."""
        fitting = losses_of(self.learns, self.scores_all)
        if self.loss not in fitting:
            raise ValueError(f"task.loss of kind {self.kind} must be {' or '.join(fitting)}, got {self.loss}")
        if self.loss == CUSTOM and not self.loss_path:
            raise ValueError(f"task.loss {CUSTOM} needs task.loss_path, the function that computes it")
        for name in OPTIONS:
            if name not in LOSSES[self.loss].options and self._is_set(name):
                readers = [loss for loss in fitting if name in LOSSES[loss].options]
                remedy = f"use task.loss {' or '.join(readers)}, or leave it out" if readers else "leave it out"
                raise ValueError(f"task.{name}: task.loss {self.loss} does not read it; {remedy}")
        if LOSSES[self.loss].of_cosines:
            self._check_cosines()

    def _check_cosines(self) -> None:
        """Raise ValueError for scores that are no cosines, and for a margin that none exceeds."""
        if TEMPERATURE not in DECODERS[self.decoder].options or self.temperature != 1:
            of_cosines = " or ".join(name for name, part in DECODERS.items() if TEMPERATURE in part.options)
            raise ValueError(
                f"task.loss {self.loss} is of cosines: use task.decoder {of_cosines} with "
                f"task.temperature 1, got {self.decoder} and {self.temperature:g}"
            )
        if self.margin >= 1:
            raise ValueError(f"task.loss {self.loss} needs a task.margin below 1, such as 0.8, got {self.margin:g}")

    def _check_decoder(self) -> None:
        for name in DECODER_OPTIONS:
            if self._is_set(name) and name not in DECODERS[self.decoder].options:
                readers = [decoder for decoder, part in DECODERS.items() if name in part.options]
                raise ValueError(
                    f"task.{name}: task.decoder {self.decoder} does not read it; use {' or '.join(readers)}"
                )
        if DECODERS[self.decoder].of_paths and not self.has_paths:
            raise ValueError(f"task.decoder {self.decoder} is for static graphs: use another task.decoder")
        if DECODERS[self.decoder].needs_events and not self.has_events:
            raise ValueError(f"task.decoder {self.decoder} is for temporal graphs: use another task.decoder")

    def _is_set(self, name: str) -> bool:
        default = next(f for f in fields(self) if f.name == name)
        return getattr(self, name) not in (default.default, [])
