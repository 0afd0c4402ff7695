"""Reading runs no code and shells see no user's strings: of the sources, of job scripts, and of the decoders."""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from convert_sources import refused
from packaging.specifiers import SpecifierSet
from places import REPOSITORY
from safetensors.torch import save_file

from hpcgnn.graph import files
from hpcgnn.graph.decode import decode_json, decode_yaml
from hpcgnn.loop import checkpoint

pytestmark = pytest.mark.serial
SOURCES = sorted(path for room in ("hpcgnn", "data_tools") for path in (REPOSITORY / room).rglob("*.py"))
# Modules that run code of what they read; unpickle.py admits arrays and containers only.
RUNNING = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
ADMITTED = {("unpickle.py", "pickle")}


def calls(tree: ast.AST):
    """(dotted name, keywords) of all calls of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}


def run_code(tree: ast.AST, path: Path):
    """Imported modules that run code of what they read."""
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return [f"imports {name}" for name in sorted(imported & RUNNING) if (path.name, name) not in ADMITTED]


def call_code(tree: ast.AST, path: Path):
    """Calls that run a text, or code of what they read, or hand a text to a shell."""
    for name, keywords in calls(tree):
        if name in ("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"):
            yield f"calls {name}"
        if name == "torch.load" and keywords.get("weights_only") != "True":
            yield "calls torch.load without weights_only=True"
        for word in ("allow_pickle", "shell"):
            if keywords.get(word, "False") != "False":
                yield f"passes {word}={keywords[word]} to {name}"


RULES = [run_code, call_code]
BROKEN = {
    run_code: "import pickle\nfrom marshal import loads",
    call_code: "eval(text)\ntorch.load(path)\nnp.load(path, allow_pickle=True)\nsubprocess.run(text, shell=True)",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_source_loads_code_or_starts_a_shell(rule):
    assert len(list(rule(ast.parse(BROKEN[rule]), Path("broken.py")))) == len(BROKEN[rule].splitlines())
    found = [f"{path}: {what}" for path in SOURCES for what in rule(ast.parse(path.read_text()), path)]
    assert not found, "\n".join(found)


def touching(path: Path):
    """An object whose unpickling makes a file."""

    class Touching:
        def __reduce__(self):
            return os.system, (f"touch {path}",)

    return Touching()


@pytest.mark.parametrize("name", ["events.npy", "events.npz", "events.pt"])
def test_sources_of_graphs_run_no_code(tmp_path, capsys, name):
    trap, path = touching(tmp_path / "ran"), tmp_path / name
    if name.endswith("pt"):
        torch.save({"edges": trap}, path)
    else:
        (np.save if name.endswith("npy") else np.savez)(path, np.array([trap], object))
    spec = tmp_path / "spec.yaml"
    edge = {"relation": "a.to.a", "file": "events", "src": "edges[:,0]", "dst": "edges[:,1]"}
    spec.write_text(json.dumps({"files": {"events": {"path": name}}, "nodes": [{"type": "a"}], "edges": [edge]}))
    refused(tmp_path, capsys, "--spec", str(spec))
    assert not (tmp_path / "ran").exists()


def test_checkpoints_run_no_code(tmp_path):
    """A pickle in the place of tensors is refused, its hash being right."""
    content = pickle.dumps(touching(tmp_path / "ran"))
    write_checkpoint(tmp_path, content)
    with pytest.raises(ValueError, match=r"state\.safetensors: missing or damaged"):
        checkpoint.load_weights(tmp_path)
    assert not (tmp_path / "ran").exists()


def write_checkpoint(folder: Path, content: bytes, **changes) -> None:
    """A checkpoint of one file."""
    (folder / checkpoint.STATE).write_bytes(content)
    entry = {"name": checkpoint.STATE, "bytes": len(content), "sha256": files.file_hash(folder / checkpoint.STATE)}
    manifest = {
        "format": checkpoint.FORMAT, "format_version": checkpoint.VERSION, "created_by": "test", "graph": "g",
        "files": [entry | changes], "progress": {"epoch": 0, "step": 0, "best_epoch": -1},
    }  # fmt: skip
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("changes", [{"name": "../state.safetensors"}, {"name": "/etc/passwd"}, {"bytes": "7"}])
def test_a_manifest_names_files_beside_itself(tmp_path, changes):
    save_file({"model.w": torch.ones(2)}, tmp_path / "t")
    write_checkpoint(tmp_path, (tmp_path / "t").read_bytes())
    assert checkpoint.load_weights(tmp_path).keys() == {"w"}
    write_checkpoint(tmp_path, (tmp_path / "t").read_bytes(), **changes)
    with pytest.raises(ValueError, match="not as hpcgnn writes it"):
        checkpoint.read_manifest(tmp_path)


def make_huge(file: h5py.File) -> None:
    file.create_dataset("nodes/a/feat", (2**40, 4), "f4", chunks=(1024, 4), compression="gzip")


def make_outside(file: h5py.File) -> None:
    file["nodes/a/feat"] = h5py.ExternalLink("/etc/passwd", "/")


def make_soft(file: h5py.File) -> None:
    file["nodes/a/feat"] = h5py.SoftLink("/nodes")


def make_raw(file: h5py.File) -> None:
    file.create_dataset("nodes/a/feat", (8,), "i1", external=[("/etc/passwd", 0, 8)])


def make_circle(file: h5py.File) -> None:
    file["nodes/a/b"] = file["nodes"]


STRANGE = {
    "do not fit into this file": make_huge, "feat is a link": make_outside, "is a link": make_soft,
    "lies in other files": make_raw, "holds itself": make_circle,
}  # fmt: skip


@pytest.mark.parametrize("message", STRANGE)
def test_strange_objects_of_hdf5_are_refused_at_open(tmp_path, message):
    path = tmp_path / "g.h5"
    with files.writing(path, files.GRAPH, kind="static") as file:
        file.create_group("nodes/a")
    files.open_checked(path, files.GRAPH).close()
    with h5py.File(path, "r+") as file:
        STRANGE[message](file)
    with pytest.raises(files.FileFormatError, match=message):
        files.open_checked(path, files.GRAPH)


BOMB = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 13))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "stand for more than"), ("&a [*a]", "holds itself"), ("[" * 100_000, "too deeply"),
        ("a: !!python/object/apply:os.system [true]", "not valid YAML"), ("{[]: 1}", "not valid YAML"),
        ("\x00", "not valid YAML"),
    ],
)  # fmt: skip
def test_yaml_without_bounds_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        decode_yaml(text)


def test_values_of_json_and_yaml():
    assert decode_yaml("a: &x {b: [1, 2.5]}\nc: *x") == {"a": {"b": [1, 2.5]}, "c": {"b": [1, 2.5]}}
    assert decode_yaml("") is None
    assert decode_json('{"a": [1]}') == {"a": [1]}
    with pytest.raises(ValueError, match="too deeply"):
        decode_json("[" * 100_000)


def test_job_scripts_pass_strings_on_as_they_are(tmp_path):
    """Folders and arguments of a job reach the program as they are, whatever a shell would make of them."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@"; mkdir "$2"; touch "$2/finished"\n')
    program.chmod(0o755)
    script = f'source jobs/lib.sh; LAUNCH=(); run_with_requeue "$1" "{program}" -- "${{@:2}}"'
    words = ["$(touch ran)", "`touch ran`", "a b", "*", "; touch ran", "'", '"', "$HOME", "a\nb"]
    folder = str(tmp_path / "$(touch ran) x")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script, "job", folder, *words], cwd=REPOSITORY, capture_output=True,
        text=True, timeout=60, check=True, env=environment,
    )  # fmt: skip
    assert "".join(f"<{word}>" for word in ["--output.dir", folder, *words]) in result.stdout
    assert not (REPOSITORY / "ran").exists()


def test_every_dependency_is_pinned():
    """All that the package needs, and all that is installed of it here, has one version in constraints.txt."""
    lines = (REPOSITORY / "constraints.txt").read_text().split()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    assert all(line.count("==") == 1 for line in lines)
    text = (REPOSITORY / "pyproject.toml").read_text()
    needed = text[text.index("dependencies = [") : text.index("[project.optional-dependencies]")]
    names = {
        word.split(">=")[0].split("[")[0].lower().replace("_", "-") for word in ast.literal_eval(needed[15:].strip())
    }
    assert names <= pinned, names - pinned


OLDEST = "3.11.2"  # Python of Debian 12: pip, asked for a version that is for newer ones alone, searches without end


def test_pinned_versions_install_on_the_oldest_debian():
    """As the packages say that are installed here."""
    names = [
        line.split("==")[0] for line in (REPOSITORY / "constraints.txt").read_text().split() if "mpich" not in line
    ]
    needs = {name: metadata.metadata(name).get("Requires-Python") or "" for name in names}
    assert not {name: need for name, need in needs.items() if OLDEST not in SpecifierSet(need)}
