"""The tasks on static graphs and their metrics: labels of nodes or edges, or links against drawn destinations."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph.directory import Directory, NodeDirectory
from hpcgnn.graph.negative_file import file_of
from hpcgnn.graph.partition import GraphPartition, Relation
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.session import StepTask
from hpcgnn.nn.decoders import DECODERS, DecoderSizes
from hpcgnn.static.config import (
    ALL,
    AMONG_ALL,
    BATCH,
    BOTH_ENDS,
    EDGE,
    EDGE_REGRESSION,
    GIVEN,
    LINK,
    LISTED,
    ONE_END,
    PAIR,
    POOLED,
    REGRESSION,
    SHARED,
    GraphBaselineConfig,
    GraphEvalConfig,
    OneTaskConfig,
    StaticConfig,
)
from hpcgnn.static.given_negatives import NegativePairs, listed_negatives
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.learned_edges import EdgesToLearn, find_edges_to_learn
from hpcgnn.static.paths.known import telling_relations
from hpcgnn.static.paths.task import PathStates, PathTask
from hpcgnn.static.rows.correct_and_smooth import CorrectAndSmooth
from hpcgnn.static.rows.label_propagation import NODE_BASELINES
from hpcgnn.static.rows.propagate import Propagation
from hpcgnn.static.sampling.negatives import End, LinkNegatives, edge_types
from hpcgnn.static.sampling.neighbors import Exclusion
from hpcgnn.static.sampling.queries import QUERY, make_queries
from hpcgnn.static.sampling.seeds import (
    NONE,
    TRAIN,
    Completion,
    LinkSeeds,
    SeedBatches,
    SeedPool,
    known_answers,
    make_pool,
    type_directory,
)
from hpcgnn.static.sampling.times import TIME, check_seed_time
from hpcgnn.static.step import (
    DESTINATION,
    SOURCE,
    GraphEdgeTask,
    GraphLinkTask,
    GraphNodeTask,
    GraphQueryTask,
    QueryOptions,
    ReplacedEnd,
    Rooted,
    label_edges,
    score_ends,
    score_negatives,
)
from hpcgnn.static.whole import FullGraphLinkTask, FullGraphPass, FullGraphQueryTask
from hpcgnn.task.baselines import LINK_BASELINES, LinkBaseline, LinkBaselineConfig, TrainingPairs
from hpcgnn.task.goal import Collected, Goal, Measure, SplitMeasure, measure_classes, measure_links
from hpcgnn.task.labels import (
    Head,
    LabelScores,
    class_weights,
    count_classes,
    has_label,
    is_known,
    labeled_type,
    node_labels,
    node_numbers,
    refuse_words,
)
from hpcgnn.task.links import LinkScores
from hpcgnn.task.losses import LOSSES, make_loss
from hpcgnn.task.metrics import (
    PAIRS,
    POOL,
    QUERIES,
    RANKS,
    QueryRanks,
    check_finite,
    class_metric_names,
    drawn_metrics,
    measured,
    names_of,
    pool_metrics,
    ranking_metrics,
    ranks_of,
    regression_metric_names,
    regression_metrics,
)
from hpcgnn.task.moments import Standard, moments
from hpcgnn.task.negatives import NEGATIVES, UniformDraw, list_ends
from hpcgnn.task.ranking import Candidates

LARGE = 100.0  # numbers of this size train badly unless they are standardized


class StaticGoal(Goal):
    """A task on a static graph. Collective to create. Subclasses set these attributes. pools: the seeds of each split;
    roots: node types and columns that a seed needs. excluded: edges hidden from a step;
    complete: adds negatives to a step's columns. test_messages: the graph that carries messages in the test, None: as
    in training. head: module that scores seeds by the model's outputs, once the model was extended. correct:
    collective, corrects the outputs of all nodes; None: they stay as they are. standard: what the model's outputs are
    standardized by, None: they are the numbers to learn, or something else."""

    pools: dict[str, SeedPool]
    roots: tuple[tuple[int, str], ...]
    head: Any
    correct: CorrectAndSmooth | None = None
    excluded: Exclusion | None = None
    complete: LinkNegatives | None = None
    test_messages: GraphPartition | None = None
    standard: Standard | None = None

    @property
    def by_task(self) -> dict[str, StaticGoal]:
        """The goals of all tasks by name, the main one's empty and first: this one."""
        return {"": self}

    @property
    def training(self) -> tuple[SeedPool, tuple[tuple[int, str], ...], Exclusion | None, Completion | None]:
        """What a loader of training plans: seeds, their roots, the edges to leave out, and what completes columns."""
        return self.pools[SPLITS[0]], self.roots, self.excluded, self.complete

    def read_numbers(self, task: OneTaskConfig, world: World) -> str:
        """Collective. Compute the moments of the numbers to learn, of training, and let outputs be standardized by them
        where the task says so; returns words about them."""
        label, total = self.pools[SPLITS[0]].columns["label"], self.pools[SPLITS[0]].total
        mean, deviation = moments(lambda: [label[:, None]], 1, world)
        self.standard = Standard(mean, deviation) if task.standardize else None
        if total == 0:
            return ""
        is_far = not task.standardize and max(abs(mean.item()), deviation.item()) > LARGE
        use = ", learned standardized" if task.standardize else "; see task.standardize" if is_far else ""
        return f" (mean {mean.item():.4g}, deviation {deviation.item():.4g} in training{use})"

    @abstractmethod
    def make_head(self) -> torch.nn.Module:
        """Make the head, and keep it."""

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """Add the head to the model of this task alone."""
        model.decoder = self.make_head()
        return model

    @abstractmethod
    def task(self, *shared) -> StepTask:
        """Make what executes plans; shared: what GraphTask takes."""

    @abstractmethod
    def exact_scores(
        self, outputs: torch.Tensor, batches: SeedBatches, graph: StaticGraph, between: Callable[[], None]
    ) -> Collected:
        """Collective. Score a split from the model's outputs [n, C] of all local nodes of a graph. ``between`` is
        called on all ranks after every step; what it raises ends the scoring."""


