"""Embeddings of the roots from rows of the unique nodes, by attention over neighbors or without, and their table.

All are made from (config, node_width, time, sizes), with the section ``model`` of the run file, and called alike. They
take node [U, D], query, and the dropout of the roots or None. Where the table has ``reads_last``, they also take last
[U] int64, the time of each row's last mail or NEVER. They return [N, Z], or embeddings of the ends of pairs where the
table has ``of_pairs``.

U unique nodes, N roots (of a layer: its queries), D width below, Z embedding width, K slots, H heads. F edge features,
T time width, W windows; in a layer of attention W = D + F + T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hpcgnn import choices, native
from hpcgnn.choices import Part
from hpcgnn.native import AttentionPlan
from hpcgnn.native.attention import attend_to_keys
from hpcgnn.native.attention_layer import AttentionCall, attention_layer
from hpcgnn.native.layers import KeyedDropout, can_multiply
from hpcgnn.native.products import linear
from hpcgnn.temporal.memory import NEVER
from hpcgnn.temporal.model.cawn import CawnReadout
from hpcgnn.temporal.model.dygformer import DygformerReadout
from hpcgnn.temporal.model.tcl import TclReadout
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.model.tncn import TncnReadout
from hpcgnn.temporal.model.tpnet import TpnetReadout
from hpcgnn.temporal.model.walks import Walks
from hpcgnn.temporal.plan import Query


@dataclass(frozen=True, slots=True)
class TemporalSizes:
    """Sizes that data, sampler and task set: widths of node and edge features, neighbors per root, windows, and the
    decoder with its temperature. time_scale: root mean square of the times between consecutive events of a node;
    edge_types: their number, 0 where all events are of one; clocks: of a pair that the decoder reads. walks: the
    projections that node memory is, None: it is something else."""

    node_width: int = 0
    edge_width: int = 0
    slots: int = 1
    windows: int = 1
    time_scale: float = 1.0
    decoder: str = "mlp"
    temperature: float = 1.0
    edge_types: int = 0
    clocks: int = 0
    walks: Walks | None = None


class TemporalAttentionLayer(nn.Module):
    """Multi-head attention of a root over its neighbors' [node | edge | time], merged with the root's own row.

    The products of neighboring weights are formed first (they are small), so that a root's row is multiplied with one
    matrix before the attention and one after it. Query and key weights become [H W, D], value and merge weights [Z, H
    W].
    """

    def __init__(self, node_width: int, edge_width: int, out_width: int, heads: int, time: TimeEncoding):
        super().__init__()
        self.time, self.heads, self.node_width = time, heads, node_width
        head_width, time_width = out_width // heads, len(time.phase)
        key_width = node_width + edge_width + time_width
        self.scale = head_width**-0.5
        self.query = nn.Linear(node_width + time_width, out_width)
        self.key = nn.Parameter(torch.empty(heads, head_width, key_width))
        self.value = nn.Parameter(torch.empty(heads, head_width, key_width))
        self.merge = nn.Linear(out_width + node_width, out_width)
        self.norm = nn.LayerNorm(out_width)
        for weight in (self.key, self.value):
            nn.init.uniform_(weight, -(key_width**-0.5), key_width**-0.5)

    def embed(
        self, node, root, root_transpose, edge, plan: AttentionPlan, dropout: KeyedDropout | None = None
    ) -> torch.Tensor:
        """Embed roots. node [U, D], root [N] int64 rows of ``node`` with their transpose, edge [., F]. Returns [N, Z];
        in one native call on the CPU."""
        if not self.has_kernel or not can_multiply(node, edge, self.norm.weight):
            own = native.GatherRows.apply(node, root, *root_transpose)
            return self(node, own, edge, plan, dropout_mask(dropout, self.norm.weight.dtype, self.merge.out_features))
        call = AttentionCall(root, root_transpose, edge, plan, self.time.frequency, self.scale, self.norm.eps, dropout)
        return attention_layer(node, self.time.phase, self.weights(), call)

    @property
    def has_kernel(self) -> bool:
        """Whether the native layer computes the same: a subclass, or a layer with another norm, may do anything."""
        own = type(self) is TemporalAttentionLayer and type(self.norm) is nn.LayerNorm
        return own and type(self.time) is TimeEncoding and not self.time.learnable

    def weights(self) -> list[torch.Tensor]:
        """List the weights in the order in which `attention_layer` takes them."""
        query, merge, norm = self.query, self.merge, self.norm
        return [self.key, self.value, query.weight, query.bias, merge.weight, merge.bias, norm.weight, norm.bias]

    def forward(self, node, own, edge, plan: AttentionPlan, dropout=None) -> torch.Tensor:
        """Attend in plain torch operations. node [U, D], own [N, D] the roots' rows, edge [., F]; dropout
        [N, Z] multipliers or None. Returns [N, Z].

        A key bias would cancel in the softmax and a value bias is the merge's own, so there are none.
        """
        weight, bias = self._query()
        projected = linear(own, weight, bias).view(len(own), self.heads, self.key.shape[2])
        if type(self.time) is TimeEncoding:
            weighted = native.temporal_attention(projected, node, self.time.phase, edge, self.time.frequency, plan)
        else:
            weighted = attend_to_keys(projected, node, edge, self.time(plan.dt.reshape(-1)), plan)
        width = self.merge.out_features
        merge_read, merge_own = self.merge.weight[:, :width], self.merge.weight[:, width:]
        values = torch.einsum("zhd,hdw->zhw", merge_read.view(width, self.heads, -1), self.value).flatten(1)
        merged = linear(weighted.flatten(1), values) + linear(own, merge_own, self.merge.bias)
        return self.norm(torch.relu(merged if dropout is None else merged * dropout))

    def _query(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Form queries through the key weights, scaled: weight [H W, D], bias [H W]; the root's own time difference is
        0."""
        weight, bias, time = self.query.weight, self.query.bias, self.time
        encoded = (
            time.phase.cos() if type(time) is TimeEncoding else time(time.phase.new_zeros(1, dtype=torch.int64))[0]
        )
        now = bias + weight[:, self.node_width :] @ encoded
        key = self.key.transpose(1, 2) * self.scale  # [H, W, Z / H]
        composed = key @ weight[:, : self.node_width].reshape(self.heads, key.shape[2], self.node_width)
        shift = key @ now.view(self.heads, key.shape[2], 1)
        return composed.flatten(0, 1), shift.flatten()


