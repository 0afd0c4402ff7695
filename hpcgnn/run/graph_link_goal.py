"""Link prediction on static graphs: edges of one relation against drawn destinations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.config import StaticConfig
from hpcgnn.nn.graph_decoders import make_decoder
from hpcgnn.run.full_ranking import FILTERED_NAMES, FULL_NAMES, Candidates, RankCollected
from hpcgnn.run.graph_goal import Goal
from hpcgnn.run.scoring import Collected
from hpcgnn.run.train_scores import LINK_NAMES, Measure, measure_links
from hpcgnn.sample.exclusion import Exclusion
from hpcgnn.sample.link_seeds import TRAIN, LinkSeeds, make_link_seeds, to_sources, type_directory, with_negatives
from hpcgnn.sample.seeds import SeedBatches
from hpcgnn.store.graph_partition import GraphPartition
from hpcgnn.tasks.graph_link import GraphLinkTask, make_loss, score_links
from hpcgnn.tasks.metrics import link_metrics, ranking_metrics, ranks_of
from hpcgnn.tasks.temporal_link import Scores

METRICS = ("ap", "auc", "mrr")


@dataclass(slots=True)
class PairCollected:
    """positive [s] and negative [s, k] scores of this rank's seeds, step after step."""

    positive: list[np.ndarray] = field(default_factory=list)
    negative: list[np.ndarray] = field(default_factory=list)

    def add(self, plan: object, scores: Scores) -> None:
        """Take a step's scores."""
        positive, negative = scores.arrays().values()
        self.positive.append(positive)
        self.negative.append(negative)

    def metrics(self, batches: object, world: World) -> dict[str, float]:
        """Collective. Average precision, ROC AUC, and the mean reciprocal rank of edges among their negatives."""
        positive, negative = np.concatenate(self.positive), np.concatenate(self.negative)
        none = np.zeros(len(positive), bool)
        found = link_metrics(positive, negative, none, world)
        found |= ranking_metrics(ranks_of(positive, negative), none, world)
        return {name: found[name] for name in METRICS}


