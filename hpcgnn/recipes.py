"""Finds recipes by name, and options on a command line before it is parsed; writes out ``--recipe NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parent
PROMISED = {"tgn": "train_tgn.yaml"}  # beside the job scripts, where users know it


def job_files() -> Path:
    """Return the folder of recipes, job scripts and site profiles: in an installed package, or the folder jobs of a
    clone."""
    installed = PACKAGE / "data-files" / "jobs"
    return installed if installed.is_dir() else PACKAGE.parent / "jobs"


def recipe_names() -> list[str]:
    """List the names of all recipes, in alphabetical order."""
    return sorted(_recipes(job_files()))


def recipe_file(name: str, folder: Path | None = None) -> Path:
    """Return the YAML file of a recipe in a folder of job files, without one in hpcgnn's own. Raises ValueError for a
    recipe that does not exist."""
    folder = job_files() if folder is None else folder
    recipes = _recipes(folder)
    if name not in recipes:
        listed = ", ".join(sorted(recipes)) or f"missing from {folder}"
        raise ValueError(f"no recipe {name!r}; recipes are {listed}")
    return recipes[name]


def _recipes(folder: Path) -> dict[str, Path]:
    promised = {name: folder / file for name, file in PROMISED.items() if (folder / file).is_file()}
    return promised | {path.stem: path for path in (folder / "recipes").glob("*.yaml")}


def expand_recipe(argv: list[str]) -> list[str]:
    """Write out ``--recipe NAME`` as ``--config FILE`` in front of the command line, so that all other options override
    it.

    Raises ValueError for an unknown recipe, for two, and for one that follows the ``--config`` which overrides it.
    """
    names, others = take_options(argv, "--recipe")
    if not names:
        return argv
    if next(word for word in argv if _option(word) in ("--config", "--recipe")).startswith("--config"):
        raise ValueError("--recipe gives defaults, and the --config before it overrides them: give --recipe first")
    if len(names) > 1:
        raise ValueError(f"give one --recipe, not {' and '.join(names)}")
    return ["--config", str(recipe_file(names[0])), *others]


def take_options(argv: Sequence[str], *options: str) -> tuple[list[str], list[str]]:
    """Take some options out of a command line, as ``--option value`` and ``--option=value``.

    Returns their values, empty for one that the line ends with, and all other words.
    """
    values, others = [], []
    words = iter(argv)
    for word in words:
        if _option(word) not in options:
            others.append(word)
        else:
            values.append(word.partition("=")[2] if "=" in word else next(words, ""))
    return values, others


def _option(word: str) -> str:
    return word.partition("=")[0]