def dropout_mask(dropout: KeyedDropout | None, dtype: torch.dtype, columns: int) -> torch.Tensor | None:
    """Draw multipliers [N, columns] of the roots' rows; None without dropout."""
    if dropout is None:
        return None
    return native.dropout_mask(dropout.random, dropout.identity, columns, dropout.p, dtype)


class AttentionReadout(nn.Module):
    """Runs layers of temporal attention, one a level of the query, and combines several windows by attention over
    time."""

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: TemporalSizes):
        super().__init__()
        widths = [node_width] + [config.hidden] * (config.layers - 1)
        self.layers = nn.ModuleList(
            TemporalAttentionLayer(width, sizes.edge_width, config.hidden, config.heads, time) for width in widths
        )
        self.combine = WindowAttention(config.hidden, sizes.windows) if sizes.windows > 1 else None

    def forward(self, node, query: Query, dropout: KeyedDropout | None = None, last=None) -> torch.Tensor:
        """Embed the roots."""
        layers: Any = self.layers
        for number, (layer, level) in enumerate(zip(layers, query.levels, strict=True), 1):
            top = number == len(self.layers) and query.windows == 1
            node = layer.embed(
                node, level.root, level.root_transpose, level.edge, level.attention, dropout if top else None
            )
        if self.combine is not None:
            node = self.combine(node.view(query.windows, -1, node.shape[1]))
        return node


