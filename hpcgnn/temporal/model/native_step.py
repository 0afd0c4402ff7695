"""A link model's training step without autograd: its native layers are called forward, then backward, by hand. That
saves about a hundred small calls a step.

U unique nodes, N roots, D memory width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hpcgnn.choices import has_kernel
from hpcgnn.native.attention_layer import AttentionCall, AttentionPass
from hpcgnn.native.layers import KeyedDropout, can_multiply
from hpcgnn.native.link_decoder import LinkDecoderPass, link_loss, of_roles
from hpcgnn.native.recurrent import RecurrentPass
from hpcgnn.nn.decoders import DECODERS
from hpcgnn.task.losses import LOSSES, Loss
from hpcgnn.temporal.model import readout as readouts
from hpcgnn.temporal.model import updater as updaters
from hpcgnn.temporal.model.model import TemporalModel
from hpcgnn.temporal.plan import Query


def make_link_step(model: Any, loss: Loss) -> LinkStep | None:
    """Make the step of a model and a loss, or None. It is None for a part or a loss without a kernel, such as any
    subclass, for learned time encodings, for frozen weights, and where the layers are not native."""
    if type(model) is not TemporalModel or not has_kernel(loss, LOSSES):
        return None
    if any(part is not None for part in (model.message, model.feature, model.attention, model.edge_type)):
        return None
    # Each table registers one class for its kernel, so that a subclass keeps its own arithmetic.
    is_native = model.updater is not None and updaters.has_kernel(model.updater)
    is_native = is_native and readouts.has_kernel(model.embedding) and has_kernel(model.decoder, DECODERS)
    if not is_native or model.updater.time.phase.requires_grad:
        return None
    weights = [p for name, p in model.named_parameters() if not name.endswith("time.phase")]
    if not all(weight.requires_grad for weight in weights) or not can_multiply(*weights):
        return None
    return LinkStep(model)


class LinkStep:
    """Runs a training step by ``update``, ``learn`` and ``update_backward``, in this order; gradients are added to the
    parameters' gradients."""

    def __init__(self, model: TemporalModel):
        self._model, self._update = model, _Weights(model.updater.weights())
        self._layers = [_Weights(layer.weights()) for layer in model.embedding.layers]
        self._decoder = _Weights(model.decoder.weights())
        self._pass: Any = None  # the RecurrentPass between ``update`` and ``update_backward``
        self._phase = model.updater.time.phase.detach().double()

    def update(self, state, mail, updated, mailed, delivered, index=None) -> torch.Tensor:
        """Compute the rows of the unique nodes with their mail worked in, as the model does."""
        updater = self._model.updater
        call = updater.call(state, mail, updated, mailed, delivered, index)
        self._phase = updater.time.phase.detach().double()
        self._pass = RecurrentPass(self._update.parameters, self._phase, call)
        return self._pass.forward()

    def learn(
        self, memory: torch.Tensor, query: Query, dropout: KeyedDropout | None, roles: int, batch_size: int
    ) -> tuple[float, torch.Tensor, torch.Tensor]:
        """Embed the roots [roles x b] from memory [U, D], score them, and go back. batch_size: the global batch's.
        Returns this rank's share of the loss, its gradient [U, D], and the logits [roles - 1, b]."""
        below, passes, phase = memory, [], self._phase
        for layer, weights, level in zip(self._model.embedding.layers, self._layers, query.levels, strict=True):
            call = AttentionCall(
                level.root, level.root_transpose, level.edge, level.attention, layer.time.frequency, layer.scale,
                layer.norm.eps, dropout if level is query.levels[-1] else None,
            )  # fmt: skip
            passes.append(AttentionPass(below, phase, weights.parameters, call))
            below = passes[-1].forward()
        ends = of_roles(below.view(roles, len(below) // roles, below.shape[1]))
        decoder = LinkDecoderPass(*ends, self._decoder.parameters)
        logits = decoder.forward()
        loss, gradient = link_loss(logits, batch_size)
        with self._decoder.gradient() as flat:
            gradient = decoder.backward(gradient, flat)
        for weights, layer in zip(self._layers[::-1], passes[::-1], strict=True):
            with weights.gradient() as flat:
                gradient = layer.backward(gradient.view(-1, layer.width), flat)
        return loss, gradient, logits

    def update_backward(self, gradient: torch.Tensor) -> None:
        """Pass back the gradient [r, D] of what ``update`` returned last."""
        with self._update.gradient() as flat:
            self._pass.backward(gradient, flat)
        self._pass = None


class _Weights:
    """Parameters of a layer, and their gradients as one flat tensor where these lie one after another."""

    def __init__(self, parameters: list[torch.Tensor]):
        self.parameters, self._sizes = parameters, [p.numel() for p in parameters]
        self._starts: list[int] = []
        self._gradient: torch.Tensor | None = None

    @contextmanager
    def gradient(self) -> Iterator[torch.Tensor]:
        """Yield the gradients [sum of sizes], in the parameters' order, to be added to."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients: list[Any] = [p.grad for p in self.parameters]
        whole = self._joined(gradients)
        if whole is not None:
            yield whole
            return
        flat = gradients[0].new_zeros(sum(self._sizes))
        yield flat
        for gradient, piece in zip(gradients, flat.split(self._sizes), strict=True):
            gradient.add_(piece.view_as(gradient))

    def _joined(self, gradients: list[torch.Tensor]) -> torch.Tensor | None:
        """Join the gradients to one flat tensor; None where they do not lie one after another."""
        starts = [gradient.data_ptr() for gradient in gradients]
        if starts != self._starts:
            memory = {gradient.untyped_storage().data_ptr() for gradient in gradients}
            ends = [g.data_ptr() + g.numel() * g.element_size() for g in gradients if g.is_contiguous()]
            together = len(memory) == 1 and ends[:-1] == starts[1:]
            self._gradient = gradients[0].as_strided((sum(self._sizes),), (1,)) if together else None
            self._starts = starts
        return self._gradient
