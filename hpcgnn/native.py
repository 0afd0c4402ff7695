"""The Python face of the kernels: argument checks, allocation, autograd functions, CPU/CUDA dispatch.

Planning operations take and return NumPy arrays (CPU) or CUDA tensors, and release the GIL; compute operations take
torch tensors of any device. Shapes: N roots, K slots (fanout), H heads, U unique nodes, D node width, F edge feature
width, T time width.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

try:
    from hpcgnn import _native
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(
        "hpcgnn's native kernels are not built: run 'pip install .' "
        "(in a checkout: 'pip install --no-build-isolation -e .')"
    ) from error

from hpcgnn import native_cuda

NO_LIMIT = np.iinfo(np.int64).max


class Stream(IntEnum):
    """What a random number is for; part of the key, so that no two purposes share numbers."""

    NEGATIVE = 1
    SAMPLE = 2
    DROPOUT = 3
    HIDDEN_NODE = 4
    DECAY = 5
    CHUNK = 6
    EVAL_NEGATIVE = 65
    EVAL_SAMPLE = 66
    EVAL_DECAY = 69


@dataclass(frozen=True, slots=True)
class Random:
    """Key and counter fields that one call has in common; ``native/include/hpcgnn/philox.h`` documents the layout."""

    seed: int
    stream: int
    step: int = 0
    epoch: int = 0
    hop: int = 0
    relation: int = 0

    def __post_init__(self):
        limits = {"seed": 56, "stream": 8, "step": 32, "epoch": 16, "hop": 4, "relation": 12}
        for name, bits in limits.items():
            if not 0 <= getattr(self, name) < 1 << bits:
                raise ValueError(f"random {name} must be in [0, 2^{bits}), got {getattr(self, name)}")

    def native(self) -> _native.RandomContext:
        """The C++ counterpart."""
        return _native.RandomContext(self.seed, self.stream, self.step, self.epoch, self.hop, self.relation)


def features() -> dict:
    """What the build contains: openmp, simd, cuda."""
    return dict(_native.features())


# ----------------------------------------------------------------------------------------------------------------
# planning


def sample_recent(graph, nodes, times, fanout: int, event_limit: int = NO_LIMIT, since=None, threads: int = 1):
    """The newest ``fanout`` history entries strictly before each root's time and of events below ``event_limit``.

    graph: (indptr [n + 1], time [m], event [m]) int64, a T-CSR. nodes, times: [N] int64; since [N] int64: no entry
    before that time either, None: no lower bound. Returns positions [N, fanout] int64, increasing, valid first, padded
    with -1, and count [N] int32.
    """
    positions, count = _sample_buffers(nodes, fanout)
    kernels, execution = _planning_backend(nodes, threads)
    kernels.sample_recent(*graph, nodes, times, since, event_limit, positions, count, execution)
    return positions, count


def sample_uniform(
    graph, nodes, times, identity, fanout: int, random: Random, *, replace=False, event_limit=NO_LIMIT, since=None,
    threads=1,
):  # fmt: skip
    """As sample_recent, but ``fanout`` entries drawn uniformly; ``identity`` [N] int64 keys the draws of each root."""
    positions, count = _sample_buffers(nodes, fanout)
    kernels, execution = _planning_backend(nodes, threads)
    key = random.native()
    roots = (nodes, times, since, identity)
    kernels.sample_uniform(*graph, *roots, event_limit, replace, key, positions, count, execution)
    return positions, count


def decay_keep(positions, count, remote, age, half_life: int, random: Random, identity, threads: int = 1) -> None:
    """Drop sampled neighbours in other parts the likelier, the older they are (boundary decay, StarryGL); in place.

    positions [N, K], count [N] as the samplers return them: survivors move to the front in order. remote [N, K] bool
    or uint8; age [N, K] int64. A remote slot is kept with probability 2^-min(32, age // half_life), drawn by
    ``random``, ``identity`` [N] and its place in the row.
    """
    if half_life < 1:
        raise ValueError(f"half_life must be at least 1, got {half_life}")
    kernels, execution = _planning_backend(positions, threads)
    flags = remote.view(torch.uint8 if _on_cuda(remote) else np.uint8)
    kernels.decay_keep(flags, age, identity, half_life, random.native(), positions, count, execution)


def temporal_reply(other, time, feature, positions, times):
    """What sampled neighbours are, from their positions [N, K] in a history: (other, dt, feature), each [N, K] int64.

    other, time [m] int64, feature [m] int64 or None (then None comes back); times [N] of the roots. dt = the root's
    time - the entry's. Padding (-1) gives -1, 0 and -1. NumPy only.
    """
    reply = [np.empty(positions.shape, np.int64) for _ in range(2)]
    reply.append(None if feature is None else np.empty(positions.shape, np.int64))
    _native.temporal_reply(other, time, feature, positions, times, *reply)
    return tuple(reply)


def locate(ids, blocks):
    """Owning rank and the owner's local row of every id, int64 [n]. NumPy only.

    blocks: (start, rank, local) [B] int64 each: the ids from start[b] to the next start, increasing, belong to
    rank[b], whose local row of the first of them is local[b]. An id below start[0] is the caller's mistake.
    """
    owner, local = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    _native.locate(ids, *blocks, owner, local)
    return owner, local


def locate_by_owner(ids, blocks, size: int):
    """Stable order [n] of ids by owner, their local rows [n] in that order, and counts [size], all int64; ``blocks``
    as in locate."""
    order, local, counts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), np.empty(size, np.int64)
    _native.locate_by_owner(ids, *blocks, order, local, counts)
    return order, local, counts


def unique_by_owner(ids, blocks, size: int):
    """As unique_relabel, but unique ids sorted by owner: unique [U], inverse [n] int32, local [U], counts [size].

    Within an owner in order of first occurrence; a negative id is padding; ``blocks`` as in locate. NumPy only.
    """
    unique, local, counts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), np.empty(size, np.int64)
    inverse = np.empty(len(ids), np.int32)
    num_unique = _native.unique_by_owner(ids, *blocks, unique, inverse, local, counts)
    return unique[:num_unique], inverse, local[:num_unique], counts


def _on_cuda(array) -> bool:
    return isinstance(array, torch.Tensor) and array.is_cuda


def _planning_backend(array, threads: int):
    return native_cuda.backend(array) if _on_cuda(array) else (_native, threads)


def _empty(like, shape, dtype: str):
    """A CUDA tensor where ``like`` is one, else a NumPy array."""
    if _on_cuda(like):
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    return np.empty(shape, dtype)


def _sample_buffers(nodes, fanout: int):
    if fanout < 1:
        raise ValueError(f"fanout must be at least 1, got {fanout}")
    return _empty(nodes, (len(nodes), fanout), "int64"), _empty(nodes, len(nodes), "int32")


def random_integers(random: Random, identity, slots: int, bound: int, threads: int = 1):
    """Unbiased integers in [0, bound), [N, slots] int64, a function of the random key and ``identity`` [N] only."""
    if not 0 < bound < 1 << 32:
        raise ValueError(f"bound must be in [1, 2^32), got {bound}")
    out = _empty(identity, (len(identity), slots), "int64")
    kernels, execution = _planning_backend(identity, threads)
    kernels.random_integers(random.native(), identity, bound, out, execution)
    return out


def unique_relabel(ids):
    """Unique ids in order of first occurrence (int64) and the inverse (int32); a negative id is padding, inverse -1."""
    if _on_cuda(ids):
        unique, inverse, count = native_cuda.unique_relabel(ids)
        return unique[: int(count)], inverse
    unique, inverse = np.empty(len(ids), np.int64), np.empty(len(ids), np.int32)
    return unique[: _native.unique_relabel(ids, unique, inverse)], inverse


def last_event(nodes, events):
    """Boolean [N]: the first entry among those of its node that carry the node's largest event row id."""
    if _on_cuda(nodes):
        return native_cuda.last_event(nodes, events)
    winner = np.empty(len(nodes), np.uint8)
    _native.last_event(nodes, events, winner)
    return winner.view(bool)


def transpose_index(index, targets: int):
    """CSR of the positions that point at each target: indptr [targets + 1], order int64; -1 points nowhere."""
    if _on_cuda(index):
        indptr, order = native_cuda.transpose_index(index, targets)
        return indptr, order[: int(indptr[-1])]
    indptr, order = np.empty(targets + 1, np.int64), np.empty(len(index), np.int64)
    _native.transpose_index(index, indptr, order)
    return indptr, order[: indptr[-1]]


# -----------------------------------------------------------------------------------------------------------------
# compute


def _backend(tensor: torch.Tensor):
    """(kernels, execution) for a tensor's device: threads on the CPU, the current stream on CUDA."""
    if tensor.device.type == "cpu":
        return _native, torch.get_num_threads()
    return native_cuda.backend(tensor)


def _bytes(rows: torch.Tensor) -> torch.Tensor:
    """A contiguous [n, ...] tensor as [n, bytes of a row] uint8, without a copy."""
    width = rows[0].numel() if rows.shape[0] else int(np.prod(rows.shape[1:], dtype=np.int64))
    return (
        rows.reshape(rows.shape[0], width).view(torch.uint8)
        if width
        else rows.new_empty((rows.shape[0], 0), dtype=torch.uint8)
    )


def gather_rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """table[index] for int64 ``index``; a negative index gives a row of zeros. Not differentiable; see GatherRows."""
    out = torch.empty((index.shape[0], *table.shape[1:]), dtype=table.dtype, device=table.device)
    if out.numel():
        kernels, execution = _backend(table)
        kernels.gather_rows(_bytes(table), index, _bytes(out), execution)
    return out


def scatter_rows(table: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
    """table[index] = rows in place; indices unique, negative ones skipped."""
    if rows.numel():
        kernels, execution = _backend(table)
        kernels.scatter_rows(_bytes(table), index, _bytes(rows.contiguous()), execution)


def segment_sum_rows(rows: torch.Tensor, indptr: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Sum of rows[order[indptr[s]:indptr[s + 1]]] for every segment s, in that order (deterministic). [segments,
    width]."""
    out = torch.empty((indptr.shape[0] - 1, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    if out.numel():
        kernels, execution = _backend(rows)
        kernels.segment_sum_rows(rows.contiguous(), indptr, order, out, execution)
    return out


class GatherRows(torch.autograd.Function):
    """Differentiable row gather; the gradient is summed through the transposed index (deterministic)."""

    @staticmethod
    def forward(ctx, table, index, indptr, order):
        """index [n] int64 >= 0; (indptr, order) from transpose_index(index, len(table))."""
        ctx.save_for_backward(indptr, order)
        return gather_rows(table, index)

    @staticmethod
    def backward(ctx, gradient):
        return segment_sum_rows(gradient, *ctx.saved_tensors), None, None, None


def dropout_mask(random: Random, identity: torch.Tensor, columns: int, p: float, dtype: torch.dtype) -> torch.Tensor:
    """Keyed dropout multipliers [N, columns]: 0 with probability p, else 1 / (1 - p)."""
    if not 0 <= p < 1:
        raise ValueError(f"dropout probability must be in [0, 1), got {p}")
    mask = torch.empty((identity.shape[0], columns), dtype=dtype, device=identity.device)
    if mask.numel():
        kernels, execution = _backend(identity)
        kernels.dropout_mask(random.native(), identity, p, mask, execution)
    return mask


class TimeEncode(torch.autograd.Function):
    """cos(dt * frequency + phase), phases reduced in float64; differentiable in ``phase`` only."""

    @staticmethod
    def forward(ctx, dt, frequency, phase, dtype):
        """dt [n] int64; frequency, phase [T]; returns [n, T] of ``dtype``."""
        cosine = torch.empty((dt.shape[0], frequency.shape[0]), dtype=dtype)
        sine = torch.empty((dt.shape[0] if ctx.needs_input_grad[2] else 0, frequency.shape[0]), dtype=dtype)
        if dt.shape[0]:
            _native.time_encode(dt, frequency.double(), phase.detach().double(), cosine, sine, torch.get_num_threads())
        ctx.save_for_backward(sine)
        ctx.phase_dtype = phase.dtype
        return cosine

    @staticmethod
    def backward(ctx, gradient):
        (sine,) = ctx.saved_tensors
        return None, None, -(gradient * sine).sum(0).to(ctx.phase_dtype), None


def time_encode_reference(dt, frequency, phase, dtype):
    """TimeEncode in plain torch, for any device."""
    angle = dt.to(torch.float64).unsqueeze(1) * frequency.double() + phase.double()
    return torch.cos(angle).to(dtype)


class GruGates(torch.autograd.Function):
    """The elementwise part of a GRU, fused; differentiable in the two products, not in the old state."""

    @staticmethod
    def forward(ctx, given, kept, state):
        """given, kept [n, 3 D] products with input and state (reset | update | candidate), state [n, D]; returns [n,
        D]."""
        given, kept = given.contiguous(), kept.contiguous()
        out, gates = torch.empty_like(state), torch.empty_like(given)
        _native.gru_forward(given, kept, state, out, gates, torch.get_num_threads())
        ctx.save_for_backward(kept, state, gates)
        return out

    @staticmethod
    def backward(ctx, gradient):
        kept, state, gates = ctx.saved_tensors
        grad_given, grad_kept = torch.empty_like(gates), torch.empty_like(gates)
        _native.gru_backward(gradient.contiguous(), kept, state, gates, grad_given, grad_kept, torch.get_num_threads())
        return grad_given, grad_kept, None


def gru_gates_reference(given, kept, state):
    """GruGates in plain torch, for any device."""
    width = state.shape[1]
    reset, update = torch.sigmoid(given[:, : 2 * width] + kept[:, : 2 * width]).chunk(2, dim=1)
    candidate = torch.tanh(torch.addcmul(given[:, 2 * width :], reset, kept[:, 2 * width :]))
    return torch.lerp(candidate, state, update)


def gru_gates(given, kept, state):
    """New state [n, D]; the native kernel on the CPU, plain torch elsewhere."""
    if given.device.type == "cpu" and not state.requires_grad:
        return GruGates.apply(given, kept, state)
    return gru_gates_reference(given, kept, state)


@dataclass(slots=True)
class AttentionPlan:
    """The structure of one attention call; tensors of one device.

    slot [N, K] int32 rows of the unique nodes (-1 pads), count [N] int32 valid slots (first), dt [N, K] int64, edge_of
    [N, K] int32 rows of the edge features, (slot_indptr [U + 1], slot_order) the transpose of slot.
    """

    slot: torch.Tensor
    count: torch.Tensor
    dt: torch.Tensor
    edge_of: torch.Tensor
    slot_indptr: torch.Tensor
    slot_order: torch.Tensor


def temporal_attention(query, node, phase, edge, frequency, plan: AttentionPlan):
    """Softmax attention of each root over its slots' rows [node | edge | cos(w dt + b)], per head, in plain torch on
    any device: materialises the keys [N, K, D + F + T].

    query [N, H, D + F + T] is projected through the key weights and scaled; returns the weighted sums [N, H, D + F + T]
    (zero for a root without slots).
    """
    slots = plan.slot.shape[1]
    valid = torch.arange(slots, device=query.device) < plan.count.unsqueeze(1)
    pieces = [node[plan.slot.clamp(min=0).long()]]
    if edge.shape[1]:
        pieces.append(edge[plan.edge_of.clamp(min=0).long()])
    pieces.append(time_encode_reference(plan.dt.reshape(-1), frequency, phase, query.dtype).view(*plan.dt.shape, -1))
    keys = torch.cat(pieces, dim=2) * valid.unsqueeze(2)
    score = torch.einsum("nhw,nkw->nhk", query, keys).masked_fill(~valid.unsqueeze(1), float("-inf"))
    weight = torch.softmax(score, dim=2).nan_to_num(0.0)
    return torch.einsum("nhk,nkw->nhw", weight, keys)


def time_encode(dt, frequency, phase, dtype):
    """cos(dt * frequency + phase) [n, T]; the native kernel on the CPU, plain torch elsewhere."""
    if dt.device.type == "cpu":
        return TimeEncode.apply(dt, frequency, phase, dtype)
    return time_encode_reference(dt, frequency, phase, dtype)