class WindowAttention(nn.Module):
    """Structural embeddings of consecutive windows, combined by self-attention of the newest one over all (Sankar et
    al., DySAT: deep neural representation learning on dynamic graphs via self-attention networks, 2020)."""

    def __init__(self, width: int, windows: int):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(windows, 1, width))
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        nn.init.uniform_(self.position, -(width**-0.5), width**-0.5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Combine windows. rows [W, N, Z], the newest window first; returns [N, Z]."""
        placed = rows + self.position
        score = (self.query(placed[0]) * self.key(placed)).sum(2) * rows.shape[2] ** -0.5
        read = (torch.softmax(score, dim=0).unsqueeze(2) * self.value(placed)).sum(0)
        return self.norm(rows[0] + read)


class IdentityReadout(nn.Module):
    """The root's own row, brought to the embedding's width when that differs; nothing where rows are empty."""

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: TemporalSizes):
        super().__init__()
        same = node_width in (0, config.hidden)
        self.project = nn.Identity() if same else nn.Linear(node_width, config.hidden)

    def forward(self, node, query: Query, dropout: KeyedDropout | None = None, last=None) -> torch.Tensor:
        """Embed the roots, without dropout."""
        return self.project(native.GatherRows.apply(node, query.root, *query.root_transpose))


class TimeProjection(nn.Module):
    """Memory that drifts with the time since its last update (Kumar et al., Predicting dynamic embedding trajectory in
    temporal interaction networks, 2019): (1 + w dt / scale) * row. The scale is a time of the size of long pauses (the
    authors standardize dt). Events come in bursts, so that a long pause is hundreds of times the mean one."""

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: TemporalSizes):
        super().__init__()
        self.identity = IdentityReadout(config, node_width, time, sizes)
        self.scale = max(sizes.time_scale, 1.0)
        self.drift = nn.Parameter(torch.empty(node_width))
        nn.init.normal_(self.drift, std=node_width**-0.5)

    def forward(self, node, query: Query, dropout: KeyedDropout | None = None, last: Any = None) -> torch.Tensor:
        """Embed the roots. A row without mail does not drift."""
        since = last[query.root]
        dt = torch.where(since != NEVER, query.time - since, torch.zeros_like(since)).to(node.dtype) / self.scale
        own = native.GatherRows.apply(node, query.root, *query.root_transpose)
        out = self.identity.project(own * (1 + dt.unsqueeze(1) * self.drift))
        mask = dropout_mask(dropout, out.dtype, out.shape[1])
        return out if mask is None else out * mask


class MixerReadout(nn.Module):
    """An MLP-mixer over the recent links' [edge | time], and the mean of the neighbors' rows (Cong et al., Do we
    really need complicated model architectures for temporal networks?, 2023)."""

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: TemporalSizes):
        super().__init__()
        width = config.hidden
        self.time = time
        self.token = nn.Linear(sizes.edge_width + config.time_dim, width)
        self.across = _mixing(sizes.slots, max(2, sizes.slots // 2))
        self.within = _mixing(width, 4 * width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.out = nn.Linear(width + node_width, width)

    def forward(self, node, query: Query, dropout: KeyedDropout | None = None, last=None) -> torch.Tensor:
        """Embed the roots from one level of neighbors."""
        (level,) = query.levels
        tokens = self._tokens(level)
        tokens = tokens + self.across(self.norms[0](tokens).transpose(1, 2)).transpose(1, 2)
        tokens = tokens + self.within(self.norms[1](tokens))
        links = self.norms[2](tokens).mean(1)
        mask = dropout_mask(dropout, links.dtype, links.shape[1])
        out = self.out(torch.cat([links, self._around(node, level)], dim=1))
        return out if mask is None else out * mask

    def _tokens(self, level) -> torch.Tensor:
        """Form the tokens [N, K, Z], the newest link first; zeros where there is none."""
        plan = level.attention
        pieces = [self.time(plan.dt.reshape(-1))]
        if level.edge.shape[1]:
            pieces.insert(0, native.gather_rows(level.edge, plan.edge_of.reshape(-1).long()))
        tokens = self.token(torch.cat(pieces, dim=1)).unflatten(0, plan.dt.shape)
        return (tokens * (plan.slot >= 0).unsqueeze(2)).flip(1)

    def _around(self, node, level) -> torch.Tensor:
        """Add the own row and the mean of the neighbors' rows, [N, D]."""
        if node.shape[1] == 0:
            return node.new_empty((len(level.root), 0))
        plan = level.attention
        slots = plan.slot.reshape(-1).long()
        rows = native.GatherRows.apply(node, slots, plan.slot_indptr, plan.slot_order).unflatten(0, plan.slot.shape)
        mean = rows.sum(1) / plan.count.clamp(min=1).unsqueeze(1).to(rows.dtype)
        return mean + native.GatherRows.apply(node, level.root, *level.root_transpose)


def _mixing(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


@dataclass(frozen=True)
class ReadoutPart(Part):
    """A way to read the embedding of a root out of the rows below. make: makes it as at the top of this file;
    sees_neighbors: reads levels of neighbors; layered: has model.layers layers, others have one. of_pairs: embeds the
    two ends of each pair together, from one level of neighbors, and returns [2 (1 + k) b, Z]: the sources of the pairs
    of events and of their k negatives (``Query.pairs``), then the destinations. Others have a level for each layer.
    has_channels: cuts neighbors into patches with channels. sums_common: sums common neighbors over model.common_hops
    hops; the larger one of hops and layers is its number of levels. has_steps: follows walks of model.layers steps, one
    a level, and of_pairs. shows_memory: nothing is left of it without node memory; reads_last: reads the times of last
    mails; reads_walks: the rows of nodes end with projections of walks. combines_windows: works with
    sampling.num_windows above 1. kernel: the class, and no subclass, that the native layers compute."""

    make: Callable[[Any, int, TimeEncoding, TemporalSizes], nn.Module]
    sees_neighbors: bool = False
    layered: bool = False
    of_pairs: bool = False
    has_channels: bool = False
    sums_common: bool = False
    has_steps: bool = False
    shows_memory: bool = False
    reads_last: bool = False
    reads_walks: bool = False
    combines_windows: bool = False
    kernel: type[nn.Module] | None = None


READOUTS = {
    "attention": ReadoutPart(
        AttentionReadout, "layers of attention over neighbors (Rossi et al., TGN, 2020)", sees_neighbors=True,
        layered=True, combines_windows=True, kernel=AttentionReadout,
    ),
    "identity": ReadoutPart(IdentityReadout, "the node memory, unchanged", shows_memory=True),
    "time_projection": ReadoutPart(
        TimeProjection, "the node memory, projected by the time since its last update (Kumar et al., JODIE, 2019)",
        shows_memory=True, reads_last=True,
    ),
    "mixer": ReadoutPart(
        MixerReadout, "MLP-Mixer over the recent neighbors (Cong et al., GraphMixer, 2023)", sees_neighbors=True
    ),
    "dygformer": ReadoutPart(
        DygformerReadout, "transformer over the recent neighbors of both nodes of a pair (Yu et al., DyGFormer, 2023)",
        sees_neighbors=True, layered=True, of_pairs=True, has_channels=True,
    ),
    "tcl": ReadoutPart(
        TclReadout, "transformers over the recent neighbors of both nodes of a pair, which attend to each other (Wang "
        "et al., TCL, 2021)", sees_neighbors=True, layered=True, of_pairs=True,
    ),
    "tncn": ReadoutPart(
        lambda config, node_width, *further: TncnReadout(
            AttentionReadout(config, node_width, *further), config, node_width
        ),
        "attention, and sums over the common neighbors of both nodes of a pair (Zhang et al., TNCN, 2024)",
        sees_neighbors=True, layered=True, of_pairs=True, sums_common=True,
    ),
    "tpnet": ReadoutPart(
        TpnetReadout, "MLP-Mixer over the recent neighbors of both nodes of a pair, with products of their random "
        "projections of walks (Lu et al., TPNet, 2024)", sees_neighbors=True, layered=True, of_pairs=True,
        reads_walks=True,
    ),
    "cawn": ReadoutPart(
        CawnReadout, "LSTM over sampled walks back in time from both nodes of a pair, without names of nodes (Wang et "
        "al., CAWN, 2021)", sees_neighbors=True, layered=True, of_pairs=True, has_steps=True,
    ),
}  # fmt: skip


def has_kernel(embedding: nn.Module) -> bool:
    """Whether the native layers compute all of this embedding: never for a subclass."""
    whole: Any = embedding
    return (
        choices.has_kernel(embedding, READOUTS)
        and whole.combine is None
        and all(layer.has_kernel for layer in whole.layers)
    )
