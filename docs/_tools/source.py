"""Modules of the source, read without importing them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = {"hpcgnn": "hpcgnn", "data_tools": "data_tools", "hpcgnn_native": "native/package"}  # folders by name


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Dotted name and syntax tree of every module of the packages, in order of names."""
    found = [(name, path) for name, at in PACKAGES.items() for path in sorted((REPOSITORY / at).rglob("*.py"))]
    return [(dotted_name(name, path), ast.parse(path.read_text(encoding="utf-8"))) for name, path in found]


def dotted_name(package: str, path: Path) -> str:
    """``hpcgnn.comm.world`` of ``hpcgnn/comm/world.py``; a package has the name of its folder."""
    parts = path.relative_to(REPOSITORY / PACKAGES[package]).with_suffix("").parts
    return ".".join([package, *parts[:-1]] if parts[-1] == "__init__" else [package, *parts])


def module_path(name: str) -> Path:
    """The file of a module. Raises FileNotFoundError."""
    plain = REPOSITORY.joinpath(*name.split("."))
    found = plain.with_suffix(".py") if plain.with_suffix(".py").exists() else plain / "__init__.py"
    if not found.exists():
        raise FileNotFoundError(f"no module {name} in {REPOSITORY}")
    return found