class LinkGoal(Goal):
    """Whether an edge of a relation exists. Messages follow training edges only, and in a step none of its seeds."""

    def __init__(self, config: StaticConfig, partition: GraphPartition, world: World, channel: Channel):
        self._config, self._world, self._channel = config, world, channel
        relation, seeds = _link_seeds(config, partition, world, channel)
        self._kind = kind = partition.relations[relation]
        self.partition, self.pools, self.num_outputs = seeds.partition, seeds.pools, config.model.hidden
        self._reverses = [partition.relations[number].name for number in seeds.reverses]
        self.roots = ((kind.src_type, "src"), (kind.dst_type, "dst"), (kind.dst_type, "negative"))
        self.excluded = _exclusion(config, seeds)
        self._nodes = type_directory(partition, kind.dst_type, world, channel)
        self._candidates = self._ranked(partition, relation) if config.eval.ranking else ()
        with together(world, "read the edge types"):
            types = _edge_types(partition.edges[relation].columns.get("rel"), kind.name, config.task.decoder)
        self._edge_types = max(world.allgather(types))

    def _ranked(self, partition: GraphPartition, relation: int) -> tuple[tuple[str, str, int, Candidates], ...]:
        """Collective. What is asked for: names of the query's and the answer's column, the answer's type and all its
        nodes."""
        edges, filtered = partition.edges[relation], self._config.eval.ranking == "filtered"
        known = edges if filtered else edges.take(edges.columns["split"] == TRAIN)
        src, dst = known.src, partition.global_ids(self._kind.dst_type)[known.dst]
        types = known.columns["rel"].astype(np.int64) if "rel" in known.columns else np.zeros(len(src), np.int64)
        tails = ("src", "dst", self._kind.dst_type, self._nodes_of(partition, self._kind.dst_type, src, types, dst))
        if not filtered:
            return (tails,)
        src, dst, _, types = to_sources(partition, [src, dst, known.row, types], self._channel)
        return tails, (
            "dst",
            "src",
            self._kind.src_type,
            self._nodes_of(partition, self._kind.src_type, dst, types, src),
        )

    def _nodes_of(self, partition: GraphPartition, kind: int, query, types, node) -> Candidates:
        return Candidates(partition.book.of_type(kind).starts, partition.rank, query, types, node)

    def complete(self, batches: SeedBatches, epoch: int) -> SeedBatches:
        """As in Goal: with the negatives."""
        config = self._config
        count = config.task.negatives if batches.name == "train" else config.eval.negatives or config.task.negatives
        return with_negatives(batches, self._nodes, count, config.train.seed, epoch)

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """As in Goal: the decoder."""
        model.decoder = make_decoder(self._config.task.decoder, self.num_outputs, self._edge_types)
        return model

    def task(self, *shared) -> GraphLinkTask:
        """As in Goal."""
        return GraphLinkTask((self._kind.src_type, self._kind.dst_type), make_loss(self._config.task), *shared)

    @torch.no_grad()
    def exact_scores(self, outputs: torch.Tensor, batches: SeedBatches, model, channel: Channel) -> Collected:
        """As in Goal; a batch at a time."""
        if self._candidates:
            return self._rank(outputs, batches, model.decoder, channel)
        collected = PairCollected()
        for step in range(batches.num_steps):
            columns = {name: column[batches.at(step)] for name, column in batches.columns.items()}
            wanted = [columns[name] for _, name in self.roots]
            ids, place = np.unique(np.concatenate([ids.ravel() for ids in wanted]), return_inverse=True)
            (rows,) = Route.plan(self.partition.book, ids, channel).to(outputs.device).pull(outputs)
            pieces = np.split(place, np.cumsum([ids.size for ids in wanted])[:-1])
            src, dst, negative = (
                rows[torch.from_numpy(at.reshape(ids.shape).T)] for at, ids in zip(pieces, wanted, strict=True)
            )
            relation = torch.from_numpy(columns["rel"]).to(outputs.device) if "rel" in columns else None
            collected.add(None, score_links(model.decoder, src, dst, negative, relation))
        return collected

    def _rank(self, outputs: torch.Tensor, batches: SeedBatches, decoder, channel: Channel) -> RankCollected:
        """Collective. Ranks of a split's seeds among all nodes."""
        partition, world = self.partition, self._world
        collected = RankCollected(self._config.eval.ranking == "filtered")
        for step in range(batches.num_steps):
            at = batches.at(step)
            mine = {name: batches.columns[name][at] for name in ("src", "dst")}
            mine["rel"] = batches.columns["rel"][at] if "rel" in batches.columns else np.zeros_like(mine["src"])
            columns = {name: np.concatenate(world.allgather(values)) for name, values in mine.items()}
            for asking, asked, kind, candidates in self._candidates:
                query = columns[asking]
                ids, place = np.unique(query, return_inverse=True)
                (rows,) = Route.plan(partition.book, ids, channel).to(outputs.device).pull(outputs)
                found = candidates.ranks(
                    decoder, outputs[partition.of_type(kind)], rows[torch.from_numpy(place)], query, columns["rel"],
                    columns[asked], world,
                )  # fmt: skip
                own = partition.book.locate(query)[0] == partition.rank
                collected.query.append(query[own])
                collected.rank.append(found[own])
        return collected

    def collector(self) -> PairCollected:
        """As in Goal."""
        return PairCollected()

    def metric_names(self) -> tuple[str, ...]:
        """As in Goal."""
        return {"": METRICS, "filtered": FILTERED_NAMES, "full": FULL_NAMES}[self._config.eval.ranking]

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """ap and auc."""
        return LINK_NAMES, measure_links

    def describe(self) -> str:
        """As in Goal."""
        reverses = f", reverses in {' and '.join(self._reverses)}" if self._reverses else ", no reverses"
        return f"links of {self._kind.name}{reverses}, {self._config.task.negatives} negatives each"


def message_graph(
    config: StaticConfig, partition: GraphPartition, world: World, channel: Channel
) -> tuple[GraphPartition, Exclusion]:
    """Collective. The edges that carry messages, and those of them that steps leave out."""
    _, seeds = _link_seeds(config, partition, world, channel)
    return seeds.partition, _exclusion(config, seeds)


def _link_seeds(config: StaticConfig, partition: GraphPartition, world: World, channel) -> tuple[int, LinkSeeds]:
    """Collective. The relation to learn, and its seeds."""
    with together(world, "choose the relation"):
        relation = _split_relation(partition, config.task.relation)
    return relation, make_link_seeds(partition, relation, config.task.reverse, world, channel)


def _exclusion(config: StaticConfig, seeds: LinkSeeds) -> Exclusion:
    return Exclusion(seeds.edges, seeds.pools["train"].total, config.train.batch_size)


def _split_relation(partition: GraphPartition, name: str) -> int:
    """The relation to learn. Raises ValueError."""
    if name:
        return partition.relation_of(name)
    split = [number for number, edges in enumerate(partition.edges) if "split" in edges.columns]
    if len(split) != 1:
        found = ", ".join(partition.relations[number].name for number in split) or "none"
        raise ValueError(f"task.relation must name the relation to learn; with a column split: {found}")
    return split[0]


def _edge_types(rel: np.ndarray | None, name: str, decoder: str) -> int:
    """How many edge types this rank knows of. Raises ValueError."""
    if rel is None:
        if decoder == "distmult":
            raise ValueError(f"task.decoder distmult needs edge types: relation {name} has no column rel")
        return 1
    if rel.dtype.kind not in "iu" or np.any(rel < 0):
        raise ValueError(f"column rel of relation {name} must hold edge types, integers from 0 on")
    return int(rel.max(initial=0)) + 1
