"""What mkdocs calls: pages that are made from the source, and docstrings and files that pages quote.

A line ``<!-- docstring: hpcgnn.graph.files -->`` becomes that module's docstring, a line
``<!-- file: examples/pyg_sage.py -->`` a fenced block with that file's text.
"""

from __future__ import annotations

import re
from pathlib import Path

import interface
import reference
from interface import docstring
from messages import messages_page
from mkdocs.structure.files import File
from source import REPOSITORY

LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml"}  # of quoted files, by suffix
GENERATED = {**interface.pages(), "messages.md": messages_page, **reference.PAGES}


def on_config(config, **_):
    """Pages that mkdocs.yml does not name come last in the menu."""
    named = set(re.findall(r"[\w/]+\.md", str(config.nav)))
    docs = Path(config.docs_dir)
    pages = (path.relative_to(docs) for path in docs.rglob("*.md"))
    rest = sorted({page.as_posix() for page in pages if page.parts[0] != "_tools"} - named)
    config.nav += [{"Further": rest}] if rest else []
    return config


def on_files(files, config, **_):
    """Add the generated pages."""
    for name, make in GENERATED.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown, **_):
    """Put docstrings and files where pages quote them."""
    markdown = re.sub(
        r"^<!-- docstring: ([\w.]+) -->$", lambda found: docstring(found[1]), markdown, flags=re.MULTILINE
    )
    return re.sub(r"^<!-- file: ([\w./]+) -->$", lambda found: quoted_file(found[1]), markdown, flags=re.MULTILINE)


def quoted_file(name: str) -> str:
    """Make a fenced block of a file of the repository. Raises FileNotFoundError."""
    path = REPOSITORY / name
    return f"```{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8').rstrip()}\n```"
