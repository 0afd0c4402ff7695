"""Messages of errors in the source, and the page that lists them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from source import modules

GAP = "…"
# Raised where the program itself is wrong, or caught by its own code.
INTERNAL = {"AssertionError", "KeyError", "NotImplementedError", "UnpicklingError", "ImportError"}

AREAS = {
    **{f"hpcgnn.{module}": "Configuration" for module in (
        "config", "choices", "recipes", "nn", "loop.settings", "temporal.config", "temporal.eval_config",
        "temporal.model", "static.config", "static.model", "snapshots.config", "snapshots.model")},
    "hpcgnn.task": "Tasks and labels",
    **{f"hpcgnn.{wing}": "Sampling, splits and negatives" for wing in ("temporal", "static", "snapshots")},
    "hpcgnn.graph": "Partition sets and features", "hpcgnn.comm": "Ranks, launchers and devices",
    **{f"hpcgnn.{module}": "Runs and checkpoints" for module in (
        "loop", "kinds", "reopen", "train", "evaluate", "predict", "report", "jobs")},
    "hpcgnn.bench": "Benchmarks",
    "hpcgnn": "Loaders and kernels", "hpcgnn_native": "Loaders and kernels", "data_tools": "Data tools",
}  # fmt: skip

HEAD = """# All messages

Every error that the program raises itself, from the source, by area; … stands for what differs from case to case.
Messages name what is wrong and what helps; [troubleshooting](troubleshooting.md) explains the most frequent ones.
Commands print them after `error:` and exit with code 2, or 1 where the system refused (a full disk, a missing
permission).
"""


@dataclass(frozen=True)
class Message:
    """A message: its text with gaps, and where it comes from."""

    text: str
    module: str


@cache
def messages() -> list[Message]:
    """What the source raises with a text of its own, in order of modules and lines."""
    found = []
    for module, tree in modules():
        raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
        for node in sorted(raised, key=lambda node: node.lineno):
            if node.exc.args and _name(node.exc.func) not in INTERNAL:
                texts = [text for word in node.exc.args for text in _texts(word, node.lineno, tree)]
                found += [Message(text, module) for text in texts if re.search(r"\w", text)]
    return found


def _texts(node: ast.expr, line: int, tree: ast.Module) -> list[str]:
    """What an argument of an error may say: its own text, that of the variable it is, or what its function returns."""
    if isinstance(node, ast.Name):
        assigned = [found for found in ast.walk(tree) if isinstance(found, ast.Assign) and found.lineno < line]
        named = [found.value for found in assigned if ast.unparse(found.targets[0]) == node.id]
        return [template(named[-1])] if named else []
    if isinstance(node, ast.Call):
        made = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name == _name(node.func)]
        returned = [found for function in made for found in ast.walk(function) if isinstance(found, ast.Return)]
        return [template(found.value) for found in returned if found.value]
    return [template(node)]


def template(node: ast.expr) -> str:
    """A text with gaps where values are put in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else GAP
    if isinstance(node, ast.JoinedStr):
        text = "".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
    elif isinstance(node, ast.BinOp):
        text = template(node.left) + template(node.right)
    else:
        return GAP
    return re.sub(f"{GAP}+", GAP, text)


def all_texts() -> Iterator[str]:
    """Every text of the source, with gaps: messages, but also what is printed, logged or put into messages."""
    for _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, (ast.JoinedStr, ast.Constant, ast.BinOp)):
                yield template(node)


def fits(entry: str, text: str) -> bool:
    """Whether a text of the source has what stands between the gaps of an entry, in order."""
    place = 0
    for piece in entry.split(GAP):
        place = text.find(piece, place)
        if place < 0:
            return False
        place += len(piece)
    return True


def messages_page() -> str:
    """Markdown."""
    areas: dict[str, dict[str, str]] = {}
    for message in messages():
        areas.setdefault(area(message.module), {}).setdefault(message.text, message.module)
    lines = [HEAD]
    for title in dict.fromkeys(AREAS.values()):
        lines += [f"## {title}\n", "| message | from |", "|---|---|"]
        lines += [f"| {_escape(text)} | `{module}` |" for text, module in sorted(areas.pop(title, {}).items())]
        lines.append("")
    assert not areas, areas.keys()
    return "\n".join(lines)


def area(module: str) -> str:
    """The part of the page that a module's messages are in: by the longest prefix that is known; KeyError for none."""
    while module and module not in AREAS:
        module = module.rpartition(".")[0]
    return AREAS[module]


def _escape(text: str) -> str:
    return re.sub(r"([|<>*_\[\]`\\])", r"\\\1", " ".join(text.split()))


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
