"""A run folder in words: what it trained on, how far it came, which checkpoints are whole."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from hpcgnn import config as configuration
from hpcgnn.config import RunConfig, Sections
from hpcgnn.run.checkpoint import MANIFEST, STATE, check_files, read_manifest
from hpcgnn.run.logs import read_lines
from hpcgnn.run.trainer import headline


def describe_run(folder: Path, check: bool) -> tuple[list[str], list[str]]:
    """Lines of text, and those of them that name damaged checkpoints; with ``check`` every file's hash is compared,
    else only its size.

    Raises ValueError or OSError for a folder that holds no run.
    """
    config = configuration.load(folder / "config.yaml")
    lines = [
        f"{folder}: {config.KIND} graph {config.data.path or '(built in)'}, task {config.task.kind}, "
        f"model {model_name(config)}, {config.train.epochs} epochs, seed {config.train.seed}"
    ]
    try:
        lines += _results(folder)
    except (LookupError, TypeError) as error:
        raise ValueError(f"{folder / 'metrics.jsonl'}: {error}; not written by hpcgnn") from error
    problems = []
    found = sorted(path for path in (folder / "checkpoints").glob("*-*") if path.is_dir())
    for path in found:
        try:
            lines.append(_checkpoint(path, check))
        except (OSError, ValueError) as error:
            problems.append(f"{path.name}: {error}")
    return [*lines, *([] if found else ["no checkpoints"]), *problems], problems


def model_name(config: Sections) -> str:
    """What a run trains, in a few words: a class of one's own, a kind of network, or the parts of a temporal one."""
    if config.model.class_path:
        return config.model.class_path
    if not isinstance(config, RunConfig):
        return config.model.kind
    updater = config.memory.updater
    memory = "no node memory" if updater == "none" else f"{updater} memory"
    return f"{config.model.embedding} embedding, {memory}"


def _results(folder: Path) -> list[str]:
    """The newest epoch and the test."""
    lines = read_lines(folder / "metrics.jsonl")
    epochs, tests = ([line for line in lines if line.get("kind") == kind] for kind in ("epoch", "test"))
    told = []
    if epochs:
        values = {name: value for name, value in epochs[-1].items() if value is not None}
        told.append(f"epoch {values['epoch']}: loss {values['loss']:.4f} {headline('val', values)}".rstrip())
    if tests:
        values = {name: value for name, value in tests[-1].items() if value is not None}
        told.append(f"tested: best epoch {values['epoch']}: {headline('test', values)}")
    return told


def _checkpoint(path: Path, check: bool) -> str:
    """One checkpoint in a line. Raises ValueError or OSError for a damaged one."""
    if not (path / MANIFEST).is_file():
        return f"{path.name}: not finished, to be written anew"
    manifest = read_manifest(path)
    if check:
        check_files(path, manifest["files"])
    progress, size = manifest["progress"], sum(entry["bytes"] for entry in manifest["files"])
    try:
        with safe_open(path / STATE, "pt") as state:
            weights = sum(name.startswith("model.") for name in state.keys())
    except SafetensorError as error:
        raise ValueError(f"{path / STATE}: damaged: {error}") from error
    best = f", best epoch {progress['best_epoch']}" if progress["best_epoch"] >= 0 else ""
    return (
        f"{path.name}: before epoch {progress['epoch']}, step {progress['step']}{best}; {weights} weights, "
        f"{len(manifest['files'])} files, {size / 2**20:.1f} MiB, {'whole' if check else 'sizes right'}, by "
        f"{manifest['created_by']}"
    )
