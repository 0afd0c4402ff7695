"""The link decoder as one native call forward and one backward, and the loss of its logits, on the CPU.
`hpcgnn.nn.decoders` has the same in plain torch for other devices.

S rows of sources, D rows of destinations, k roles of b pairs each, Z embedding width, O hidden width.
"""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.layers import address, flat_zeros, kernels_for


class LinkDecoderPass:
    """Logits [k, b] of pairs of rows: out . relu(source s_u + bias + destination d_v) + out_bias. Each row is
    multiplied once, and no row of a pair is kept.

    tables: rows of sources [S, Z] and of destinations [D, Z]. places: of each pair's source u in [0, S) and destination
    v in [0, D), [k, b] int64. weights: source [O, Z], bias [O], destination [O, Z], out [1, O], out_bias [1].
    """

    def __init__(self, tables, places, weights):
        source, bias, destination, out, out_bias = weights
        (sources, width), destinations, hidden, dtype = tables[0].shape, len(tables[1]), bias.shape[0], tables[0].dtype
        roles, pairs = places[0].shape
        self._tables, self._places, self._weights, self._saved = tables, places, weights, None
        self._decoder = decoder = kernels_for(tables[0]).LinkDecoder()
        decoder.roles, decoder.pairs, decoder.sources, decoder.destinations = roles, pairs, sources, destinations
        decoder.width, decoder.hidden = width, hidden
        decoder.source_rows = address(tables[0], dtype, sources, width)
        decoder.destination_rows = address(tables[1], dtype, destinations, width)
        decoder.source_place = address(places[0], torch.int64, roles, pairs)
        decoder.destination_place = address(places[1], torch.int64, roles, pairs)
        decoder.source = address(source, dtype, hidden, width)
        decoder.bias = address(bias, dtype, hidden)
        decoder.destination = address(destination, dtype, hidden, width)
        decoder.out = address(out, dtype, 1, hidden)
        decoder.out_bias = address(out_bias, dtype, 1)

    def forward(self) -> torch.Tensor:
        """Compute the logits [k, b]."""
        logits = self._tables[0].new_empty(self._places[0].shape)
        self._saved = self._decoder.forward(logits.data_ptr(), torch.get_num_threads())
        return logits

    def backward(self, gradient: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        """Return the gradients [S + D, Z] of the rows of sources and destinations for a gradient [k, b] of the logits,
        and add the gradients of the weights to ``flat``."""
        sources, destinations = self._tables
        dtype, grad_rows = sources.dtype, sources.new_empty(len(sources) + len(destinations), sources.shape[1])
        self._decoder.backward(
            self._saved,
            address(gradient, dtype, *self._places[0].shape),
            grad_rows.data_ptr(),
            address(flat, dtype, self._decoder.gradient_size()),
            torch.get_num_threads(),
        )
        return grad_rows


class _LinkDecoder(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sources, destinations, source_place, destination_place, *weights):
        ctx.run = LinkDecoderPass((sources, destinations), (source_place, destination_place), weights)
        ctx.sizes = len(sources), len(destinations)
        ctx.save_for_backward(*weights)
        return ctx.run.forward()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        flat, gradients = flat_zeros(gradient, [w.shape for w in ctx.saved_tensors])
        rows = ctx.run.backward(gradient.contiguous(), flat)
        return *rows.split(ctx.sizes), None, None, *gradients


def link_decoder(tables, places, weights) -> torch.Tensor:
    """LinkDecoderPass of tables and places laid out in any way, differentiable in tables and weights. Raises IndexError
    for places beyond the tables."""
    for end, table, place in zip(("source", "destination"), tables, places, strict=True):
        least, most = (int(value) for value in place.aminmax()) if place.numel() else (0, -1)
        if least < 0 or most >= len(table):
            raise IndexError(f"places of {end}s are from {least} to {most}, where there are {len(table)} rows")
    rows, wide = (table.contiguous() for table in tables), (place.to(torch.int64).contiguous() for place in places)
    return _LinkDecoder.apply(*rows, *wide, *weights)


def of_roles(embedding: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Make the tables and the places of a LinkDecoderPass from embeddings [1 + k, b, Z] of the sources, then of
    destinations of k roles."""
    roles, pairs, _ = embedding.shape
    if roles < 2:
        raise ValueError(f"embeddings of sources and destinations are needed, got {roles} roles")
    destination = torch.arange((roles - 1) * pairs).view(roles - 1, pairs)
    source = destination[:1].expand_as(destination).contiguous()
    return (embedding[0], embedding[1:].flatten(0, 1)), (source, destination)


def link_loss(logits: torch.Tensor, batch_size: int) -> tuple[float, torch.Tensor]:
    """Loss of logits [1 + k, b], events first, then negatives, and its gradient [1 + k, b]. The loss is the sum over
    events of -log p(event) - mean over negatives of log(1 - p), divided by ``batch_size``."""
    gradient = torch.empty_like(logits)
    roles, pairs = logits.shape
    loss = kernels_for(logits).link_loss(
        address(logits, logits.dtype, roles, pairs), roles, pairs, batch_size, gradient.data_ptr()
    )
    return loss, gradient
