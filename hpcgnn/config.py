"""The run file: nested typed dataclasses, read from YAML and the command line."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import jsonargparse
import yaml

from hpcgnn.comm.world import CommConfig
from hpcgnn.nn.config import MemoryConfig, ModelConfig
from hpcgnn.nn.graph_config import EMBEDDING, GraphModelConfig
from hpcgnn.nn.snapshot_config import WINDOWED_KINDS, SnapshotModelConfig
from hpcgnn.recipes import expand_recipe, recipe_names
from hpcgnn.run.settings import TrainConfig
from hpcgnn.sample.config import SamplingConfig
from hpcgnn.sample.graph_config import WHOLE, GraphEvalConfig, GraphSamplingConfig
from hpcgnn.sample.protocol import EvalConfig, expand_eval
from hpcgnn.sample.snapshot_config import SnapshotInputConfig, SnapshotSamplingConfig
from hpcgnn.sample.splits import DataConfig
from hpcgnn.store import files
from hpcgnn.store.decode import decode_yaml
from hpcgnn.store.embeddings import EmbeddingConfig
from hpcgnn.store.features import FeatureConfig
from hpcgnn.store.graph_data import GraphDataConfig
from hpcgnn.store.snapshot_data import SnapshotDataConfig
from hpcgnn.tasks.config import TaskConfig
from hpcgnn.tasks.edgebank import BaselineConfig
from hpcgnn.tasks.graph_config import GraphTaskConfig
from hpcgnn.tasks.snapshot_config import SnapshotTaskConfig

# What a resumed run may change: nothing that its answer depends on.
RESUMABLE = ("train.epochs", "train.patience", "train.log_every", "train.log_seconds", "train.progress",
             "train.tensorboard", "train.profile", "train.cuda_graphs", "train.checkpoint_every", "train.leave_seconds",
             "sampling.prefetch", "sampling.in_flight", "sampling.topology", "sampling.routes", "output.keep", "comm.",
             "memory.placement", "memory.replicate_mib", "memory.hot_nodes", "data.check_hash", "data.path",
             "data.stage_to", "features.cache_ratio", "features.cache")  # fmt: skip


@dataclass
class OutputConfig:
    """Where results go.

    Attributes:
        dir: the run folder; empty: runs/tgn-<date>-<time>.
        keep: how many checkpoints to go on from stay, the newest ones; the best epoch's stays in any case.
    """

    dir: str = ""
    keep: int = 2

    def __post_init__(self):
        if self.keep < 1:
            raise ValueError(f"output.keep must be at least 1, got {self.keep}")


class Sections:
    """Nested dataclasses, one a section, as plain dictionaries; ``KIND`` names the kind of graph."""

    KIND = ""
    data: Any
    task: Any
    sampling: Any
    model: Any
    train: TrainConfig
    comm: CommConfig
    output: OutputConfig
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dictionaries, with the kind of graph."""
        return {"kind": self.KIND, **dataclasses.asdict(self)}

    @classmethod
    def sections(cls) -> dict[str, Any]:
        """Classes of the sections by name."""
        return {field.name: field.default_factory for field in dataclasses.fields(cls)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Sections:
        """The inverse of ``to_dict``. Raises ValueError for an unknown section or key."""
        sections, values = cls.sections(), {name: value for name, value in values.items() if name != "kind"}
        unknown = set(values) - set(sections)
        if unknown:
            raise ValueError(
                f"unknown section {', '.join(sorted(map(str, unknown)))}; sections are {', '.join(sections)}"
            )
        try:
            return cls(**{name: sections[name](**(section or {})) for name, section in values.items()})
        except TypeError as error:
            raise ValueError(str(error)) from error


@dataclass
class RunConfig(Sections):
    """A run on a temporal graph."""

    KIND = "temporal"

    data: DataConfig = field(default_factory=DataConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    baseline: BaselineConfig = field(default_factory=BaselineConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self):
        check_time_parallel(self.comm)
        if self.comm.sampler_ranks:
            raise ValueError(
                "comm.sampler_ranks is for static graphs: ranks of a temporal run sample where they keep node memory; "
                "leave it 0"
            )
        if self.sampling.chunks > 1 and self.train.accumulate > 1:
            raise ValueError("sampling.chunks > 1 changes the steps of an epoch, train.accumulate counts them: use one")
        if self.task.has_labels:
            _check_labels(self)
        if not self.model.class_path:
            _check_parts(self.model, self.memory, self.sampling)
        if self.train.epoch_parallel > 1 and self.memory.updater != "none":
            _check_writes(self.model, self.memory, self.sampling)


@dataclass
class StaticConfig(Sections):
    """A run on a static graph, typed or not."""

    KIND = "static"

    data: GraphDataConfig = field(default_factory=GraphDataConfig)
    task: GraphTaskConfig = field(default_factory=GraphTaskConfig)
    sampling: GraphSamplingConfig = field(default_factory=GraphSamplingConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    model: GraphModelConfig = field(default_factory=GraphModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: GraphEvalConfig = field(default_factory=GraphEvalConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self):
        check_time_parallel(self.comm)
        check_epoch_parallel(self.train)
        if self.eval.ranking and (self.task.kind != "link" or self.task.decoder == "mlp"):
            raise ValueError("eval.ranking needs task.kind link, and a task.decoder other than mlp")
        if self.model.kind == EMBEDDING and not self.model.class_path and self.task.kind != "link":
            raise ValueError("model.kind embedding is for task.kind link: use another model.kind")
        if self.task.candidates != "edge" and self.train.train_metrics:
            raise ValueError(f"train.train_metrics needs task.candidates edge, not {self.task.candidates}")
        if self.comm.sampler_ranks and self.sampling.edge_columns:
            raise ValueError("sampling.edge_columns: sampler ranks tell nothing of edges; leave comm.sampler_ranks 0")
        if self.sampling.direction == "out" and self.task.kind == "link":
            raise ValueError("sampling.direction out is for task.kind node: links are learnt along in-edges")
        if self.sampling.mode == WHOLE:
            _check_whole(self)
        elif not self.model.class_path and self.model.layers != len(self.sampling.fanouts):
            raise ValueError(
                f"sampling.fanouts {self.sampling.fanouts} needs one number a layer, and model.layers is "
                f"{self.model.layers}"
            )


@dataclass
class SnapshotConfig(Sections):
    """A run on a snapshot graph."""

    KIND = "snapshots"

    data: SnapshotDataConfig = field(default_factory=SnapshotDataConfig)
    task: SnapshotTaskConfig = field(default_factory=SnapshotTaskConfig)
    sampling: SnapshotSamplingConfig = field(default_factory=SnapshotSamplingConfig)
    inputs: SnapshotInputConfig = field(default_factory=SnapshotInputConfig)
    model: SnapshotModelConfig = field(default_factory=SnapshotModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self):
        check_epoch_parallel(self.train)
        if self.train.cuda_graphs:
            raise ValueError("train.cuda_graphs: steps of snapshots are launched kernel by kernel; leave it false")
        if self.comm.sampler_ranks:
            raise ValueError("comm.sampler_ranks is for static graphs: nothing is sampled of snapshots; leave it 0")
        if self.model.kind in WINDOWED_KINDS and not self.model.class_path and not self.sampling.history:
            raise ValueError(
                f"model.kind {self.model.kind} looks back over a window: set sampling.history to its length, 2 or more"
            )


KINDS: dict[str, type[Sections]] = {config.KIND: config for config in (RunConfig, StaticConfig, SnapshotConfig)}


def check_time_parallel(comm: CommConfig) -> None:
    """Refuse groups of ranks by time where nothing is split so. Raises ValueError."""
    if comm.time_parallel > 1:
        raise ValueError("comm.time_parallel is for graphs of snapshots: leave it 1")


def check_epoch_parallel(train: TrainConfig) -> None:
    """Refuse epochs trained at once where that is not possible. Raises ValueError."""
    if train.epoch_parallel > 1:
        raise ValueError("train.epoch_parallel is for temporal graphs: leave it 1")


def _check_parts(model: ModelConfig, memory: MemoryConfig, sampling: SamplingConfig) -> None:
    """Refuse parts that do not go together. Raises ValueError with the reason."""
    with_memory = memory.updater != "none"
    if not with_memory and model.embedding in ("identity", "time_projection"):
        raise ValueError(
            f"model.embedding {model.embedding} shows node memory, but memory.updater is none: choose an updater, or "
            "embedding attention or mixer"
        )
    if not with_memory and (model.message != "identity" or model.message_from != "memory"):
        raise ValueError(
            "model.message and model.message_from make mails, but memory.updater is none: choose an updater"
        )
    if memory.updater == "transformer" and model.memory_dim % model.heads:
        raise ValueError(
            f"memory.updater transformer: model.heads ({model.heads}) must divide model.memory_dim ({model.memory_dim})"
        )
    if sampling.windows > 1 and (with_memory or model.embedding != "attention"):
        raise ValueError("sampling.windows > 1 needs model.embedding attention and memory.updater none")


def _check_writes(model: ModelConfig, memory: MemoryConfig, sampling: SamplingConfig) -> None:
    """Refuse node memory that differs between the epochs of a round, which share it. Raises ValueError."""
    sampled = sampling.strategy != "recent" or sampling.boundary_half_life > 0
    if model.message_from == "embedding" and (sampled or model.dropout > 0):
        raise ValueError(
            "train.epoch_parallel > 1 needs mails that are the same in all epochs, but model.message_from embedding "
            "sends what dropout and sampled neighbours make of them: use message_from memory, or dropout 0 and "
            "strategy recent without boundary_half_life"
        )
    if memory.deliver_to == "neighbors" and sampled:
        raise ValueError(
            "train.epoch_parallel > 1 needs mails that are the same in all epochs, but memory.deliver_to neighbors "
            "follows sampled neighbours: use deliver_to self, or strategy recent without boundary_half_life"
        )


def _check_whole(config: StaticConfig) -> None:
    """Refuse what only mini-batches know. Raises ValueError."""
    sampling, features = config.sampling, config.features
    named = {
        "task.kind link": config.task.kind == "link",
        "train.cuda_graphs": config.train.cuda_graphs,
        "comm.sampler_ranks": config.comm.sampler_ranks > 0,
        "sampling.edge_columns": sampling.edge_columns,
        "sampling.relation_fanouts": sampling.relation_fanouts,
        "sampling.eval_fanouts": sampling.eval_fanouts,
        f"features.storage {features.storage}": features.storage != "memory",
        "features.cache_ratio": features.cache_ratio > 0,
        "features.wire": features.wire,
    }
    found = ", ".join(name for name, used in named.items() if used)
    if found:
        raise ValueError(f"sampling.mode whole passes over the whole graph: leave out {found}, or use another mode")


def _check_labels(config: RunConfig) -> None:
    """Refuse what only link prediction knows. Raises ValueError."""
    if config.model.decoder == "pair":
        raise ValueError(f"model.decoder pair scores links, task.kind is {config.task.kind}: use decoder mlp")
    if config.baseline.kind:
        raise ValueError(f"baseline.kind scores links, task.kind is {config.task.kind}: leave it empty")
    if config.eval.ranking or config.eval.protocol:
        raise ValueError(f"eval.protocol and eval.negatives are for task.kind link, task.kind is {config.task.kind}")


def parser(program: str, description: str, kind: str = RunConfig.KIND) -> jsonargparse.ArgumentParser:
    """A parser of all configuration keys of runs on a kind of graph, plus ``--config`` and ``--recipe``."""
    result = jsonargparse.ArgumentParser(prog=program, description=description, exit_on_error=False, allow_abbrev=False)
    result.add_argument("--config", action="config", help="YAML file with any of the keys below")
    # Only for --help: `parse` takes it from the command line before the parser sees it.
    result.add_argument(
        "--recipe", default=argparse.SUPPRESS, metavar="NAME",
        help=f"values to begin with, which all other options override: {', '.join(recipe_names())}",
    )  # fmt: skip
    result.add_argument("--kind", choices=tuple(KINDS), default=kind, help="kind of graph, decides on the keys below")
    for name, section in KINDS[kind].sections().items():
        result.add_class_arguments(section, name)
    return result


def kind_of(argv: list[str]) -> str:
    """The kind of graph that a command line, its recipe or the files it names with ``--config`` ask for.

    Raises ValueError.
    """
    argv = expand_recipe(argv)
    found = RunConfig.KIND
    for place, option in enumerate(argv):
        name, equals, value = option.partition("=")
        if not equals:
            value = argv[place + 1] if place + 1 < len(argv) else ""
        if name == "--config" and Path(value).is_file():
            found = (_read_yaml(Path(value)) or {}).get("kind", found)
        elif name == "--kind":
            found = value
    if not isinstance(found, str) or found not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {found!r}")
    return found


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = decode_yaml(path.read_text()) or {}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected sections of keys, got {type(values).__name__}")
    return values


def parse_arguments(result: jsonargparse.ArgumentParser, argv: list[str]) -> jsonargparse.Namespace:
    """What a parser makes of the command line. Raises ValueError for anything misspelt."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return result.parse_args(argv)
    except (jsonargparse.ArgumentError, TypeError, OSError) as error:
        raise ValueError(f"{' '.join(str(error).split())} (see --help)") from error


def parse(result: jsonargparse.ArgumentParser, argv: list[str]) -> tuple[Any, jsonargparse.Namespace]:
    """The configuration and the raw namespace. Raises ValueError for anything misspelt or out of range."""
    namespace = parse_arguments(result, expand_eval(expand_recipe(argv)))
    if "recipe" in namespace:
        raise ValueError("recipe is an option of the command line, not a key of a file: give --recipe")
    config = KINDS[namespace.kind]
    sections = config.sections()
    flat = [name for name, section in vars(namespace).items() if name in sections and not hasattr(section, "as_dict")]
    if flat:
        raise ValueError(f"{flat[0]}: expected a section with keys below it")
    values = {name: section.as_dict() for name, section in vars(namespace).items() if name in sections}
    return config.from_dict(values), namespace


def save(config: Sections, extra: dict[str, Any], path: Path) -> None:
    """Write the resolved configuration as YAML; ``extra`` facts about the run stand above it as comments."""
    lines = [f"# {key}: {value}" for key, value in extra.items()]
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("\n".join(lines) + "\n" + yaml.safe_dump(config.to_dict(), sort_keys=False))
    files.commit(temporary, path)


def load(path: str | os.PathLike) -> Any:
    """Read a saved configuration. Raises ValueError when it is missing or unusable."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; is {path.parent} a run folder?")
    values = _read_yaml(path)
    kind = values.get("kind", RunConfig.KIND)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{path}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    try:
        return KINDS[kind].from_dict(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_resumable(old: Sections, new: Sections) -> None:
    """Refuse to resume with a change that would make it another run. Raises ValueError."""
    if old.KIND != new.KIND:
        raise ValueError(f"the run to resume is on a {old.KIND} graph, not a {new.KIND} one")
    before, after = _flat(old.to_dict()), _flat(new.to_dict())
    fixed = ("train.epochs",) if old.train.bound_to_epochs else ()
    changed = [key for key in before if before[key] != after[key] and (key in fixed or not key.startswith(RESUMABLE))]
    if changed:
        listed = ", ".join(f"{key} ({before[key]} -> {after[key]})" for key in changed)
        raise ValueError(f"a resumed run keeps its identity; not changeable: {listed}. Start a new run instead")


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    sections = {name: keys for name, keys in values.items() if name != "kind"}
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
