"""The folder of a sweep, several runs of one command: ``sweep.yaml``, and a run folder for each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hpcgnn.graph import durable
from hpcgnn.graph.decode import decode_yaml

SWEEP = "sweep.yaml"


def write_sweep(folder: Path, groups: int, runs: dict[str, dict[str, str]]) -> None:
    """Write the file that makes a folder one of a sweep. groups: of ranks, side by side; runs: by the name of their
    folder, the keys that set them apart, with their values."""
    head = f"# Runs of one hpcgnn train; hpcgnn train --resume {folder} continues all of them.\n"
    durable.write_text(folder / SWEEP, head + yaml.safe_dump({"groups": groups, "runs": runs}, sort_keys=False))


def read_sweep(folder: Path) -> tuple[int, dict[str, dict[str, str]]] | None:
    """Read what ``write_sweep`` wrote; None for a folder that is none of a sweep. Raises ValueError for a damaged
    file."""
    path = folder / SWEEP
    if not path.is_file():
        return None
    try:
        values: Any = decode_yaml(path.read_text())
        groups, runs = int(values["groups"]), {name: dict(keys) for name, keys in values["runs"].items()}
        if groups < 1 or not runs or any(Path(name).name != name for name in runs):
            raise ValueError("expected groups from 1 on, and runs named as their folders")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{path}: damaged, or not written by hpcgnn ({error})") from error
    return groups, runs


def begun(runs: list[Path]) -> list[Path]:
    """List the folders of a sweep's runs that have begun."""
    return [run for run in runs if (run / "metrics.jsonl").exists()]


def run_folders(folders: list[Path]) -> list[Path]:
    """Put the folders of its runs in the place of each folder of a sweep. Raises ValueError."""
    by_folder = [(folder, read_sweep(folder)) for folder in folders]
    return [run for folder, sweep in by_folder for run in ([folder / name for name in sweep[1]] if sweep else [folder])]
