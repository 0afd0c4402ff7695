"""Writes the help of ``hpcgnn train``. The texts are in a file, so that it takes no import of torch, of MPI, or of the
configuration, from which ``docs/_tools/train_help.py`` makes the file."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hpcgnn.recipes import recipe_names, take_options

FILE = Path(__file__).with_suffix(".json")
RECIPES = "{recipes}"  # in texts: the names of the recipes that are there
SHORT, LONG = ("-h", "--help"), ("--help_all", "--help-all")
Entry = Sequence[str]  # the section of a key, its line, and its text


def help_asked_for(argv: Sequence[str]) -> str:
    """Write the help that the arguments of ``hpcgnn train`` ask for; empty where they have more than this."""
    kinds, others = take_options(argv, "--kind")
    if not others or not set(others) <= {*SHORT, *LONG}:
        return ""
    documents = json.loads(FILE.read_text())
    document = documents.get(kinds[-1] if kinds else next(iter(documents)))
    return page(document, every=others[0] in LONG) if document else ""


def page(document: dict[str, Any], every: bool) -> str:
    """Write a help: the options of a command, then the keys of runs on a kind of graph, all or the usual ones.
    document: as in the file, see ``hpcgnn.config.help_document``."""
    width = min(100, shutil.get_terminal_size().columns)
    program, kind, entries, usual = (document[name] for name in ("program", "kind", "keys", "usual"))
    lines = [f"usage: {program} [--OPTION VALUE ...]", "", document["says"], "", "options:"]
    for head, text in document["options"]:
        lines += [f"  {head}", *_indented(text.replace(RECIPES, ", ".join(recipe_names())), width)]
    shown = entries if every else [entries[number] for number in usual]
    lines += ["", f"keys of runs with --kind {kind}, as options or in a run file:", keys_text(shown, width)]
    if not every:
        lines += ["", f"{len(entries) - len(usual)} further keys: {program} --kind {kind} --help_all"]
    return "\n".join(lines)


def keys_text(entries: Iterable[Entry], width: int) -> str:
    """Write the help of some keys, section by section."""
    lines, before = [], ""
    for section, head, text in entries:
        lines += ["", f"{section}:"] * (section != before)
        lines += [f"  {head}", *_indented(text, width, break_long_words=False, break_on_hyphens=False)]
        before = section
    return "\n".join(lines)


def _indented(text: str, width: int, **options: Any) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6, **options)
