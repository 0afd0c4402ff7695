"""The page of the Python interface, from signatures and docstrings."""

from __future__ import annotations

import ast
import re

from source import module_path

WIDTH = 100  # of a line of code

# What a training loop or a model of one's own is made of.
MODULES = {
    "Graphs and loaders": (
        "hpcgnn.temporal.loader", "hpcgnn.static.graph", "hpcgnn.static.loader", "hpcgnn.static.link_loader",
        "hpcgnn.static.batches", "hpcgnn.static.pyg", "hpcgnn.snapshots.loader",
    ),
    "Ranks and exchanges": ("hpcgnn.comm.world", "hpcgnn.comm.route", "hpcgnn.comm.gradients", "hpcgnn.comm.together"),
    "What a rank holds": ("hpcgnn.temporal.memory", "hpcgnn.graph.book", "hpcgnn.static.features"),
    "Models": (
        "hpcgnn.temporal.model.model", "hpcgnn.static.model.models", "hpcgnn.static.model.blocks",
        "hpcgnn.snapshots.model.frame", "hpcgnn.snapshots.model.batch_norm",
    ),
    "Configuration": ("hpcgnn.config", "hpcgnn.loop.settings"),
}  # fmt: skip

HEAD = """# Python interface

What a loop, a sampler or a model of your own is made of; [library.md](library.md) and [own_model.md](own_model.md)
show them at work. Where a docstring says *Collective*, all ranks make the call, in the same order. Everything else in
the package is documented in the same way, beside the code.
"""


def api_page() -> str:
    """Markdown."""
    lines = [HEAD]
    for title, names in MODULES.items():
        lines.append(f"## {title}\n")
        for name in names:
            lines += _module(name)
    return "\n".join(lines)


def docstring(name: str) -> str:
    """A module's docstring as Markdown. Raises FileNotFoundError."""
    return _docstring(_tree(name))


def as_markdown(text: str) -> str:
    """Double backticks and ``::`` as Markdown has them."""
    return re.sub(r"::$", ":", text.replace("``", "`"), flags=re.MULTILINE)


def _tree(name: str) -> ast.Module:
    return ast.parse(module_path(name).read_text(encoding="utf-8"))


def _module(name: str) -> list[str]:
    tree = _tree(name)
    lines = [f"### {name}\n", _docstring(tree), ""]
    for node in tree.body:
        if _is_public(node):
            lines += _class(node) if isinstance(node, ast.ClassDef) else _function(node, "####")
    return lines


def _is_public(node: ast.stmt) -> bool:
    named = isinstance(node, (ast.ClassDef, ast.FunctionDef))
    return named and not node.name.startswith("_") and ast.get_docstring(node) is not None


def _class(node: ast.ClassDef) -> list[str]:
    methods = [member for member in node.body if isinstance(member, ast.FunctionDef)]
    start = next((method for method in methods if method.name == "__init__"), None)
    bases = f"  # a {', '.join(map(ast.unparse, node.bases))}" if node.bases else ""
    call = _call(node.name, start, "class ") if start else f"class {node.name}"
    lines = [f"#### {node.name}\n", *_code("\n".join([call + bases, *_fields(node)])), _docstring(node), ""]
    lines += [_docstring(start), ""] if start else []
    for method in methods:
        if _is_public(method):
            lines += _function(method, "#####", f"{node.name}.")
    return lines


def _fields(node: ast.ClassDef) -> list[str]:
    """Annotated fields, as dataclasses have them."""
    fields = [ast.unparse(member) for member in node.body if isinstance(member, ast.AnnAssign)]
    return [f"    {field}" for field in fields if not field.startswith("_")]


def _function(node: ast.FunctionDef, heading: str, owner: str = "") -> list[str]:
    name, decorators = owner + node.name, [ast.unparse(decorator) for decorator in node.decorator_list]
    kinds = [f"{word} " for word in decorators if word in ("property", "classmethod", "staticmethod")]
    return [f"{heading} {name}\n", *_code(_call(name, node, "".join(kinds))), _docstring(node), ""]


def _call(name: str, node: ast.FunctionDef, kind: str) -> str:
    """How a function is called: on one line, or an argument a line where that is too long."""
    result = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    if kind == "property ":
        return kind + name + result
    words = _arguments(node.args)
    line = f"{kind}{name}({', '.join(words)}){result}"
    return line if len(line) <= WIDTH else f"{kind}{name}(\n    " + ",\n    ".join(words) + f",\n){result}"


def _arguments(node: ast.arguments) -> list[str]:
    """The arguments as they are written, without ``self``."""
    placed = [*node.posonlyargs, *node.args]
    defaults = [None] * (len(placed) - len(node.defaults)) + [*node.defaults]
    words = [_argument(*pair) for pair in zip(placed, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    if node.vararg:
        words.append("*" + ast.unparse(node.vararg))
    elif node.kwonlyargs:
        words.append("*")
    words += [_argument(*pair) for pair in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    return words + (["**" + ast.unparse(node.kwarg)] if node.kwarg else [])


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    value = "" if default is None else f"{' = ' if node.annotation else '='}{ast.unparse(default)}"
    return ast.unparse(node) + value


def _docstring(node: ast.AST) -> str:
    return as_markdown(ast.get_docstring(node) or "")


def _code(text: str) -> list[str]:
    return ["```python", text, "```\n"]
