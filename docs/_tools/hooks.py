"""What mkdocs calls: pages that are made from the source, and docstrings that pages quote.

A line ``<!-- docstring: hpcgnn.graph.files -->`` becomes that module's docstring.
"""

from __future__ import annotations

import re
from pathlib import Path

import reference
from interface import api_page, docstring
from messages import messages_page
from mkdocs.structure.files import File

GENERATED = {"api.md": api_page, "messages.md": messages_page, **reference.PAGES}


def on_config(config, **_):
    """Pages that mkdocs.yml does not name come last in the menu."""
    named = set(re.findall(r"[\w/]+\.md", str(config.nav)))
    rest = sorted({path.name for path in Path(config.docs_dir).glob("*.md")} - named)
    config.nav += [{"Further": rest}] if rest else []
    return config


def on_files(files, config, **_):
    """Add the generated pages."""
    for name, make in GENERATED.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown, **_):
    """Put docstrings where pages quote them."""
    return re.sub(r"^<!-- docstring: ([\w.]+) -->$", lambda found: docstring(found[1]), markdown, flags=re.MULTILINE)
