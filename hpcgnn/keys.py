"""The keys of run files, read from the sections' classes: for ``--help``, the reference in the docs, and editors."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hpcgnn.choices import tables_of
from hpcgnn.kinds import KINDS
from hpcgnn.train_help import Entry

# Of all keys those that most people use, in this order: what --help shows.
USUAL = (
    "data.path", "task.kind", "task.target", "task.decoder", "task.loss", "task.negatives", "sampling.fanouts",
    "sampling.strategy", "sampling.window_size", "inputs.lags", "memory.updater", "model.kind", "model.readout",
    "model.layers", "model.hidden", "model.dropout", "train.epochs", "train.batch_size", "train.lr", "train.seed",
    "train.full_graph", "train.early_stopping_patience", "eval.ranking", "comm.device", "output.dir",
)  # fmt: skip
# Keys, or beginnings of keys, that a resumed run may change: the answer up to there does not depend on them.
RESUMABLE = ("train.epochs", "train.early_stopping_patience", "train.log_every", "train.log_seconds", "train.progress",
             "train.loggers", "train.profile", "train.cuda_graphs", "train.debug", "train.checkpoint_every",
             "train.checkpoint_minutes", "train.leave_seconds", "sampling.prefetch", "sampling.in_flight",
             "sampling.topology", "sampling.routes", "output.keep", "comm.",
             "memory.placement", "memory.replicate_mib", "memory.hot_ratio", "data.check_hash", "data.path",
             "data.stage_to", "features.cache_ratio", "features.cache_policy")  # fmt: skip
LONGER = ("train.epochs", "train.early_stopping_patience")  # of these, keys that decide when a run ends
# Keys that are fixed for a run, although what it computes does not depend on them.
SAME = ("sampling.plan_on", "memory.update_at", "features.storage", "features.device_ratio", "model.low_memory",
        "eval.negatives_per_pass", "eval.nodes_per_pass", "eval.train_split", "train.train_metrics")  # fmt: skip
TYPES: dict[Any, str] = {int: "integer", float: "number", bool: "true or false", str: "text"}
ENTRY = re.compile(r"^(\w+): (.*)")


@dataclass(frozen=True)
class Key:
    """A key of a section of run files. default: as in YAML; choices: the meaning of each word, "" where the text of the
    key has it; text: the meaning of the key, in sentences."""

    section: str
    field: str
    type: str
    default: Any
    choices: dict[str, str]
    text: str

    @property
    def name(self) -> str:
        """As on the command line, without the dashes."""
        return f"{self.section}.{self.field}"

    @property
    def is_resumable(self) -> bool:
        """Whether a resumed run may change it."""
        return self.name.startswith(RESUMABLE)

    @property
    def changes_answer(self) -> bool:
        """Whether what a run computes depends on it, apart from rounding."""
        is_free = self.is_resumable or self.section == "output" or self.name in SAME
        return self.name in LONGER or not is_free

    @property
    def words(self) -> str:
        """The type in words: its choices where it has any."""
        return ", ".join(name or '""' for name in self.choices) if self.choices else self.type


def keys(kind: str) -> list[Key]:
    """List the keys of runs on a kind of graph, section by section."""
    return [key for name, section in KINDS[kind].config.sections().items() for key in _keys_of(name, section)]


def _keys_of(name: str, section: Any) -> Iterator[Key]:
    texts, hints, tables = attributes(section), get_type_hints(section), tables_of(section)
    values = section()
    for field in dataclasses.fields(section):
        hint, choices = hints[field.name], {}
        if field.name in tables:
            choices = {word: part.says for word, part in tables[field.name].items()}
        elif get_origin(hint) is Literal:
            choices = dict.fromkeys(get_args(hint), "")
        text = texts.get(field.name, "")
        yield Key(name, field.name, _in_words(hint), getattr(values, field.name), choices, text)


def attributes(section: type) -> dict[str, str]:
    """Read what the docstrings of a section's class, and of the classes that it extends, say of each attribute."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        lines = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2].splitlines()
        name = ""
        for line in textwrap.dedent("\n".join(lines)).splitlines():
            if entry := ENTRY.match(line):
                name = entry[1]
                found[name] = entry[2]
            elif name and line.strip():
                found[name] += f" {line.strip()}"
    return found


def _in_words(hint: Any) -> str:
    """Name a type for people."""
    if hint in TYPES:
        return TYPES[hint]
    args = get_args(hint)
    if get_origin(hint) is list:
        return f"list of {_in_words(args[0])}s".replace("texts", "names")
    if get_origin(hint) is dict:
        return f"{_in_words(args[1])} by name"
    if NoneType in args:
        return f"{_in_words(args[0])}, or null"
    return "section" if dataclasses.is_dataclass(hint) else "text"


def shown(value: Any) -> str:
    """Write a value as in a run file."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return '""' if value == "" else str(value)


def entry(key: Key) -> Entry:
    """Write the section of a key, its line and its text, for the help: without the marks of code."""
    default = f"; default {shown(key.default)}" if key.default not in ("", None, [], {}) else ""
    told = "; ".join(f"{name}: {says}" for name, says in key.choices.items() if name and says)
    text = key.text + (f" {told}." if told else "")
    return key.section, f"--{key.name} ({key.words}{default})", text.replace("``", "")


def usual(kind: str) -> list[Key]:
    """List the keys of a kind that most people use."""
    own = {key.name: key for key in keys(kind)}
    return [own[name] for name in USUAL if name in own]
