"""The link decoder as one native call forward and one backward, and the loss of its logits, on the CPU.
`hpcgnn.nn.decoders` has the same in plain torch for other devices.

R roles, b pairs, Z embedding width, O hidden width.
"""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.layers import address, flat_zeros, kernels_for


class LinkDecoderPass:
    """Logits [R - 1, b] of pairs: out . relu(source e_0 + bias + destination e_j) + out_bias.

    embedding [R, b, Z]: role 0 holds the sources, the others destinations. weights: source [O, Z], bias [O],
    destination [O, Z], out [1, O], out_bias [1].
    """

    def __init__(self, embedding, weights):
        source, bias, destination, out, out_bias = weights
        (roles, pairs, width), hidden, dtype = embedding.shape, bias.shape[0], embedding.dtype
        if roles < 2:
            raise ValueError(f"embeddings of sources and destinations are needed, got {roles} roles")
        self._embedding, self._weights, self._saved = embedding, weights, None
        self._decoder = decoder = kernels_for(embedding).LinkDecoder()
        decoder.roles, decoder.pairs, decoder.width, decoder.hidden = roles, pairs, width, hidden
        decoder.embedding = address(embedding, dtype, roles, pairs, width)
        decoder.source = address(source, dtype, hidden, width)
        decoder.bias = address(bias, dtype, hidden)
        decoder.destination = address(destination, dtype, hidden, width)
        decoder.out = address(out, dtype, 1, hidden)
        decoder.out_bias = address(out_bias, dtype, 1)

    def forward(self) -> torch.Tensor:
        """Compute the logits [R - 1, b]."""
        roles, pairs, _ = self._embedding.shape
        logits = self._embedding.new_empty((roles - 1, pairs))
        self._saved = self._decoder.forward(logits.data_ptr(), torch.get_num_threads())
        return logits

    def backward(self, gradient: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the embedding for a gradient [R - 1, b] of the logits, and add the gradients of the
        weights to ``flat``."""
        (roles, pairs, _), dtype = self._embedding.shape, self._embedding.dtype
        grad_embedding = torch.empty_like(self._embedding)
        self._decoder.backward(
            self._saved,
            address(gradient, dtype, roles - 1, pairs),
            grad_embedding.data_ptr(),
            address(flat, dtype, self._decoder.gradient_size()),
            torch.get_num_threads(),
        )
        return grad_embedding


class _LinkDecoder(torch.autograd.Function):
    @staticmethod
    def forward(ctx, embedding, *weights):
        ctx.run = LinkDecoderPass(embedding, weights)
        ctx.save_for_backward(*weights)
        return ctx.run.forward()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        flat, gradients = flat_zeros(gradient, [w.shape for w in ctx.saved_tensors])
        return ctx.run.backward(gradient.contiguous(), flat), *gradients


def link_decoder(embedding, source, bias, destination, out, out_bias) -> torch.Tensor:
    """LinkDecoderPass of embeddings laid out in any way, differentiable in embedding and weights."""
    return _LinkDecoder.apply(embedding.contiguous(), source, bias, destination, out, out_bias)


def link_loss(logits: torch.Tensor, batch_size: int) -> tuple[float, torch.Tensor]:
    """Loss of logits [1 + k, b], events first, then negatives, and its gradient [1 + k, b]. The loss is the sum over
    events of -log p(event) - mean over negatives of log(1 - p), divided by ``batch_size``."""
    gradient = torch.empty_like(logits)
    roles, pairs = logits.shape
    loss = kernels_for(logits).link_loss(
        address(logits, logits.dtype, roles, pairs), roles, pairs, batch_size, gradient.data_ptr()
    )
    return loss, gradient
