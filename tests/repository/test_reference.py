"""The reference has every key, spec entry, command, metric and public name; schemas take what is right and no more."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys

import jsonschema
import pytest
import yaml
from conftest import REPOSITORY

import hpcgnn
from data_tools import schema
from data_tools.source.spec import DATACLASSES
from hpcgnn import config as configuration
from hpcgnn.__main__ import COMMANDS
from hpcgnn.kinds import KINDS
from hpcgnn.task.metrics import INDUCTIVE, METRICS, NEW_ENDS, PER_BATCH, PER_SNAPSHOT

sys.path.insert(0, str(REPOSITORY / "docs" / "_tools"))
import accuracy
import interface
import reference
import train_help

pytestmark = pytest.mark.serial
SPECS = sorted((REPOSITORY / "data_tools" / "presets").glob("*.yaml"))
RUN_FILES = sorted({*(REPOSITORY / "jobs").glob("*.yaml"), *(REPOSITORY / "jobs" / "recipes").glob("*.yaml")})


def rows(page: str) -> dict[str, list[str]]:
    """Cells of a page's tables by the word in backticks that a row begins with."""
    lines = [re.split(r"(?<!\\)\|", line.strip("|")) for line in page.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in lines}


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_has_a_row(kind):
    """As the command line knows them, with type, default, kinds, resume, answer and meaning."""
    found = rows(reference.options_page())
    parser = configuration.parser("hpcgnn train", "", kind)
    dests = [action.dest for action in parser._actions if "." in action.dest]
    names = [name for name in dests if not name.endswith(".help")]  # what jsonargparse adds to keys with sections
    assert len(names) > 80
    for name in names:
        type_, default, kinds, resume, answer, meaning = found[name]
        assert type_, name
        assert default, name
        assert kinds == "all" or kind in kinds
        assert {resume, answer} <= {"yes", "no"}
        assert len(meaning.split()) > 3, name


def test_the_help_of_training_is_that_of_the_configuration():
    stored = json.loads(train_help.FILE.read_text())
    assert stored == train_help.documents(), "python docs/_tools/train_help.py writes the file anew"


def test_the_table_of_accuracy_is_of_the_rows():
    text = accuracy.PAGE.read_text()
    assert text == accuracy.page(text), "python docs/_tools/accuracy.py writes the table anew"


def test_keys_that_a_resumed_run_may_change_are_marked():
    """By the check that a resumed run makes."""
    found = rows(reference.options_page())
    old = KINDS["temporal"].config()
    for name, changed in {"comm.threads": 3, "train.epochs": 99, "train.lr": 0.5, "model.layers": 4}.items():
        section, field = name.split(".")
        new = KINDS["temporal"].config()
        values = dataclasses.replace(getattr(new, section), **{field: changed})
        setattr(new, section, values)
        try:
            configuration.check_resumable(old, new)
        except ValueError:
            assert found[name][3:5] == ["no", "yes"]
        else:
            assert found[name][3] == "yes"
    assert [found[name][3:5] for name in ("memory.update_at", "eval.nodes_per_pass")] == [["no", "no"]] * 2


def test_every_entry_of_specs_and_every_metric_has_a_row():
    page = reference.specs_page()
    for cls in DATACLASSES:
        section = page.split(f"## {reference.SPEC_TITLES[cls.__name__][0]}\n")[1].split("\n## ")[0]
        assert list(rows(section)) == [field.name for field in dataclasses.fields(cls)]
        assert all(cells[-1] for cells in rows(section).values())
    metrics, versions = reference.metrics_page().split("\n## Versions\n")
    assert list(rows(metrics)) == list(METRICS)
    affixes = {INDUCTIVE, PER_BATCH, PER_SNAPSHOT, *NEW_ENDS}
    assert {name.replace("ap", "", 1) for name in rows(versions)} - {"/TYPE"} == affixes


def test_every_command_has_a_section():
    page = reference.commands_page()
    titles = re.findall(r"^## hpcgnn (.*)$", page, re.MULTILINE)
    assert titles[: len(COMMANDS)] == list(COMMANDS)
    sections = page.split("\n## ")[1:]
    assert [section for section in sections if "usage: hpcgnn" not in section or "--" not in section] == []


def test_every_public_name_is_on_the_page():
    """The modules of the public interface, and those that the examples and the pages import."""
    sources = [path.read_text() for path in sorted((REPOSITORY / "examples").glob("*.py"))]
    for page in (REPOSITORY / "docs").rglob("*.md"):
        sources += re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    listed = {name for names in interface.MODULES.values() for name in names}
    imported = {
        node.module for source in sources for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hpcgnn.")
    }  # fmt: skip
    public = {name for name in hpcgnn.EXPORTS if name.startswith("hpcgnn.")}
    assert len(public) > 10
    assert (public | imported) - listed == set()


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_schema_takes_every_preset(path):
    jsonschema.validate(yaml.safe_load(path.read_text()), schema.spec_schema())


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.stem)
def test_the_schema_takes_every_recipe(path):
    jsonschema.validate(yaml.safe_load(path.read_text()), schema.run_schema())


@pytest.mark.parametrize(
    ("make", "value", "place"),
    [
        (schema.run_schema, {"kind": "static", "model": {"hiden": 1}}, "hiden"),
        (schema.run_schema, {"train": {"epochs": "many"}}, "many"),
        (schema.run_schema, {"kind": "odd"}, "odd"),
        (schema.run_schema, {"memory": {"updater": "best"}}, "best"),
        (schema.run_schema, {"kind": "static", "memory": {}}, "memory"),
        (schema.spec_schema, {"files": {}, "nodes": [{"type": "node", "idss": 1}], "edges": []}, "idss"),
        (schema.spec_schema, {"files": {}, "nodes": [{"type": "node", "ids": "float"}], "edges": []}, "float"),
    ],
)
def test_the_schema_refuses(make, value, place):
    with pytest.raises(jsonschema.ValidationError, match=place):
        jsonschema.validate(value, make())


@pytest.mark.parametrize("what", schema.SCHEMAS)
def test_schemas_are_written(capsys, what):
    assert schema.main([what]) == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))
