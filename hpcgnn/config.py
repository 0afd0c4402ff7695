"""Reads and writes run files: nested typed dataclasses, from YAML and the command line."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import difflib
import io
import json
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hpcgnn.choices import ON, check_choice
from hpcgnn.each import EACH, SHARED
from hpcgnn.graph import durable
from hpcgnn.graph.decode import decode_yaml
from hpcgnn.keys import RESUMABLE, entry, keys, usual
from hpcgnn.kinds import DEFAULT_KIND, KINDS
from hpcgnn.loop.settings import Sections, TrainConfig
from hpcgnn.loop.sweep_file import read_sweep
from hpcgnn.recipes import expand_recipe
from hpcgnn.train_help import RECIPES, page

if TYPE_CHECKING:
    import jsonargparse

# How jsonargparse refuses a word that is not among those of a Literal, a value of another type, and a key.
NOT_A_WORD = re.compile(r'Parser key "(\S+)": Expected a typing\.Literal(\[.*?\])\. Got value: (.*)')
TYPE = r"<class '(int|float|bool|str|list|dict)'>"
NOT_OF_TYPE = re.compile(rf'Parser key "(\S+)": Expected a {TYPE}\. Got value:(.*)')
NOT_OF_ANY_TYPE = re.compile(rf'Parser key "(\S+)": Does not validate .*?{TYPE}.* Given value: (.*)')
NOT_A_FILE = re.compile(r'Parser key "config": (?:File does not exist|Path is not a file): \'(.*)\'')
NOT_A_SECTION = re.compile(r'Parser key "(\S+)": Unable to load config')
OF_ANOTHER = re.compile(r'Parser key "(\S+)": Problem with given class_path \S+ (.*)')
NOT_SECTIONS = re.compile(r'Parser key "(\S+)": Not a valid subclass of \S+ Got value: (\S+)')
# How a key that takes one value is refused, in the words of this package, when it was given several.
SEVERAL = re.compile(r"([a-z_]+\.[a-z_]+) must be (?!a list).*, got ('.+'|\".+\"|\[.+\])")
NOT_A_KEY = (
    re.compile(r"unrecognized arguments: (--[^\s=]+)"), re.compile(r"Group '(.+)' does not accept option '(.+)'"),
    re.compile(r"Option '(.+)' is not accepted"),
)  # fmt: skip
# By key, what other systems, papers and older clones call it.
WORDS = {
    "train.loggers": "tensorboard wandb mlflow logger", "train.train_metrics": "train_split",
    "model.hidden": "embed_dim hidden_dim hidden_channels num_hidden embedding_dim",
    "model.layers": "num_layers n_layers", "model.heads": "num_heads n_heads n_head", "model.edge_weights": "weighted",
    "memory.dim": "memory_dim", "memory.hot_ratio": "hot_nodes", "model.readout": "embedding",
    "node_embedding.dim": "embedding",
    "sampling.fanouts": "num_neighbors n_degree neighbors", "sampling.strategy": "mode replace weighted",
    "sampling.plan_on": "planner", "sampling.window_size": "history lookback seq_len",
    "sampling.halo_ratio": "boundary", "sampling.remote_half_life": "boundary_half_life",
    "task.forecast_steps": "steps out_len pred_len", "task.negative_sharing": "candidates",
    "task.negative_ends": "both_ends", "baseline.window_ratio": "share", "baseline.l2": "reg regularization ridge",
    "baseline.decay_time": "half_life tau", "baseline.batch_decay": "decay",
    "eval.negatives": "eval_negatives", "eval.ranking": "eval_pairs",
    "eval.negatives_per_pass": "chunk", "eval.nodes_per_pass": "chunk",
    "data.split_by": "split splits",
    "train.epochs": "num_epochs n_epochs max_epochs", "train.lr": "learning_rate", "train.batch_size": "bs batchsize",
    "train.early_stopping_patience": "early_stopping tolerance", "train.step_every": "step_epochs",
    "train.clip_grad_norm": "clip_norm max_grad_norm gradient_clip_val",
    "train.accumulate_steps": "gradient_accumulation_steps accumulate_grad_batches",
    "train.parallel_epochs": "epoch_parallel minibatch_parallel",
    "comm.ranks_per_machine": "node_ranks ranks_per_node ntasks_per_node", "comm.time_groups": "time_parallel",
    "comm.sampling_servers": "sampler_ranks num_samplers num_servers", "comm.server_features": "sampler_features",
    "comm.server_buffer": "sampler_buffer",
}  # fmt: skip
PLAIN = re.compile(r"[\w.+-]+")
TYPES = {
    "int": "an integer", "float": "a number", "bool": "true or false", "str": "text", "list": "a list",
    "dict": "names with a value each",
}  # fmt: skip


def parser(program: str, description: str, kind: str = DEFAULT_KIND) -> jsonargparse.ArgumentParser:
    """Make a parser of all configuration keys of runs on a kind of graph, plus ``--config`` and ``--recipe``. Its help
    shows the keys that most people use, ``--help_all`` all of them."""
    import jsonargparse  # here, as only rank 0 parses, and loading it takes 0.1 s of a core

    result = jsonargparse.ArgumentParser(prog=program, description=description, exit_on_error=False, allow_abbrev=False)
    add_help_all(result, "show all keys of runs on this kind of graph", lambda: page(help_document(result, kind), True))
    result.format_help = lambda *_: page(help_document(result, kind), False) + "\n"  # type: ignore[method-assign]
    result.add_argument("--config", action="config", help="YAML file with any of the keys below")
    printing = next(action for action in result._actions if "--print_config" in action.option_strings)
    printing.help = "print all keys with their values, in the form of a run file, and exit"
    # Only for --help: `parse` takes it from the command line before the parser sees it.
    result.add_argument(
        "--recipe", default=argparse.SUPPRESS, metavar="NAME",
        help=f"values to begin with, which all other options override: {RECIPES}",
    )  # fmt: skip
    result.add_argument("--kind", choices=tuple(KINDS), default=kind, help="kind of graph, which sets the keys below")
    for name, section in KINDS[kind].config.sections().items():
        result.add_class_arguments(section, name)
    return result


def add_help_all(parser: argparse.ArgumentParser, text: str, everything: Callable[[], str]) -> None:
    """Add the option ``--help_all``, with the help ``text``; it prints ``everything()``."""

    class HelpAll(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
            print(everything())
            parser.exit()

    parser.add_argument("--help_all", "--help-all", action=HelpAll, nargs=0, default=argparse.SUPPRESS, help=text)


def help_document(result: jsonargparse.ArgumentParser, kind: str) -> dict[str, Any]:
    """Collect the texts of a command's help, for ``train_help.page``: its own options, and the keys of runs, of which
    ``usual`` has the places of those that most people use."""
    everything = keys(kind)
    sections, options = {key.section for key in everything}, []
    for action in result._actions:
        names = [name for name in action.option_strings if name.startswith("--") and "-" not in name[2:]]
        if not names or action.help == argparse.SUPPRESS or names[0][2:].partition(".")[0] in sections:
            continue
        choices = ", ".join(map(str, action.choices or ()))
        default = "" if action.default in (None, "", False, [], argparse.SUPPRESS) else f"default {action.default}"
        note = "; ".join(filter(None, (choices, default)))
        options.append([", ".join(names) + f" ({note})" * bool(note), action.help or ""])
    says = re.sub(r"^``[^`]*``: ", "", (result.description or "").strip()).replace("``", "")
    names = [key.name for key in everything]
    return {
        "program": result.prog, "kind": kind, "says": says[:1].upper() + says[1:], "options": options,
        "keys": [list(entry(key)) for key in everything], "usual": [names.index(key.name) for key in usual(kind)],
    }  # fmt: skip


def kind_of(argv: list[str], kind: str = DEFAULT_KIND) -> str:
    """Find the kind of graph that a command line names, or its recipe, or its ``--config`` files; ``kind``, where none
    does. Raises ValueError."""
    argv = expand_recipe(argv)
    for place, option in enumerate(argv):
        name, equals, value = option.partition("=")
        if not equals:
            value = argv[place + 1] if place + 1 < len(argv) else ""
        if name == "--config" and Path(value).is_file():
            kind = (_read_yaml(Path(value)) or {}).get("kind", kind)
        elif name == "--kind":
            kind = value
    check_choice("kind", kind, tuple(KINDS))  # a tuple: a file may give a list, which a dictionary cannot look up
    return kind


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = decode_yaml(path.read_text()) or {}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected sections of keys, got {type(values).__name__}")
    return values


def parse_arguments(result: jsonargparse.ArgumentParser, argv: list[str]) -> jsonargparse.Namespace:
    """Parse the command line. Raises ValueError for what the parser does not accept."""
    import jsonargparse

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return result.parse_args(argv)
    except BrokenPipeError:  # of what prints the help
        raise
    except (jsonargparse.ArgumentError, TypeError, OSError) as error:
        message, within = " ".join(str(error).split()), ""
        if outer := OF_ANOTHER.search(message):  # a section among those of a key
            within, message = f"{outer[1]}: ", outer[2]
        if refused := NOT_A_WORD.search(message):
            name, words = within + refused[1], ast.literal_eval(refused[2])
            if ON in words and refused[3] in ("True", "False"):
                raise ValueError(f'{name}: YAML reads on and off as true and false; write "on" or "off"') from error
            check_choice(name, refused[3], words)  # raises, in the words of this package
        raise ValueError(within + _in_words(message, result)) from error


def _in_words(message: str, result: jsonargparse.ArgumentParser) -> str:
    """Say what jsonargparse refused: which key, its value, what is expected, or which keys come near."""
    if refused := NOT_A_FILE.search(message):
        return f"--config: no file {refused[1]}"
    if refused := NOT_A_SECTION.search(message):
        return f"{refused[1]} is a section: give its keys, as --{refused[1]}.KEY (see --help)"
    if refused := NOT_SECTIONS.search(message):
        return f"{refused[1]}: each name needs a section with keys below it, got {refused[2]}"
    if refused := NOT_OF_TYPE.search(message) or NOT_OF_ANY_TYPE.search(message):
        key, kind, value = refused[1], TYPES[refused[2]], refused[3].strip()
        is_list = isinstance(result.get_defaults().get(key), (list, tuple)) and refused[2] not in ("list", "dict")
        return f"{key} must be {'a list, each entry ' * is_list}{kind}, got {value!r}"
    unknown = next((".".join(found.groups()) for pattern in NOT_A_KEY if (found := pattern.search(message))), "")
    if not unknown:
        return f"{message} (see --help)"
    dashes, name = "--" * unknown.startswith("--"), unknown.removeprefix("--")
    keys = list(result.get_defaults().keys())
    close = nearest(name, keys)
    meant = f"; did you mean {' or '.join(dashes + key for key in close)}?" if close else ""
    return f"no {'option' if dashes else 'key'} {unknown}{meant} (see --help)"


def nearest(name: str, keys: Collection[str]) -> list[str]:
    """The keys that a name which is none of them may mean: of another section, by another system's word, as a part of
    their name, or by its letters."""
    last = name.rpartition(".")[2]
    by_last = {key: key.rpartition(".")[2] for key in keys}
    return (
        [key for key, own in by_last.items() if own == last]
        or [key for key in by_last if last in WORDS.get(key, "").split()]
        or [key for key, own in by_last.items() if f"_{last}_" in f"_{own}_"]
        or difflib.get_close_matches(name, keys, n=1)
    )


def parse(result: jsonargparse.ArgumentParser, argv: list[str]) -> tuple[Any, jsonargparse.Namespace]:
    """Read the configuration and the namespace of all options. Raises ValueError for what is misspelt or out of
    range."""
    try:
        return _parse(result, argv)
    except ValueError as error:
        starts = EACH in result._option_string_actions and not any(word.startswith("--resume") for word in argv)
        if starts and (remedy := _for_each(str(error))):
            raise ValueError(f"{error}{remedy}") from error
        raise


def _for_each(refusal: str) -> str:
    """Return the remedy for a key that takes one value and was given several: a run for each; empty: it was not."""
    refused = SEVERAL.fullmatch(refusal)
    if not refused or refused[1].startswith(SHARED):
        return ""
    values = [value.strip(" '\"") for value in refused[2].strip("'\"[] ").split(",")]
    if len(set(values)) < max(2, len(values)) or not all(map(PLAIN.fullmatch, values)):
        return ""
    return f"; for a run with each value: {EACH} {refused[1]}={','.join(values)}"


def _parse(result: jsonargparse.ArgumentParser, argv: list[str]) -> tuple[Any, jsonargparse.Namespace]:
    namespace = parse_arguments(result, KINDS[result.get_default("kind")].expand(expand_recipe(argv)))
    for option in ("recipe", "each", "groups"):
        if option in namespace:
            raise ValueError(f"{option} is an option of the command line, not a key of a file: give --{option}")
    config = KINDS[namespace.kind].config
    sections = config.sections()
    flat = [name for name, section in vars(namespace).items() if name in sections and not hasattr(section, "as_dict")]
    if flat:
        raise ValueError(f"{flat[0]}: expected a section with keys below it")
    values = {name: section.as_dict() for name, section in vars(namespace).items() if name in sections}
    return config.from_dict(values), namespace


def save(config: Sections, extra: dict[str, Any], path: Path) -> None:
    """Write the resolved configuration as YAML; ``extra`` facts about the run stand above it as comments."""
    lines = [f"# {key}: {' '.join(str(value).splitlines())}" for key, value in extra.items()]  # names may be anything
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("\n".join(lines) + "\n" + yaml.safe_dump(config.to_dict(), sort_keys=False))
    durable.commit(temporary, path)


def load(path: str | os.PathLike) -> Any:
    """Read a saved configuration. Raises ValueError when it is missing or unusable."""
    path = Path(path)
    if not path.is_file():
        if path.parent.is_file() or (path.parent / "book.h5").exists():
            raise ValueError(f"{path.parent}: no run folder; hpcgnn inspect describes graphs and their parts")
        if sweep := read_sweep(path.parent):
            raise ValueError(f"{path.parent} has several runs: name one, such as {path.parent / next(iter(sweep[1]))}")
        raise ValueError(f"{path}: no such file; is {path.parent} a run folder?")
    values = _read_yaml(path)
    kind = values.get("kind", DEFAULT_KIND)
    try:
        check_choice("kind", kind, tuple(KINDS))
        return KINDS[kind].config.from_dict(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_resumable(old: Sections, new: Sections) -> None:
    """Refuse to resume with a change that would make it another run. Raises ValueError."""
    if old.KIND != new.KIND:
        raise ValueError(f"the run to resume is on a {old.KIND} graph, not a {new.KIND} one")
    if changed := _changed(old.to_dict(), new, old.train):
        raise ValueError(
            f"these keys cannot change when a run is resumed: {changed}. Start a new run instead, such as "
            "with the weights of this one: --init RUN"
        )


def check_recorded(recorded: dict[str, Any], config: Sections, path: Path, checkpoint: str) -> None:
    """Refuse a configuration, read from ``path``, that is not the one ``recorded`` in a checkpoint of the run, but for
    keys that a resumed run may change. Raises ValueError that names the others."""
    epochs = recorded.get("train", {}).get("epochs", config.train.epochs)
    if changed := _changed(recorded, config, dataclasses.replace(config.train, epochs=epochs)):
        raise ValueError(
            f"{path} is not the configuration that {checkpoint} was trained with: {changed}. Put these keys back as "
            "they were, or start a new run"
        )


def _changed(old: dict[str, Any], new: Sections, old_train: TrainConfig) -> str:
    """List the keys whose change would make another run, with their values, as far as both have them."""
    before, after = _flat(old), _flat(new.to_dict())
    fixed = ("train.epochs",) if old_train.bound_to_epochs else ()
    changed = [
        key for key in before
        if key in after and before[key] != after[key] and (key in fixed or not key.startswith(RESUMABLE))
    ]  # fmt: skip
    return ", ".join(f"{key} ({before[key]} -> {after[key]})" for key in changed)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Name the keys of all sections as the command line does, as JSON has their values."""
    sections = {name: keys for name, keys in json.loads(json.dumps(values)).items() if isinstance(keys, dict)}
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
