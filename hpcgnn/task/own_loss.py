"""Computes the loss by a function of the user's own, which ``task.loss_path`` names.

n rows: pairs or labels of this rank; k negatives a pair, c classes.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from hpcgnn.nn.own_class import found_at, in_one_line

KEY = "task.loss_path"


class OwnLoss:
    """A loss of the user's own, for tasks of all kinds. It is not called without rows; the loss is 0 then.

    An exception on one rank would leave the others waiting in their next exchange. So the loss of a rank whose function
    has a fault is NaN, which reaches all ranks with the sum of the loss. Then ``refuse`` raises the reason.
    """

    def __init__(self, path: str, of_links: bool):
        """path: package.module.function; of_links: whether it compares pairs with negatives, and not outputs with
        labels."""
        self.path, self._of_links = path, of_links
        self._function: Any = None
        self._fault = ""
        self._is_checked = False  # whether a value was seen to be a sum

    def find(self) -> None:
        """Load the function, before the first step. Raises ValueError where there is none."""
        self._function = found_at(self.path, KEY, "function")
        if not callable(self._function):
            raise ValueError(f"{KEY} {self.path!r} is no function")

    def refuse(self) -> None:
        """Raise ValueError for the first fault of the function."""
        if self._fault:
            raise ValueError(f"{KEY} {self.path!r}: {self._fault}")

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Compute the sum of the losses of pairs [n] and their negatives [k, n]; of outputs [n, c] and classes [n] or
        [n, c]; or of outputs [n] or [n, 1] and numbers [n], of the same dtype for the function. Classes [n] and numbers
        that are missing are left out."""
        output, target = (output, target) if self._of_links else _known(output, target)
        if not len(output):
            return output.sum()
        value = self._value(output, target)
        if not self._fault and not self._is_checked:
            pieces = slice(len(output) // 2), slice(len(output) // 2, None)
            self._check(value, [(output[p], target[:, p] if self._of_links else target[p]) for p in pieces])
        return output.sum() * math.nan if self._fault else value

    def _value(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor | Any:
        """Call the function, and note a fault of it."""
        try:
            value = self._function(output, target)
            if not isinstance(value, torch.Tensor):
                self._fault = f"a tensor is expected, it returned {type(value).__name__}"
            elif value.ndim:
                self._fault = f"one number is expected, it returned {[*value.shape]}: {REMEDY}"
            elif output.requires_grad and torch.is_grad_enabled() and not value.requires_grad:
                self._fault = "its value has no gradient: compute it by torch from the outputs, without detach or item"
            return value
        except Exception as error:
            self._fault = in_one_line(error)
            return None

    @torch.no_grad()
    def _check(self, value: torch.Tensor, halves: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Note a fault unless the value is finite and the sum over both halves of the rows. A value of 0, and a single
        row, leave open what it is."""
        if not bool(value.isfinite()):
            self._fault = f"it returned {float(value)}; negatives are -inf where there is none"
            return
        if len(halves[0][0]) == 0 or not bool(value):
            return
        parts = [self._value(*half) for half in halves]
        if self._fault:
            return
        total, size = float(sum(parts)), sum(abs(float(part)) for part in (value, *parts))
        if not abs(float(value) - total) <= math.sqrt(torch.finfo(value.dtype).eps) * size:
            self._fault = (
                f"{float(value):.6g} for {sum(len(rows) for rows, _ in halves)} rows, and {total:.6g} for their halves "
                f"together: it is no sum over rows, and answers would depend on the number of ranks; {REMEDY}"
            )
        self._is_checked = True


REMEDY = "return the sum over rows, as reduction='sum' does"


def _known(output: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Leave out the rows whose label [n] is missing, and bring numbers to the shape and dtype of each other."""
    if label.is_floating_point():
        output, label = output.reshape(label.shape), label.to(output.dtype)
    if label.ndim == 2:
        return output, label
    known = ~label.isnan() if label.is_floating_point() else label >= 0
    return (output, label) if bool(known.all()) else (output[known], label[known])
