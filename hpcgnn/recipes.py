"""Finds recipes by name, and writes out ``--recipe NAME`` on a command line."""

from __future__ import annotations

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
    return sorted(_recipes())


def recipe_file(name: str) -> Path:
    """Return the YAML file of a recipe. Raises ValueError for one that does not exist."""
    recipes = _recipes()
    if name not in recipes:
        listed = ", ".join(sorted(recipes)) or f"missing from {job_files()}"
        raise ValueError(f"no recipe {name!r}; recipes are {listed}")
    return recipes[name]


def _recipes() -> dict[str, Path]:
    folder = job_files()
    promised = {name: folder / file for name, file in PROMISED.items() if (folder / file).is_file()}
    return promised | {path.stem: path for path in (folder / "recipes").glob("*.yaml")}


def expand_recipe(argv: list[str]) -> list[str]:
    """Write out ``--recipe NAME`` as ``--config FILE`` in front of the command line, so that all other options override
    it.

    Raises ValueError for an unknown recipe, for two, and for one that follows the ``--config`` which overrides it.
    """
    names, others = [], []
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option != "--recipe":
            others.append(word)
            continue
        if any(other.partition("=")[0] == "--config" for other in others):
            raise ValueError("--recipe gives defaults, and the --config before it overrides them: give --recipe first")
        names.append(value if equals else next(words, ""))
    if not names:
        return argv
    if len(names) > 1:
        raise ValueError(f"give one --recipe, not {' and '.join(names)}")
    return ["--config", str(recipe_file(names[0])), *others]
