"""Pages of the reference that are made from the code: keys of run files, commands, graph specs, metrics."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from typing import Any
from unittest.mock import patch

from source import REPOSITORY, module_path

sys.path.insert(0, str(REPOSITORY))

from data_tools.completion import parser_of
from data_tools.schema import section_schema
from data_tools.source import spec
from hpcgnn import keys as run_keys
from hpcgnn.__main__ import COMMANDS
from hpcgnn.bench.__main__ import COMMANDS as BENCHES
from hpcgnn.bench.__main__ import main as bench
from hpcgnn.comm.world import World
from hpcgnn.kinds import KINDS
from hpcgnn.loop.launch import Answered
from hpcgnn.task.metrics import METRICS

OPTIONS = """# Options: all keys of run files

Every key of every kind of graph: temporal, static, snapshots. Write a key on the command line as `--SECTION.KEY VALUE`,
or in a run file (`--config FILE`) as `KEY: VALUE` below its section. `hpcgnn train --kind KIND --help` prints the keys
that most people use, `--help_all` all of them, and `hpcgnn schema run` writes a JSON Schema that editors read.

*Kinds* are the kinds of graphs that have the key. *Resume*: whether a resumed run may change it. *Answer*: whether the
key changes what a run computes; a key with *no* changes speed, memory or files alone, up to rounding.
"""
COMMANDS_HEAD = """# Commands

`hpcgnn COMMAND` runs each of these, in the order of work. `python -m hpcgnn.COMMAND`, or `python -m data_tools.COMMAND`
for the commands before `train`, is the same program. The commands `partition`, `verify`, `stage`, `train`, `evaluate`,
`predict`, `bench` and `info` also run under `mpirun` or `srun`.
"""
SPECS = """# Graph specs: the language of `hpcgnn convert`

A graph spec is a YAML file that declares which files and columns become nodes, edges, times and features.
`hpcgnn convert --spec FILE.yaml graph.h5` reads it. The [presets](data.md) are specs, too; `hpcgnn schema spec` writes
a JSON Schema that editors read.
"""
METRICS_HEAD = """# Metrics

Each metric is computed exactly over the whole split, on any number of ranks; none is an average over ranks.
`metrics.jsonl`, the log, `evaluate` and `report` use the same names. [Evaluation](evaluate.md) has the protocols.

| Metric | Definition | Computed from | Best |
|---|---|---|---|
"""


def options_page() -> str:
    """Write the table of all keys, section by section."""
    by_name: dict[str, dict[str, run_keys.Key]] = {}
    for kind in KINDS:
        for key in run_keys.keys(kind):
            by_name.setdefault(key.name, {})[kind] = key
    sections: dict[str, list[str]] = {}
    for name, found in by_name.items():
        sections.setdefault(name.partition(".")[0], []).append(_option_row(found))
    lines = [OPTIONS]
    for section, rows in sections.items():
        lines += [f"## {section}", "", "| Key | Type | Default | Kinds | Resume | Answer | Meaning |", f"|{'---|' * 7}"]
        lines += [*rows, ""]
    return "\n".join(lines)


def _option_row(found: dict[str, run_keys.Key]) -> str:
    """Write the row of a key, which some kinds of graphs have, maybe with different defaults and texts."""
    key = next(iter(found.values()))
    kinds = "all" if len(found) == len(KINDS) else ", ".join(found)
    defaults = _by_kind({kind: f"`{run_keys.shown(one.default)}`" for kind, one in found.items()})
    texts = _by_kind({kind: _with_choices(one) for kind, one in found.items()})
    resume, answer = "yes" if key.is_resumable else "no", "yes" if key.changes_answer else "no"
    type_ = "choice" if key.choices else key.type
    return f"| `{key.name}` | {type_} | {defaults} | {kinds} | {resume} | {answer} | {_cell(texts)} |"


def _by_kind(values: dict[str, str]) -> str:
    """Write a value once where it is the same for all kinds."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return "<br>".join(f"{kind}: {value}" for kind, value in values.items())


