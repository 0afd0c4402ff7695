"""The guide as web pages: links that lead somewhere, messages that the source has, an interface that is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
from conftest import REPOSITORY

from hpcgnn.graph import files
from hpcgnn.static.config import StaticConfig
from hpcgnn.temporal.config import TemporalConfig

TOOLS = REPOSITORY / "docs" / "_tools"
pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def tools():
    """The modules that make pages from the source."""
    sys.path.insert(0, str(TOOLS))
    import interface
    import messages
    import source

    yield {"interface": interface, "messages": messages, "source": source}
    sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages; a dead link or an unknown anchor fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.long
def test_pages_are_built_whole(site):
    """Lists, tables and blocks of code are such, also where Markdown is stricter than in a repository's browser."""
    pages = sorted(site.glob("*.html"))
    assert {"index.html", "api.html", "messages.html", "troubleshooting.html"} <= {page.name for page in pages}
    for page in pages:
        paragraphs = re.findall(r"<p>(.*?)</p>", page.read_text(), re.DOTALL)
        odd = [text for text in paragraphs if re.search(r"^(\* |\d\. |\||```|#+ )", text, re.MULTILINE)]
        assert not odd, f"{page.name}: {odd}"


@pytest.mark.long
def test_every_page_is_in_the_menu(site):
    menu = (site / "first_run.html").read_text()
    pages = [path.stem for path in (REPOSITORY / "docs").glob("*.md")]
    assert [page for page in pages if page != "first_run" and f'href="{page}.html"' not in menu] == []


@pytest.mark.long
def test_pages_need_nothing_from_elsewhere(site):
    """Cluster log-in nodes often see no internet."""
    for page in site.glob("*.html"):
        loaded = re.findall(
            r"""<(?:script|img)[^>]*src="(https?:[^"]*)|<link[^>]*href="(https?:[^"]*)""", page.read_text()
        )
        assert not loaded, page.name


def test_troubleshooting_quotes_messages_of_the_source(tools):
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    entries = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
    assert len(entries) > 40
    texts = set(tools["messages"].all_texts())
    unknown = [entry for entry in entries if not any(tools["messages"].fits(entry, text) for text in texts)]
    assert not unknown


def refuse_section():
    TemporalConfig.from_dict({"nope": {}})


def refuse_value():
    StaticConfig.from_dict({"train": {"lr": -1}})


def refuse_file():
    files.open_checked("/nowhere/graph.h5", files.GRAPH)


@pytest.mark.parametrize("refuse", [refuse_section, refuse_value, refuse_file])
def test_messages_that_are_met_are_on_the_page(tools, refuse):
    with pytest.raises(ValueError) as caught:
        refuse()
    listed = [message.text for message in tools["messages"].messages()]
    patterns = [".+".join(map(re.escape, text.split("…"))) for text in listed]
    assert any(re.fullmatch(pattern, str(caught.value), re.DOTALL) for pattern in patterns)


def test_all_messages_are_listed_by_area(tools):
    messages = tools["messages"]
    page, found = messages.messages_page(), messages.messages()
    assert len(found) > 500
    assert page.count("\n| ") == len({(m.text, messages.area(m.module)) for m in found}) + page.count("\n## ")


@pytest.mark.long
def test_interface_has_signatures_docstrings_and_source(site, tools):
    """Of every public class and function of its modules, with links between pages."""
    pages = {path.name: path.read_text() for path in (site / "api").glob("*.html")}
    assert len(pages) == len(tools["interface"].MODULES)
    whole = "".join(pages.values())
    for module in (name for names in tools["interface"].MODULES.values() for name in names):
        tree = ast.parse(tools["source"].module_path(module).read_text())
        named = [ast.literal_eval(node.value) for node in tree.body
                 if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]  # fmt: skip
        kinds = ast.ClassDef | ast.FunctionDef
        public = named[0] if named else [node.name for node in tree.body if isinstance(node, kinds)]
        missing = [name for name in public if name[0] != "_" and f'id="{module}.{name}"' not in whole]
        assert missing == [], module
    assert "Collective to create" in whole
    assert re.search(r'href="[^"]*#hpcgnn\.comm\.world\.World"', whole)
    assert "Source code in" in whole
    with pytest.raises(FileNotFoundError, match="no module"):
        tools["interface"].docstring("hpcgnn.nowhere")


def test_pages_quote_files():
    """A line of a page becomes a block with a file's text; a file that is not there stops the build."""
    sys.path.insert(0, str(TOOLS))
    import hooks

    sys.path.remove(str(TOOLS))
    text = (REPOSITORY / "examples" / "loop_static.py").read_text()
    page = hooks.on_page_markdown("Before.\n\n<!-- file: examples/loop_static.py -->\n\nAfter.\n")
    assert page == f"Before.\n\n```python\n{text.rstrip()}\n```\n\nAfter.\n"
    assert hooks.quoted_file("examples/classify_papers.sh").startswith("```bash\n#!/usr/bin/env bash\n")
    with pytest.raises(FileNotFoundError):
        hooks.on_page_markdown("<!-- file: examples/nowhere.py -->")


@pytest.mark.long
def test_quoted_files_are_shown(site):
    """All files of examples/ stand on some page, except the programs that make the data of tutorials."""
    pages = [path.read_text() for path in (REPOSITORY / "docs").rglob("*.md")]
    names = re.findall(r"^<!-- file: examples/(\S+) -->$", "\n".join(pages), re.MULTILINE)
    folder = REPOSITORY / "examples"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if "__pycache__" not in path.parts}
    assert {name for name in files if not name.endswith("_data.py")} <= set(names) <= files
    library = (site / "library.html").read_text()
    assert "NeighborLoader" in library
    assert "&lt;!-- file:" not in library
    assert "<!-- file:" not in library
