"""What the tests of conversion share: random tables, specs for them, and runs of the command."""

import gzip
from pathlib import Path

import h5py
import numpy as np
import yaml

from data_tools.convert import main

EDGE = {"relation": "user.rates.item", "file": "events", "src": "u", "dst": "i", "time": "t"}


def run_spec(folder: Path, spec: dict, *arguments: str) -> Path:
    """Convert by a spec; returns the path of the graph file."""
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    assert main(["--spec", str(folder / "spec.yaml"), *arguments, "--overwrite", str(folder / "graph.h5")]) == 0
    return folder / "graph.h5"


def assignments(sources: dict) -> list[str]:
    """Arguments of the command that set files and settings."""
    return [text for name, value in sources.items() for text in ("--set", f"{name}={value}")]


def counts(file: h5py.File) -> dict[str, int]:
    """Nodes and edges of a graph file, by type and relation."""
    nodes = {name: int(group.attrs["num_nodes"]) for name, group in file["nodes"].items()}
    return nodes | {name: int(group.attrs["num_edges"]) for name, group in file["edges"].items()}


def run_preset(folder: Path, preset: str, source: Path, *arguments: str) -> Path:
    """Convert by a preset; returns the path of the graph file."""
    output = folder / "graph.h5"
    assert main(["--preset", preset, "--set", f"events={source}", *arguments, "--overwrite", str(output)]) == 0
    return output


def refused(folder: Path, capsys, *arguments: str) -> str:
    """Convert, expecting exit code 2, one line on stderr, and no file left; returns that line."""
    output = folder / "out" / "graph.h5"
    assert main([*arguments, str(output)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert not output.parent.exists() or not list(output.parent.iterdir())
    return message


def refused_text(folder: Path, capsys, text: str, preset: str = "csv-temporal", *arguments: str) -> str:
    """The message when a preset is given this text."""
    (folder / "events.csv").write_text(text)
    return refused(folder, capsys, "--preset", preset, "--set", f"events={folder / 'events.csv'}", *arguments)


def contents(path: Path) -> dict:
    """All datasets and attributes of a graph file, but for its sources."""
    found = {}

    def visit(name, item):
        found[name] = {key: item.attrs[key] for key in item.attrs}
        if isinstance(item, h5py.Dataset):
            found[name]["values"] = (item.dtype.str, item[...].tolist())

    with h5py.File(path) as file:
        file.visititems(visit)
        found["kind"] = file.attrs["kind"]
    return found


def random_table(seed: int, num_rows: int = 500) -> dict[str, np.ndarray]:
    """Columns u, i, t, y, f0, f1 with sparse ids and sorted times."""
    rng = np.random.default_rng(seed)
    return {
        "u": rng.choice(rng.integers(0, 2**40, 40), num_rows),
        "i": rng.choice(rng.integers(0, 1000, 30), num_rows),
        "t": np.sort(rng.integers(-50, 10**10, num_rows)),
        "y": rng.integers(-3, 4, num_rows),
        "f0": rng.standard_normal(num_rows).astype(np.float32),
        "f1": rng.standard_normal(num_rows).astype(np.float32),
    }


def write_text(path: Path, table: dict, delimiter: str, end: str = "\n", header: bool = True, noise: str = "") -> Path:
    """Write a table as text; ``noise`` is a line put in after every hundredth row."""
    values = [map(repr, column.tolist()) for column in table.values()]
    rows = [delimiter.join(row) for row in zip(*values, strict=True)]
    rows = [row + (end + noise if noise and n % 100 == 0 else "") for n, row in enumerate(rows)]
    head = [delimiter.join(table)] if header else []
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", newline="") as file:
        file.write(end.join([*head, *rows]) + end)
    return path


SPEC_BY_NAME = {
    "files": {"events": {}},
    "nodes": [{"type": "user"}, {"type": "item"}],
    "edges": [{**EDGE, "columns": {"label": "y", "feat": ["f0", "f1"]}}],
}


def spec_for(path: Path, by_position: bool = False, **file_options) -> dict:
    """The spec of `random_table` in a file, by names or by positions."""
    edge = dict(SPEC_BY_NAME["edges"][0])
    if by_position:
        edge |= {"src": 0, "dst": 1, "time": 2, "columns": {"label": 3, "feat": "4:"}}
    return SPEC_BY_NAME | {"files": {"events": {"path": str(path), **file_options}}, "edges": [edge]}