def _with_choices(key: run_keys.Key) -> str:
    """Write a key's text, and below it what each of its choices is."""
    rows = [f"`{name}`{f': {says}' if says else ''}" for name, says in key.choices.items() if name]
    listed = rows if any(key.choices.values()) else [", ".join(rows)]
    return "<br>".join([key.text, *filter(None, listed)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def commands_page() -> str:
    """Write the help of every command, as it prints it."""
    benches = [f"bench {name}" for name in BENCHES]
    with patch.dict(os.environ, COLUMNS="100"):
        helps = {name: parser_of(name).format_help() for name in COMMANDS if name != "bench"}
        helps |= {name: help_of_bench(name.split()[1:]) for name in ["bench", *benches]}
    lines = [COMMANDS_HEAD]
    for name, text in ((name, helps[name]) for name in [*COMMANDS, *benches]):
        lines += [f"## hpcgnn {name}", "", _sentence(name), ""]
        lines += ["```text", text.strip(), "```", ""]
    return "\n".join(lines)


def _sentence(command: str) -> str:
    """Say what a command does."""
    text = COMMANDS.get(command) or f"time {BENCHES[command.partition(' ')[2]][1]}"
    return f"{text[0].upper()}{text[1:]}."


def help_of_bench(words: list[str]) -> str:
    """Return the help that ``hpcgnn bench`` with these words prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(Answered):
        bench(World.alone(), [*words, "--help"])
    return printed.getvalue()


def specs_page() -> str:
    """Write the language of graph specs: its example, and a table for each kind of entry."""
    doc = re.search(r'^"""(.*?)"""', module_path("data_tools.source.spec").read_text(encoding="utf-8"), re.DOTALL)
    assert doc
    example = re.search(r"::\n\n((?:    .*\n|\n)+)", doc[1])
    assert example
    block = re.sub(r"^    ", "", example[1], flags=re.MULTILINE).rstrip()
    lines = [SPECS, "```yaml", block, "```", ""]
    for cls, (title, text) in SPEC_TITLES.items():
        lines += [f"## {title}", "", text, "", "| Key | Type | Default | Meaning |", "|---|---|---|---|"]
        lines += [_spec_row(name, value) for name, value in section_schema(getattr(spec, cls))["properties"].items()]
        lines.append("")
    return "\n".join(lines)


SPEC_TITLES = {
    "SourceSpec": ("The spec", "The mapping at the top of the file. `settings` may give values to `$NAME` elsewhere."),
    "FileSpec": ("Files", "An entry of `files`."),
    "NodeSpec": ("Node types", "An entry of the list `nodes`."),
    "EdgeSpec": ("Relations", "An entry of the list `edges`."),
    "ColumnSpec": ("Columns", "An entry of `columns`: a name, a position, a range (`4:`), a list, or this mapping."),
    "FileColumn": ("Column of another file", "Where a number, a mask or row numbers lie in a file of their own."),
}


def _spec_row(name: str, schema: dict[str, Any]) -> str:
    words = schema.get("enum") or [one for part in schema.get("anyOf", []) for one in part.get("enum", [])]
    type_ = ", ".join(f"`{word}`" for word in words if word is not None) or _json_type(schema)
    default = f"`{run_keys.shown(schema['default'])}`" if schema.get("default") is not None else ""
    return f"| `{name}` | {_cell(type_)} | {default} | {_cell(schema.get('description', ''))} |"


def _json_type(schema: dict[str, Any]) -> str:
    """Name the JSON types that a value may have."""
    if "$ref" in schema:
        return "mapping"
    if "anyOf" in schema:
        named = [_json_type(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(named))
    return {"object": "mapping", "array": "list", "string": "text"}.get(
        schema.get("type", ""), schema.get("type", "any")
    )


def metrics_page() -> str:
    """Write the table of metrics."""
    rows = [
        f"| `{name}` | {part.says} | {', '.join(part.of)} | {'lowest' if part.lower_is_better else 'highest'} |"
        for name, part in METRICS.items()
    ]
    return METRICS_HEAD + "\n".join(rows) + "\n" + METRICS_TAIL


METRICS_TAIL = """
## Versions

A metric of links of temporal graphs and snapshots also has versions:

| Name | Of |
|---|---|
| `inductive_ap` | events with a node that training never saw |
| `new_old_ap` | events with exactly one such node |
| `new_new_ap` | events with two such nodes |
| `ap/TYPE` | events of an edge type |
| `ap_per_batch` | the mean over batches, with `eval.batch_means` |
| `ap_per_snapshot` | the mean over snapshots |
"""

PAGES = {"options.md": options_page, "commands.md": commands_page, "specs.md": specs_page, "metrics.md": metrics_page}
