"""The sampler of static steps: from a batch's roots to layered blocks and the routes to their input rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.native import Random, Stream
from hpcgnn.nn.message_blocks import Adjacency, Batch, Block
from hpcgnn.sample.exclusion import Exclusion
from hpcgnn.sample.graph_config import FULL, GraphSamplingConfig
from hpcgnn.sample.graph_neighbors import NeighborSampler
from hpcgnn.sample.seeds import SeedBatches
from hpcgnn.store.features import Fetch, NodeRows
from hpcgnn.store.graph_partition import GraphPartition

Groups = list[tuple[int, np.ndarray]]  # of root nodes: their type, global ids


@dataclass(slots=True)
class GraphPlan:
    """One step. batch_size: seeds of all ranks; roots: positions of the seeds' nodes among the last block's destination
    nodes of their type, a tensor for each of the sampler's ``roots``, [s] or as wide as its column; position [s] of the
    seeds in the epoch; columns [s, ...] of the seeds; fetches: by node type, where the input rows come from."""

    step: int
    epoch: int
    batch_size: int
    roots: tuple[torch.Tensor, ...]
    position: np.ndarray
    columns: dict[str, torch.Tensor]
    batch: Batch
    fetches: tuple[Fetch, ...]
    final: bool = True


class GraphSampler:
    """Plans steps. Planning is collective over the plan channel; the fetches move rows over ``move_channel``.

    roots: groups of nodes that a seed needs, as (node type, column of the batches with their global ids); excluded:
    edges that steps of training leave out.
    """

    def __init__(
        self, partition: GraphPartition, rows: tuple[NodeRows, ...], config: GraphSamplingConfig, seed: int,
        roots: tuple[tuple[int, str], ...], channel: Channel, move_channel: Channel, device: torch.device,
        threads: int = 1, excluded: Exclusion | None = None, neighbors: type[NeighborSampler] = NeighborSampler,
    ):  # fmt: skip
        """neighbors: the sampling method, a class that is made as NeighborSampler is."""
        self._partition, self._rows, self._config, self._seed = partition, rows, config, seed
        self._roots, self._channel, self._move_channel, self._device = roots, channel, move_channel, device
        self._neighbors = neighbors(partition, config.mode, channel, threads, excluded=excluded)
        base = partition.book.type_base()
        self._base = base
        self._relabel = [native.Relabel(int(count)) for count in np.diff(base)]

    def plan(self, batches: SeedBatches, epoch: int, step: int) -> GraphPlan:
        """Collective. The plan of one step."""
        mine, training = batches.at(step), batches.name == "train"
        columns = {name: column[mine] for name, column in batches.columns.items()}
        named = [(kind, columns.pop(name)) for kind, name in self._roots]
        places, blocks = self._blocks([(kind, ids.ravel()) for kind, ids in named], epoch, step, training)
        roots = [place.reshape(ids.shape) for place, (_, ids) in zip(places, named, strict=True)]
        unique = self._wanted()
        plans = [rows.plan(ids, self._channel) for rows, ids in zip(self._rows, unique, strict=True)]
        known = {name: [rows.fetch(plan, name).to(self._device) for rows, plan in zip(self._rows, plans, strict=True)]
                 for name in ("identity", "degree")}  # fmt: skip
        batch = Batch(
            blocks, tuple(known["identity"]), tuple(known["degree"]), self._seed, epoch, step, training
        )  # fmt: skip
        return GraphPlan(
            step, epoch, int(batches.sizes[step]), tuple(map(self._move, roots)), batches.position[mine],
            {name: self._move(column) for name, column in columns.items()}, batch,
            tuple(plan.over(self._move_channel).to(self._device) for plan in plans),
        )  # fmt: skip

    def wanted(self, batches: SeedBatches, epoch: int, step: int) -> list[np.ndarray]:
        """Collective. Global ids of the nodes whose rows a step wants, by type; nothing is fetched."""
        groups = [(kind, batches.columns[name][batches.at(step)].ravel()) for kind, name in self._roots]
        self._blocks(groups, epoch, step, batches.name == "train")
        return self._wanted()

    def _wanted(self) -> list[np.ndarray]:
        return [self._unique(t) for t in range(len(self._relabel))]

    def _blocks(
        self, groups: Groups, epoch: int, step: int, training: bool
    ) -> tuple[list[np.ndarray], tuple[Block, ...]]:
        """Collective. Positions of the roots and the blocks, hop by hop."""
        for relabel in self._relabel:
            relabel.begin()
        stream, blocks = Stream.NEIGHBOR if training else Stream.EVAL_NEIGHBOR, []
        fanouts_by_hop = self._fanouts(training)
        if self._neighbors.alone and all(fanouts[0] for fanouts in fanouts_by_hop):
            return self._whole_blocks(groups, [fanouts[0] for fanouts in fanouts_by_hop], stream, epoch, step)
        roots = self._places(groups)
        for hop, fanouts in enumerate(fanouts_by_hop):
            frontier = self._wanted()
            answers = self._neighbors.ask(frontier, fanouts, Random(self._seed, stream, step, epoch, hop))
            relations = tuple(
                self._adjacency(r, sampled) for r, (sampled, fanout) in enumerate(zip(answers, fanouts, strict=True))
                if fanout != 0
            )  # fmt: skip
            sizes = tuple(len(relabel.unique) for relabel in self._relabel)
            blocks.append(Block(relations, sizes, tuple(len(ids) for ids in frontier)))
        return roots, tuple(reversed(blocks))

    def _whole_blocks(self, groups: Groups, fanouts: list[int], stream: Stream, epoch: int, step: int):
        """As ``_blocks``, of a graph of one type and one relation that lies here as a whole."""
        random, (relabel,) = Random(self._seed, stream, step, epoch), self._relabel
        ids = np.concatenate([ids for _, ids in groups])
        drawn = self._neighbors.layers(ids, fanouts, random, relabel)
        sizes = [len(offsets) - 1 for offsets, _ in drawn] + [len(relabel.unique)]
        blocks = [
            Block((Adjacency(0, 0, 0, self._move(offsets), self._move(source.astype(np.int64))),), (inner,), (outer,))
            for (offsets, source), outer, inner in zip(drawn, sizes, sizes[1:], strict=False)
        ]
        return self._places(groups), tuple(reversed(blocks))

    def _places(self, groups: Groups) -> list[np.ndarray]:
        """Positions of the roots among the unique nodes of their type, which they join."""
        return [self._relabel[kind].add(ids - self._base[kind]).astype(np.int64) for kind, ids in groups]

    def _fanouts(self, training: bool) -> list[list[int]]:
        """By hop, by relation."""
        config = self._config
        usual = config.fanouts if training or not config.eval_fanouts else config.eval_fanouts
        if config.mode == "full":
            usual = [FULL] * len(usual)
        names = [relation.name for relation in self._partition.relations]
        return [[config.relation_fanouts.get(name, usual)[hop] for name in names] for hop in range(len(usual))]

    def _adjacency(self, relation: int, sampled) -> Adjacency:
        kind = self._partition.relations[relation]
        source = self._relabel[kind.src_type].add(sampled.source - self._base[kind.src_type]).astype(np.int64)
        return Adjacency(relation, kind.src_type, kind.dst_type, self._move(sampled.indptr), self._move(source))

    def _unique(self, node_type: int) -> np.ndarray:
        """Global ids so far of a type; a copy."""
        return self._relabel[node_type].unique + self._base[node_type]

    def _move(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
