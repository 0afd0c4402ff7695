"""JSON Schemas of run files and of graph specs, for editors: ``hpcgnn schema run > run.schema.json``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from data_tools.cli import ToolParser, run_alone, with_exit_code
from data_tools.source.spec import DATACLASSES
from hpcgnn.keys import attributes, keys
from hpcgnn.kinds import DEFAULT_KIND, KINDS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: dict[Any, dict[str, str]] = {
    int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"}, str: {"type": "string"},
    type(None): {"type": "null"}, list: {"type": "array"}, Any: {},
}  # fmt: skip


def type_schema(hint: Any) -> dict[str, Any]:
    """Describe the values of a type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {"enum": list(args[1])}
    if hint in PLAIN:
        return dict(PLAIN[hint])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is list:
        return {"type": "array", "items": type_schema(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": type_schema(args[1])}
    assert origin in (Union, types.UnionType), hint
    return {"anyOf": [type_schema(arg) for arg in args]}


def section_schema(section: type, texts: dict[str, str] | None = None) -> dict[str, Any]:
    """Describe a mapping whose keys are the fields of a dataclass; texts: their descriptions, else its docstring's."""
    texts, hints = texts or attributes(section), get_type_hints(section, include_extras=True)
    properties, required = {}, []
    for field in dataclasses.fields(section):
        schema = type_schema(hints[field.name])
        if field.default is not dataclasses.MISSING:
            schema["default"] = field.default
        elif field.default_factory is dataclasses.MISSING:
            required.append(field.name)
        properties[field.name] = schema | ({"description": texts[field.name]} if texts.get(field.name) else {})
    needed = {"required": required} if required else {}
    return {"type": "object", "properties": properties, "additionalProperties": False, **needed}


def nested(section: type) -> list[type]:
    """List the dataclasses that are the values of mappings in a section."""
    args = [get_args(hint)[-1:] for hint in get_type_hints(section).values()]
    return [arg for last in args for arg in last if dataclasses.is_dataclass(arg) and isinstance(arg, type)]


def run_schema() -> dict[str, Any]:
    """Describe run files: the sections that a file may have depend on its ``kind``."""
    kinds: dict[str, Any] = {}
    below: dict[str, Any] = {}
    for name, kind in KINDS.items():
        texts: dict[str, dict[str, str]] = {}
        for key in keys(name):
            texts.setdefault(key.section, {})[key.field] = key.text
        sections = {section: section_schema(cls, texts[section]) for section, cls in kind.config.sections().items()}
        for cls in kind.config.sections().values():
            below |= {each.__name__: section_schema(each) for each in nested(cls)}
        properties = {"kind": {"const": name}, **sections}
        kinds[name] = {"type": "object", "properties": properties, "additionalProperties": False}
    default = {"if": {"not": {"required": ["kind"]}}, "then": {"$ref": f"#/$defs/{DEFAULT_KIND}"}}
    chosen = [
        {"if": {"properties": {"kind": {"const": name}}, "required": ["kind"]}, "then": {"$ref": f"#/$defs/{name}"}}
        for name in kinds
    ]
    what = {"enum": list(kinds), "default": DEFAULT_KIND, "description": "Kind of graph."}
    return {
        "$schema": DRAFT, "title": "hpcgnn run file", "type": "object", "properties": {"kind": what},
        "allOf": [default, *chosen], "$defs": kinds | below,
    }  # fmt: skip


def spec_schema() -> dict[str, Any]:
    """Describe graph specs, as ``hpcgnn convert`` reads them."""
    found = {cls.__name__: section_schema(cls) for cls in DATACLASSES}
    spec = found.pop("SourceSpec")
    for entry in found.values():
        entry["properties"] = {name: _settable(value) for name, value in entry["properties"].items()}
    for table in ("NodeSpec", "EdgeSpec"):  # a column has a short form: a name, a position, or a list of both
        short = found["ColumnSpec"]["properties"]["column"]["anyOf"]
        columns = found[table]["properties"]["columns"]
        columns["additionalProperties"] = {"anyOf": [{"$ref": "#/$defs/ColumnSpec"}, *short]}
    settings = {"type": "object", "description": "Values of $NAME in the spec; null: --set NAME=VALUE gives it."}
    spec["properties"] |= {"settings": settings}
    files = spec["properties"]["files"]
    files["additionalProperties"] = {"anyOf": [{"$ref": "#/$defs/FileSpec"}, {"type": "null"}]}
    return {"$schema": DRAFT, "title": "hpcgnn graph spec", **spec, "$defs": found}


def _settable(schema: dict[str, Any]) -> dict[str, Any]:
    """Allow $NAME, a setting of the spec, as a value."""
    if schema.get("type") in ("string", "object") or not schema.keys() & {"type", "enum"}:
        return schema
    limits = {key: schema[key] for key in ("type", "enum", "items") if key in schema}
    rest = {key: value for key, value in schema.items() if key not in limits}
    return {"anyOf": [limits, {"type": "string", "pattern": r"^\$"}], **rest}


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {"run": run_schema, "spec": spec_schema}


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    result = ToolParser("schema", description=__doc__)
    result.add_argument("what", choices=tuple(SCHEMAS), help="run: run files (--config); spec: graph specs (convert)")
    return result


@with_exit_code
def main(argv: list[str] | None = None) -> int:
    """Print a schema."""
    print(json.dumps(SCHEMAS[make_parser().parse_args(argv).what](), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(main))
