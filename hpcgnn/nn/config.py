"""What a temporal model is made of."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.choices import check_choices

EMBEDDINGS = ("attention", "identity", "time_projection", "mixer")
TIME_ENCODINGS = ("fixed", "learnable")
MESSAGES = ("identity", "mlp")
MESSAGE_SOURCES = ("memory", "embedding")
UPDATERS = ("gru", "rnn", "transformer", "none")
AGGREGATORS = ("last", "mean")
DELIVERIES = ("self", "neighbors")
UPDATE_AT = ("owner", "user")
PLACEMENTS = ("sharded", "replicated", "auto")
DECODERS = ("mlp", "pair")


@dataclass
class ModelConfig:
    """The network.

    Attributes:
        class_path: a model class of your own, such as package.module.Class; empty: the parts below.
        embedding: "attention" over neighbours, "identity" (the memory itself), "time_projection" (JODIE's drift with
            the time since the last update) or "mixer" (GraphMixer's over the recent links).
        layers: attention layers; each sees the neighbours' state just before their event.
        memory_dim: width of a node's memory.
        time_dim: width of the time encoding.
        embed_dim: width of an embedding.
        heads: attention heads; must divide embed_dim.
        dropout: of "attention", "time_projection" and "mixer" embeddings, keyed by root and column.
        time_encoding: "fixed" frequencies, or "learnable" ones, which need a time_unit.
        time_unit: time differences are divided by it when the frequencies are learnt; 100 or fewer units should pass
            between neighbouring events.
        learn_phase: whether the phase of fixed frequencies is learnt.
        message: "identity", or "mlp" between mail and updater.
        message_dim: width of the "mlp" message.
        message_from: the other endpoint's part of a mail: its "memory" or (DyRep) its attention "embedding".
        decoder: "mlp" of two embeddings, or "pair", which also sees whether one is among the other's neighbours.
    """

    class_path: str = ""
    embedding: str = "attention"
    layers: int = 1
    memory_dim: int = 100
    time_dim: int = 100
    embed_dim: int = 100
    heads: int = 2
    dropout: float = 0.1
    time_encoding: str = "fixed"
    time_unit: float = 0.0
    learn_phase: bool = False
    message: str = "identity"
    message_dim: int = 100
    message_from: str = "memory"
    decoder: str = "mlp"

    def __post_init__(self):
        check_choices("model", self, {
            "embedding": EMBEDDINGS, "time_encoding": TIME_ENCODINGS, "message": MESSAGES,
            "message_from": MESSAGE_SOURCES, "decoder": DECODERS,
        })  # fmt: skip
        if min(self.memory_dim, self.time_dim, self.embed_dim, self.heads, self.layers, self.message_dim) < 1:
            raise ValueError("model.memory_dim, time_dim, embed_dim, message_dim, heads and layers must be at least 1")
        if self.embed_dim % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.embed_dim ({self.embed_dim})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1), got {self.dropout}")
        if self.time_encoding == "learnable" and not self.time_unit > 0:
            raise ValueError(
                "model.time_encoding learnable needs model.time_unit > 0 (in the data's unit of time, so large that "
                "differences stay below about 100): without it, rounding grows until training is chaotic"
            )
        if self.layers > 1 and self.embedding != "attention":
            raise ValueError(
                f"model.layers is {self.layers}, but model.embedding {self.embedding} has one layer: use "
                "model.layers 1, or embedding attention"
            )

    @property
    def num_hops(self) -> int:
        """Hops of neighbours that an embedding needs."""
        return self.layers if self.embedding in ("attention", "mixer") or self.message_from == "embedding" else 0


@dataclass
class MemoryConfig:
    """Node memory and mailbox.

    Attributes:
        updater: "gru", "rnn", "transformer" (attention over the mailbox), or "none": a model without memory.
        aggregator: which of a node's messages of a batch becomes its mail: the "last", or the "mean" of all.
        mailbox_slots: newest mails kept a node.
        deliver_to: mails go to the event's endpoints ("self"), or also to their sampled "neighbors".
        update_at: "owner" (once per node) or "user" (once per rank that needs the node).
        placement: "sharded" (a rank keeps its own nodes), "replicated" (every rank keeps all nodes; one exchange of the
            winners a step), or "auto": replicated up to replicate_mib.
        replicate_mib: the largest node memory, in MiB, that "auto" replicates.
        staleness: k: a training step reads memory as it was k steps before the newest one, so that k write-backs are
            under way while it computes; 0: exact.
        hot_nodes: share of the nodes, those with most training events, whose memory every rank keeps a copy of.
    """

    updater: str = "gru"
    aggregator: str = "last"
    mailbox_slots: int = 1
    deliver_to: str = "self"
    update_at: str = "owner"
    placement: str = "sharded"
    replicate_mib: int = 64
    staleness: int = 0
    hot_nodes: float = 0.0

    def __post_init__(self):
        check_choices("memory", self, {
            "updater": UPDATERS, "aggregator": AGGREGATORS, "deliver_to": DELIVERIES, "update_at": UPDATE_AT,
            "placement": PLACEMENTS,
        })  # fmt: skip
        if self.mailbox_slots < 1:
            raise ValueError(f"memory.mailbox_slots must be at least 1, got {self.mailbox_slots}")
        if self.mailbox_slots > 1 and self.aggregator == "mean":
            raise ValueError(
                "memory.mailbox_slots > 1 keeps single mails, memory.aggregator mean has only one: use aggregator last"
            )
        if self.mailbox_slots > 1 and self.updater in ("gru", "rnn"):
            raise ValueError(
                f"memory.updater {self.updater} reads one mail, memory.mailbox_slots is {self.mailbox_slots}: use "
                "updater transformer, or one slot"
            )
        if self.placement == "replicated" and not self.simple:
            raise ValueError(
                "memory.placement replicated works with aggregator last, one slot and delivery to self; use sharded"
            )
        if self.placement == "replicated" and self.update_at == "user":
            raise ValueError("memory.placement replicated has no owners to ask: leave memory.update_at owner")
        if self.update_at == "user" and not self.simple:
            raise ValueError(
                "memory.update_at user works with aggregator last, one slot and delivery to self; use update_at owner"
            )
        self._check_staleness()
        self._check_hot_nodes()

    def _check_staleness(self) -> None:
        if self.staleness < 0:
            raise ValueError(f"memory.staleness must be at least 0, got {self.staleness}")
        if self.staleness and self.updater == "none":
            raise ValueError("memory.staleness needs node memory, but memory.updater is none: use staleness 0")
        if self.staleness and not self.simple:
            raise ValueError(
                "memory.staleness works with aggregator last, one slot and delivery to self, where a write replaces "
                "what it was made from: use staleness 0"
            )

    def _check_hot_nodes(self) -> None:
        if not 0 <= self.hot_nodes <= 1:
            raise ValueError(f"memory.hot_nodes is a share of the nodes, in [0, 1], got {self.hot_nodes}")
        if self.hot_nodes == 0:
            return
        if self.updater == "none":
            raise ValueError("memory.hot_nodes copies node memory, but memory.updater is none: leave hot_nodes 0")
        if self.placement != "sharded":
            raise ValueError(
                f"memory.placement {self.placement} keeps whole memories, memory.hot_nodes copies a part: use "
                "placement sharded, or hot_nodes 0"
            )
        if self.staleness:
            raise ValueError("memory.hot_nodes copies exact memory, memory.staleness makes it late: use one of them")
        if not self.simple:
            raise ValueError(
                "memory.hot_nodes works with aggregator last, one slot and delivery to self, as copies learn of a "
                "node's last event only; use hot_nodes 0"
            )

    def replicates(self, mib: float) -> bool:
        """Whether a node memory of that size is kept whole by every rank."""
        fits = self.placement == "auto" and self.simple and self.update_at == "owner" and mib <= self.replicate_mib
        return self.placement == "replicated" or fits

    @property
    def simple(self) -> bool:
        """One mail a node and batch, that of its last event: winners alone send theirs."""
        return self.aggregator == "last" and self.mailbox_slots == 1 and self.deliver_to == "self"