class NodeGoal(StaticGoal):
    """Predicts labels of the nodes of one type: classes, or numbers. several: a node may have any number of classes."""

    def __init__(self, config: StaticConfig, partition: GraphPartition, world: World, channel: Channel):
        self._numbers, task = config.task.kind == REGRESSION, config.task
        with together(world, "read the labels"):
            self.node_type = kind = labeled_type(partition.columns, partition.types, task.node_type, "task.node_type")
            columns, name = partition.columns[kind], partition.types[kind]
            if self._numbers:
                refuse_words(partition.words.get(f"nodes/{name}/label", []), f"the label of {name}")
            label, split = node_numbers(columns, name) if self._numbers else node_labels(columns, name, task.classes)
            check_seed_time(columns, config.sampling.time_column, f"node type {name}")
        self.roots, self._type_name = ((kind, "id"),), name
        self.several = label.ndim == 2
        self.classes = 0 if self._numbers else count_classes(label, task.classes, world)
        self._is_alone, hidden = not task.shares_model, config.model.hidden
        self.num_outputs = (self.classes or 1) if self._is_alone else hidden
        with together(world, "read task.class_weights"):
            weights = class_weights(task.class_weights, self.classes, config.train.dtype, world.device)
        self.sum, self._dtype = make_loss(task, weights), config.train.dtype
        self.pools, labeled = {}, has_label(label)
        ids, flat = partition.global_ids(kind), partition.flat_row[partition.of_type(kind)]
        for number, name in enumerate(SPLITS):
            chosen = np.flatnonzero((split == number) & labeled)
            seeds = {"id": ids[chosen], "label": label[chosen]}
            if TIME in columns:
                seeds[TIME] = columns[TIME][chosen]
            self.pools[name] = make_pool(name, flat[chosen], partition.book.num_nodes, seeds, world, channel)
        self._of_numbers = self.read_numbers(task, world) if self._numbers else ""
        unknown = sum(int((~is_known(pool.columns["label"])).sum()) for pool in self.pools.values())
        self._num_unknown = int(world.total(unknown))  # of several labels a node some

    def make_head(self) -> torch.nn.Module:
        self.head = torch.nn.Identity()
        if not self._is_alone:
            self.head = Head(self.num_outputs, self.num_outputs, self.classes or 1, self.standard)
        return self.head

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """Leave the model as it is: its outputs are scores, or standardized numbers, whose moments it then keeps."""
        self.make_head()
        if self.standard is not None:
            model.standard_target, self.head = self.standard, self.standard.undone
        return model

    def task(self, *shared) -> GraphNodeTask:
        return GraphNodeTask(self.node_type, self.sum, self.head, *shared)

    @torch.no_grad()
    def exact_scores(
        self, outputs: torch.Tensor, batches: SeedBatches, graph: StaticGraph, between: Callable[[], None]
    ) -> Collected:
        """Collective. Score a split's seeds at their owners."""
        pool, partition = self.pools[batches.name], graph.partition
        first = int(partition.book.of_type(self.node_type).starts[partition.rank])
        place = torch.from_numpy(pool.columns["id"] - first).to(outputs.device)
        label = torch.from_numpy(pool.columns["label"]).to(outputs.device)
        collected = self.collector()
        output = self.head(outputs[partition.of_type(self.node_type)][place])
        collected.take(LabelScores(output, label).arrays())
        return collected

    def label_scores(
        self, config: GraphBaselineConfig, graph: StaticGraph
    ) -> tuple[torch.Tensor, dict[str, int]]:  # fmt: skip
        """Collective. Score all local nodes [n, C] by a rule that reads the labels of the training nodes; also returns
        how many nodes of each split no label reaches. Raises DistributedError where labels are not one class a node, or
        where there are none."""
        partition, world = graph.partition, graph.world
        keys = f"baseline.kind {config.kind}", "baseline.relations"
        relations, nodes, labels = self._training_labels(partition, world, config.relations, *keys)
        scores, reached = NODE_BASELINES[config.kind].make(
            partition, graph.channel, relations, config, nodes, labels
        )  # fmt: skip
        shift = self._shift(partition)
        unreached = {
            name: int(world.total(int((~reached[of_split.columns["id"] + shift]).sum())))
            for name, of_split in self.pools.items()
        }
        return scores, unreached

    def correct_by_labels(
        self, config: GraphEvalConfig, partition: GraphPartition, world: World, channel: Channel
    ) -> None:  # fmt: skip
        """Collective. Let outputs of all nodes be corrected by the labels of the training nodes, along edges. Raises
        DistributedError as ``label_scores`` does."""
        keys = "eval.correct_and_smooth", "eval.smooth_relations"
        relations, nodes, labels = self._training_labels(partition, world, config.smooth_relations, *keys)
        hop = Propagation(partition, channel, labels.dtype, relations, self_loop=False)
        of_type = partition.of_type(self.node_type)
        self.correct = CorrectAndSmooth(hop, of_type, nodes, labels, config, world.total)

    def _training_labels(
        self, partition: GraphPartition, world: World, names: list[str], asked_by: str, key: str
    ) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        """Collective. Return the numbers of the relations that labels follow, the ones in ``names`` or all, and the
        local rows [k] of this rank's training nodes with their labels [k, C]: one 1 in each row. asked_by: the key that
        needs them; key: of the names. Raises DistributedError."""
        pool = self.pools[SPLITS[0]]
        problem = f"{asked_by}: there are no training nodes to score by" if pool.total == 0 else ""
        if self.several:
            problem = f"{asked_by} is for one class a node, and {self._type_name} has several"
        if problem:
            raise DistributedError(problem, user_error=True)
        with together(world, asked_by):
            chosen = names or [relation.name for relation in partition.relations]
            relations = [partition.relation_of(name, key) for name in chosen]
        labels = torch.nn.functional.one_hot(torch.from_numpy(pool.columns["label"]), self.classes)
        return relations, torch.from_numpy(pool.columns["id"] + self._shift(partition)), labels.to(self._dtype)

    def _shift(self, partition: GraphPartition) -> int:
        """Return what is added to a global id of the learned type for the local row."""
        kind = self.node_type
        return int(partition.type_start[kind] - partition.book.of_type(kind).starts[partition.rank])

    def collector(self) -> Collected:
        """Collect outputs and labels."""
        return Collected(lambda scores, batches, world: self._measure(scores, world))

    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics of classes, of several labels a node, or of the errors of numbers."""
        return regression_metric_names() if self._numbers else class_metric_names(self.classes, self.several)

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure training as a split is measured."""
        return self.metric_names(), self._measure

    def _measure(self, scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
        """Collective."""
        if self._numbers:
            return regression_metrics(scores["output"].reshape(scores["label"].shape), scores["label"], world)
        return measure_classes(scores, world)

    def describe(self) -> str:
        if self._numbers:
            return f"{self._type_name} labels, a number a node{self._of_numbers}"
        kinds = "classes, several a node" if self.several else "classes"
        unknown = f" ({self._num_unknown} single labels are unknown and left out)" if self._num_unknown else ""
        return f"{self._type_name} labels, {self.classes} {kinds}{unknown}"


def seeds_of(batches: SeedBatches, step: int) -> dict[str, np.ndarray]:
    """Return the columns [s, ...] of this rank's seeds of a step."""
    return {name: column[batches.at(step)] for name, column in batches.columns.items()}


def reach_outputs(outputs: torch.Tensor, nodes: Sequence[np.ndarray], graph: StaticGraph) -> list[Rooted]:
    """Collective. Bring the outputs [n, C] of groups of nodes from their owners, each node's once. nodes: of each group
    global ids [s] or [s, k]. Returns for each group the rows of all [w, C], and its nodes' places in them, [s] or [k,
    s]."""
    ids, place = native.unique_sorted(np.concatenate([ids.ravel() for ids in nodes]))
    (rows,) = Route.plan(graph.partition.book, ids, graph.channel).to(outputs.device).pull(outputs)
    pieces = np.split(place, np.cumsum([ids.size for ids in nodes])[:-1])
    shaped = (torch.from_numpy(at.reshape(ids.shape).T) for at, ids in zip(pieces, nodes, strict=True))
    return [(rows, place.to(outputs.device)) for place in shaped]


def pull_outputs(outputs: torch.Tensor, nodes: Sequence[np.ndarray], graph: StaticGraph) -> list[torch.Tensor]:
    """Collective. Bring the outputs [n, C] of groups of nodes from their owners. nodes: of each group global ids [s] or
    [s, k]; returns [s, C] or [k, s, C] of each."""
    return [rows[place] for rows, place in reach_outputs(outputs, nodes, graph)]


class LabeledEdgesGoal(StaticGoal):
    """Predicts labels of the edges of a relation, classes or numbers, from the outputs at both ends: ``learned``, with
    edges of ``num_edge_types``. Messages follow training edges only, and in a step none of its seeds, unless
    ``task.message_splits`` lets all edges carry them."""

    several = False

    def __init__(self, config: StaticConfig, edges: EdgesToLearn, partition: GraphPartition, world: World):
        """Collective. partition: the graph with the edges of all splits."""
        self._task, self._numbers = config.task, config.task.kind == EDGE_REGRESSION
        self.learned = kind = partition.relation_in_graph(edges.relation)
        self.test_messages = edges.test_messages
        self.num_edge_types, self.excluded, self.pools = edges.edge_types, edges.excluded, edges.seeds.pools
        labels = np.concatenate([pool.columns["label"] for pool in self.pools.values()])
        self.classes = 0 if self._numbers else count_classes(labels, config.task.classes, world)
        with together(world, "read task.class_weights"):
            weights = class_weights(config.task.class_weights, self.classes, config.train.dtype, world.device)
        self.sum, self.num_outputs = make_loss(config.task, weights), config.model.hidden
        self.roots = ((kind.src_type, "src"), (kind.dst_type, "dst"))
        shapes = [partition.edges[edges.relation].columns[name].shape[1:] for name in config.task.edge_columns]
        self.widths = tuple(math.prod(shape) for shape in shapes)
        unlabeled = f" ({edges.num_unlabeled} edges without a label are not learned)" * (edges.num_unlabeled > 0)
        of_numbers = self.read_numbers(config.task, world) if self._numbers else ""
        self._found = of_numbers + unlabeled + _describe_seeds(config, edges.seeds, partition, kind)

    def make_head(self) -> torch.nn.Module:
        width = 2 * self.num_outputs + sum(self.widths)
        self.head = Head(width, self.num_outputs, self.classes or 1, self.standard)
        return self.head

    def task(self, *shared) -> GraphEdgeTask:
        types = self.learned.src_type, self.learned.dst_type
        return GraphEdgeTask(types, self._task.edge_columns, self.sum, self.head, *shared)

    @torch.no_grad()
    def exact_scores(
        self, outputs: torch.Tensor, batches: SeedBatches, graph: StaticGraph, between: Callable[[], None]
    ) -> Collected:
        """Collective. Score a split, a batch at a time."""
        collected = self.collector()
        for step in range(batches.num_steps):
            seeds = seeds_of(batches, step)
            ends = pull_outputs(outputs, [seeds["src"], seeds["dst"]], graph)
            columns = [torch.from_numpy(seeds[name]).to(outputs.device) for name in self._task.edge_columns]
            output = label_edges(self.head, ends, columns)
            collected.take(LabelScores(output, torch.from_numpy(seeds["label"])).arrays())
            between()
        return collected

    def collector(self) -> Collected:
        """Collect outputs and labels."""
        return Collected(lambda scores, batches, world: self._measure(scores, world))

    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics of classes, or of the errors of numbers."""
        return regression_metric_names() if self._numbers else class_metric_names(self.classes)

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure training as a split is measured."""
        return self.metric_names(), self._measure

    def _measure(self, scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
        """Collective."""
        if self._numbers:
            return regression_metrics(scores["output"][:, 0], scores["label"], world)
        return measure_classes(scores, world)

    def describe(self) -> str:
        kind = "a number an edge" if self._numbers else f"{self.classes} classes"
        carried = "all edges carry messages" if self._task.message_splits == ALL else "training edges carry messages"
        return f"labels of {self.learned.name}, {kind}{self._found}, {carried}"


COLUMNS = {SOURCE: "negative_source", DESTINATION: "negative"}
ENDS = {SOURCE: "sources", DESTINATION: "destinations"}
Scorer = tuple[Any, torch.Tensor, torch.Tensor]  # a decoder, rows of candidates [c, Z] and of queries [S, Z]


def _measure_drawn(scores: dict[str, np.ndarray], batches: object, world: World) -> dict[str, float]:
    return drawn_metrics(scores["positive"], scores["negative"], world)


def _measure_ranks(scores: dict[str, np.ndarray], batches: object, world: World) -> dict[str, float]:
    return ranking_metrics(scores["rank"], world)


def _measure_given(scores: dict[str, np.ndarray], batches: object, world: World) -> dict[str, float]:
    check_finite(all(np.isfinite(values).all() for values in scores.values()), world)
    return ranking_metrics(ranks_of(scores["positive"], scores["negative"]), world)


def _measure_pool(scores: dict[str, np.ndarray], batches: object, world: World) -> dict[str, float]:
    return pool_metrics(scores["positive"], scores["negative"], world)


def _measure_queries(scores: dict[str, np.ndarray], batches: object, world: World) -> dict[str, float]:
    return measured(QUERIES, QueryRanks(scores["rank"], scores["query"], world))


# Kinds of scores and the function that measures them, by ``eval.ranking``.
MEASURES: dict[str, tuple[tuple[str, ...], SplitMeasure]] = {
    "": ((PAIRS, RANKS), _measure_drawn), "filtered": ((RANKS,), _measure_ranks),
    "destinations": ((QUERIES,), _measure_queries), POOLED: ((POOL, PAIRS), _measure_pool),
    LISTED: ((RANKS,), _measure_given),
}  # fmt: skip


class LinkGoal(StaticGoal):
    """Predicts whether an edge of a relation exists: ``learned``, with edges of ``num_edge_types``. Messages follow
    training edges only, and in a step none of its seeds."""

    complete: LinkNegatives

    def __init__(
        self, config: StaticConfig, links: EdgesToLearn, partition: GraphPartition, world: World, channel: Channel
    ):
        """partition: the graph with the links of all splits."""
        self._config, self._world, self.sum = config, world, make_loss(config.task)
        self._relation, self.num_edge_types, seeds = links.relation, links.edge_types, links.seeds
        self._reverses = seeds.reverses
        self.learned = kind = partition.relation_in_graph(self._relation)
        self.excluded, self.test_messages = links.excluded, links.test_messages
        self.pools, self.num_outputs = seeds.pools, config.model.hidden
        self._found = _describe_seeds(config, seeds, partition, kind)
        self._replaced = tuple(
            ReplacedEnd(end, (kind.src_type, kind.dst_type)[end], COLUMNS[end])
            for end in ((DESTINATION,) if config.task.negative_ends == ONE_END else (DESTINATION, SOURCE))
        )
        self._together = config.task.negative_ends == PAIR
        negatives = ((place.node_type, place.column) for place in self._replaced)
        self.roots = ((kind.src_type, "src"), (kind.dst_type, "dst"), *negatives)
        self.complete = self._make_negatives(partition, channel)
        self.candidates = self._make_candidates(partition, channel)
        self._pairs: dict[str, NegativePairs] = {}
        self._read_given(partition, channel)
        self._training_edges = self.pools[SPLITS[0]]  # queries may take their place as seeds
        self._queries: QueryOptions | None = None
        if config.task.over_all:
            self._make_queries(partition, channel)

    def _make_queries(self, partition: GraphPartition, channel: Channel) -> None:
        """Collective. Let queries against all nodes be the seeds of training. Raises DistributedError for ends of two
        types that are asked for together, or penalized together."""
        task, kinds = self._config.task, (self.learned.src_type, self.learned.dst_type)
        ends = tuple(place.end for place in self._replaced)
        with together(self._world, "make the queries"):
            if kinds[0] != kinds[1] and (len(ends) > 1 or task.penalty):
                raise ValueError(
                    f"task.loss {task.loss}: {self.learned.name} joins nodes of two types: use task.negative_ends "
                    f"{ONE_END}, and leave out task.penalty"
                )
        several = LOSSES[task.loss].several
        self.pools[SPLITS[0]], self._answers = make_queries(
            partition, self._relation, ends, several, task.answer_power, self._world, channel
        )
        starts = partition.book.of_type(kinds[DESTINATION]).starts
        total, most = int(starts[-1] - starts[0]), int(np.diff(starts).max(initial=1))
        self._queries = QueryOptions(kinds, total, most, task, self._config.train.seed)

    @property
    def training(self) -> tuple[SeedPool, tuple[tuple[int, str], ...], Exclusion | None, Completion | None]:
        if self._queries is None:
            return super().training
        return self.pools[SPLITS[0]], ((self._queries.types[0], QUERY),), None, self._answers

    def _make_negatives(self, partition: GraphPartition, channel: Channel) -> LinkNegatives:
        """Collective."""
        task, evaluation, train = self._config.task, self._config.eval, self._config.train
        training, ends = partition.edges[self._relation].columns["split"] == TRAIN, []
        for number, place in enumerate(self._replaced):
            reverse = place.end == SOURCE
            known_edges = known_answers(partition, self._relation, reverse, training, channel) if task.strict else None
            pool = type_directory(partition, place.node_type, self._world, channel)
            query, answer = ("dst", "src") if reverse else ("src", "dst")
            draw = NEGATIVES[task.negative_kind].make(pool, partial(self._list_ends, pool, answer, partition, channel))
            ownership = partition.book.of_type(place.node_type)
            ends.append(End(query, answer, place.column, number, draw, UniformDraw(pool), ownership, known_edges))
        drawn = task.negatives if task.negative_sharing == EDGE else 0
        counts = task.negatives, evaluation.negatives or drawn or 1
        return LinkNegatives(tuple(ends), task.negative_sharing, *counts, train.batch_size, train.seed, channel)

    def _list_ends(self, pool: NodeDirectory, answer: str, partition: GraphPartition, channel: Channel) -> Directory:
        """Collective. List the ends of the training edges that negatives take the place of, as places in the pool."""
        seeds, num_edges = self.pools[SPLITS[0]].columns, self.learned.num_edges
        nodes = partition.book, partition.flat_row, self._world, channel
        return list_ends(pool, seeds["row"], seeds[answer], num_edges, *nodes)

    def _make_candidates(self, partition: GraphPartition, channel: Channel) -> dict[int, Candidates]:
        """Collective. Make what edges are ranked among, by the end that is predicted."""
        ranking = self._config.eval.ranking
        candidates: dict[int, Candidates] = {}
        if ranking not in AMONG_ALL:
            return candidates
        split = partition.edges[self._relation].columns["split"]
        selected = slice(None) if ranking == "filtered" else split == TRAIN
        for end in (DESTINATION, SOURCE) if ranking == "filtered" else (DESTINATION,):
            known_edges = known_answers(partition, self._relation, end == SOURCE, selected, channel)
            kind = (self.learned.src_type, self.learned.dst_type)[end]
            most = int(np.diff(partition.book.of_type(kind).starts).max(initial=1))
            candidates[end] = Candidates(known_edges, most, end == SOURCE)
        return candidates

    def _read_given(self, partition: GraphPartition, channel: Channel) -> None:
        """Collective. Read the given negatives of validation and test: pairs of this rank, or a column of the seeds."""
        evaluation, unused = self._config.eval, 0
        for name in SPLITS[1:] if evaluation.ranking in GIVEN else ():
            given = evaluation.negatives_file, name, self.learned, partition, self._world, channel
            if evaluation.ranking == POOLED:
                self._pairs[name] = NegativePairs(*given)
                continue
            pool = self.pools[name]
            negatives, more = listed_negatives(given[0], pool, *given[2:])
            self.pools[name] = replace(pool, columns=pool.columns | {COLUMNS[DESTINATION]: negatives})
            unused += more
        if unused and evaluation.negatives_file != file_of(evaluation.negatives_file, "val"):
            self._found += f", {unused} lines of eval.negatives_file are of no edge of their split"

    def make_head(self) -> torch.nn.Module:
        task = self._config.task
        sizes = DecoderSizes(
            self.num_outputs, self.num_edge_types, task.temperature, reciprocal=task.reciprocal, distance=task.distance,
            offset=task.offset,
        )  # fmt: skip
        self.head = DECODERS[task.decoder].make(sizes)
        return self.head

    def task(self, *shared) -> StepTask:
        task = GraphLinkTask if self._queries is None else GraphQueryTask
        return task(*self._scoring(), *shared)

    def whole_task(self, whole: FullGraphPass, graph: StaticGraph, *shared) -> StepTask:
        """Collective. Make what executes plans over the whole graph; shared: what GraphTask takes."""
        if DECODERS[self._config.task.decoder].of_paths:
            telling = telling_relations(
                self._config.task.message_edges, self._relation, self.num_edge_types, len(graph.partition.relations),
                self._reverses,
            )  # fmt: skip
            states = PathStates(whole, self.head, graph, telling, self._config.train.batch_size)
            return PathTask(states, *self._scoring(), *shared)
        task = FullGraphLinkTask if self._queries is None else FullGraphQueryTask
        return task(whole, *self._scoring(), *shared)

    def _scoring(self) -> tuple[Any, ...]:
        """Return what a task needs to score seeds or queries."""
        if self._queries is not None:
            return self._queries, self.sum, self.head, self._world
        types = self.learned.src_type, self.learned.dst_type
        return types, self._replaced, self._together, self.sum, self.head

    @torch.no_grad()
    def exact_scores(
        self, outputs: torch.Tensor, batches: SeedBatches, graph: StaticGraph, between: Callable[[], None]
    ) -> Collected:
        """Collective. Score a split, a batch at a time."""
        if self.candidates:
            return self._rank(outputs, batches, graph, between)
        if self._pairs:
            return self._score_pool(outputs, batches, graph, between)
        collected, is_given = self.collector(), self._config.eval.ranking == LISTED
        replaced = self._replaced[: 1 if is_given else None]
        for step in range(batches.num_steps):
            columns = seeds_of(batches, step) if is_given else self.complete(batches, 0, step)
            names = [name for _, name in self.roots[: 2 + len(replaced)]]
            src, dst, *negatives = reach_outputs(outputs, [columns[name] for name in names], graph)
            relation = torch.from_numpy(columns["rel"]).to(outputs.device) if "rel" in columns else None
            together = self._together and not is_given
            scores = score_negatives(self.head, (src, dst), negatives, replaced, together, relation)
            collected.take(LinkScores.of_ends(score_ends(self.head, src, dst, relation), scores).arrays())
            between()
        return collected

    def _score_pool(
        self, outputs: torch.Tensor, batches: SeedBatches, graph: StaticGraph, between: Callable[[], None]
    ) -> Collected:
        """Collective. Score a split's seeds, and the given pairs."""
        collected, pairs = self.collector(), self._pairs[batches.name]
        size, none = self._config.eval.nodes_per_pass, np.empty(0)

        def score(src: np.ndarray, dst: np.ndarray, relation: np.ndarray | None = None) -> np.ndarray:
            kinds = None if relation is None else torch.from_numpy(relation).to(outputs.device)
            found = self.head(*pull_outputs(outputs, [src, dst], graph), kinds)
            between()
            return found.double().cpu().numpy()

        for step in range(batches.num_steps):
            seeds = seeds_of(batches, step)
            collected.take({"positive": score(seeds["src"], seeds["dst"], seeds.get("rel")), "negative": none})
        for first in range(0, max(self._world.allgather(len(pairs.src))), size):
            part = slice(first, first + size)
            collected.take({"positive": none, "negative": score(pairs.src[part], pairs.dst[part])})
        return collected

    def _rank(
        self, outputs: torch.Tensor, batches: SeedBatches, graph: StaticGraph, between: Callable[[], None]
    ) -> Collected:
        """Collective. Rank a split's seeds among all nodes by the decoder."""
        partition, kinds = graph.partition, (self.learned.src_type, self.learned.dst_type)

        def score(end: int, query: np.ndarray) -> Scorer:
            ids, place = np.unique(query, return_inverse=True)
            (rows,) = Route.plan(partition.book, ids, graph.channel).to(outputs.device).pull(outputs)
            return self.head, outputs[partition.of_type(kinds[end])], rows[torch.from_numpy(place)]

        return self._rank_by(score, batches, graph, between)

    def make_baselines(self, config: LinkBaselineConfig, graph: StaticGraph) -> dict[int, LinkBaseline]:
        """Collective. Make the configured baseline for each end that is predicted. Raises DistributedError without
        training edges."""
        seeds, dtype = self._training_edges, self._config.train.dtype
        if seeds.total == 0:
            raise DistributedError("baseline.kind: there are no training edges to score by", user_error=True)
        ends, make = (seeds.columns["src"], seeds.columns["dst"]), LINK_BASELINES[config.kind].make
        ownership = [graph.partition.book.of_type(kind) for kind in (self.learned.src_type, self.learned.dst_type)]
        assert make is not None
        found = {}
        for end in self.candidates:
            by_role = ends[1 - end], ends[end], edge_types(seeds.columns), ownership[1 - end], ownership[end]
            found[end] = make(TrainingPairs.of_edges(*by_role, self._world, graph.channel, dtype), config)
        return found

    def rank_by_baselines(
        self, baselines: dict[int, LinkBaseline], batches: SeedBatches, graph: StaticGraph, between: Callable[[], None]
    ) -> Collected:
        """Collective. Rank a split's seeds among all nodes by a baseline of each end that is predicted."""
        none = torch.empty(0)
        return self._rank_by(
            lambda end, query: (baselines[end], none, torch.from_numpy(query)), batches, graph, between
        )  # fmt: skip

    def _rank_by(
        self, score: Callable[[int, np.ndarray], Scorer], batches: SeedBatches, graph: StaticGraph,
        between: Callable[[], None],
    ) -> Collected:  # fmt: skip
        """Collective. Rank a split's seeds among all nodes. score: from the number of the end that is predicted and the
        global ids [S] of the other ends, on all ranks alike, makes what ``Candidates.ranks`` scores with."""
        partition, channel, collected = graph.partition, graph.channel, self.collector()
        for step in range(batches.num_steps):
            seeds = seeds_of(batches, step)
            ends_and_types = np.column_stack([seeds["src"], seeds["dst"], edge_types(seeds)])
            columns = np.ascontiguousarray(channel.everyone(torch.from_numpy(ends_and_types)).numpy().T)
            for end, candidates in self.candidates.items():
                query, answer, types = columns[1 - end], columns[end], columns[2]
                ranks = candidates.ranks(*score(end, query), query, types, answer, self._world)
                own = partition.book.locate(query)[0] == partition.rank
                collected.take({"query": query[own], "rank": ranks[own]})
            between()
        return collected

    def collector(self) -> Collected:
        """Collect scores of edges and of their negatives, or ranks."""
        return Collected(MEASURES[self._config.eval.ranking][1])

    def metric_names(self) -> tuple[str, ...]:
        return tuple(name for kind in MEASURES[self._config.eval.ranking][0] for name in names_of(kind))

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure ap and auc of training."""
        return names_of(PAIRS), measure_links

    def describe(self) -> str:
        return f"links of {self.learned.name}{self._found}, {self._describe_negatives()}"

    def _describe_negatives(self) -> str:
        task, size = self._config.task, self._config.train.batch_size
        if self._queries is not None:
            ends = " and ".join(ENDS[place.end] for place in self._replaced)
            return f"queries for {ends} among {self._queries.total} nodes"
        kind = {
            EDGE: f"{task.negatives or 1} negatives each",
            BATCH: f"against the destinations of {min(task.negatives or size, size)} edges of a batch",
            SHARED: f"{task.negatives or size} negatives a batch",
        }[task.negative_sharing]
        drawn = f" ({task.negative_kind})" if task.negative_kind != "uniform" else ""
        ends = {ONE_END: "", BOTH_ENDS: ", at both ends", PAIR: ", pairs of two drawn ends"}[task.negative_ends]
        return ("strict, " if task.strict else "") + kind + drawn + ends


def _describe_seeds(config: StaticConfig, seeds: LinkSeeds, partition: GraphPartition, kind: Relation) -> str:
    """Say what of a relation's edges and their reverses carries no messages, and what does though it tells of held-out
    edges."""
    counts = {
        f"{seeds.num_left_out} edges without a split are left out": seeds.num_left_out,
        f"{seeds.num_repeated} validation and test edges have a copy in training, which carries messages": (
            seeds.num_repeated and config.sends_messages
        ),
        f"{seeds.num_turned} training edges are reverses of validation and test edges and carry no messages": (
            seeds.num_turned
        ),
    }
    found = [text for text, is_said in counts.items() if is_said]
    reverses = [
        f"{'' if count == kind.num_edges else f'of {count} of {kind.num_edges} edges '}in {partition.relations[n].name}"
        for n, count in seeds.reverses.items()
    ]
    said = "no messages" if not config.sends_messages else "no reverses"
    if config.sends_messages and config.task.reverse == NONE:
        said = "reverses carry messages (task.reverse none)"
    said = f"reverses {' and '.join(reverses)}" if reverses else said
    return (f" ({', '.join(found)})" if found else "") + f", {said}"


def make_goal(
    config: StaticConfig, partition: GraphPartition, world: World, channel: Channel, edge_types: int = 0
) -> tuple[StaticGoal, GraphPartition]:
    """Collective. Make the goal that ``task.kind`` names, and the graph whose edges carry messages; edge_types: the
    least number of types of the links."""
    if not config.task.of_edges:
        return NodeGoal(config, partition, world, channel), partition
    edges = find_edges_to_learn(config, partition, world, channel, edge_types)
    return goal_of_edges(config, edges, partition, world, channel), edges.messages


def goal_of_edges(
    config: StaticConfig, edges: EdgesToLearn, partition: GraphPartition, world: World, channel: Channel
) -> StaticGoal:  # fmt: skip
    """Collective. Make the goal of a task on edges; partition: the graph with the edges of all splits."""
    if config.task.kind == LINK:
        return LinkGoal(config, edges, partition, world, channel)
    return LabeledEdgesGoal(config, edges, partition, world)
