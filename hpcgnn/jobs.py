"""Write the job scripts, recipes and site profiles into a folder, for a system without a clone. Needs no MPI.

`DIR/environment.sh` makes jobs use the environment that this command runs in. Jobs run in the folder above DIR, and
write their results into `runs/` there.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from hpcgnn.recipes import job_files, recipe_names

PATTERNS = (
    "train*.slurm", "train_*.yaml", "recipes/*.yaml", "accuracy/*.yaml", "lib.sh", "clean_start.sh", "sites/*.sh",
)  # fmt: skip
ENVIRONMENT = "environment.sh"  # sourced by lib.sh


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="hpcgnn jobs", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder to write, such as jobs")
    parser.add_argument("--overwrite", action="store_true", help="overwrite files that were changed")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns exit code 2 for a folder that cannot be written or holds other files of these names."""
    options = make_parser().parse_args(argv)
    try:
        write_jobs(options.folder, options.overwrite)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(_next_steps(options.folder)))
    return 0


def write_jobs(folder: Path, overwrite: bool = False) -> None:
    """Write all files of the jobs into a folder. Raises ValueError, before any is written, for files that are there
    with other content, unless they are to be overwritten; and OSError."""
    source = job_files()
    texts = {path.relative_to(source): path.read_text() for pattern in PATTERNS for path in source.glob(pattern)}
    if not texts:
        raise ValueError(f"{source} holds no job scripts: install hpcgnn again")
    if folder.exists() and folder.samefile(source):
        raise ValueError(f"{folder} has the job scripts of this installation: use them there, or give another folder")
    texts[Path(ENVIRONMENT)] = environment()
    changed = [str(folder / name) for name, text in texts.items() if _differs(folder / name, text)]
    if changed and not overwrite:
        raise ValueError(f"these files were changed: {', '.join(sorted(changed))}; pass --overwrite to replace them")
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _differs(path: Path, text: str) -> bool:
    return path.exists() and (not path.is_file() or path.read_bytes() != text.encode())


def environment() -> str:
    """Write lines of shell that lead to the Python in use, its virtual environment and its PYTHONPATH."""
    lines = [
        "# shellcheck shell=bash disable=SC1091,SC2034",
        "# The environment of the jobs: the one that `hpcgnn jobs` was run in. Add what a job also needs, such as",
        "# `module load`.",
    ]
    programs = Path(sys.executable).parent
    if sys.prefix != sys.base_prefix and (programs / "activate").is_file():
        lines.append(f"source {shlex.quote(str(programs / 'activate'))}")
    else:
        lines.append(f'export PATH={shlex.quote(str(programs))}:"$PATH"')
    if not (programs / "python").exists():
        lines.append(f"PYTHON={shlex.quote(sys.executable)}")
    if paths := [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]:
        lines.append(f"export PYTHONPATH={shlex.quote(os.pathsep.join(paths))}")
    return "\n".join(lines) + "\n"


def _next_steps(folder: Path) -> list[str]:
    """Say what was written, how to start a job and where results go."""
    place = folder.resolve()
    script = shlex.quote(f"{place.name}/train_tgn.slurm")
    return [
        f"{folder}: job scripts, {len(recipe_names())} recipes, site profiles in {folder / 'sites'}",
        f"jobs run in the environment that {folder / ENVIRONMENT} describes: {sys.prefix}",
        f"next: cd {shlex.quote(str(place.parent))}; sbatch {script}     (without a batch system: bash {script})",
        f"results go into {place.parent / 'runs'}",
    ]


if __name__ == "__main__":
    sys.exit(main())
