"""Reads graphs of PyTorch Geometric that torch.save wrote, without running their code, and without the package."""

from __future__ import annotations

import pathlib
from typing import Any

from data_tools.source.object_columns import array_of
from data_tools.source.object_spec import GraphTables
from data_tools.source.objects import of_store, of_stores
from hpcgnn.graph.files import FileFormatError

PACKAGES = ("torch_geometric.data.", "torch_geometric.datasets.")  # whose classes are read as their attributes


class _Attributes:
    """Stands for any class of PyTorch Geometric: its attributes alone."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


def load_pyg(path: str | pathlib.Path, fold: int = 0) -> GraphTables:
    """Read Data, HeteroData or TemporalData, also the first of the pair (data, slices) that data sets keep. fold: of
    masks [n, folds]. Raises FileFormatError for a file that holds anything else."""
    graph = _load(path)
    if isinstance(graph, tuple | list) and graph and isinstance(graph[0], _Attributes | dict):
        graph = graph[0]
    try:
        return _tables(graph, fold)
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        raise FileFormatError(f"{path}: not a graph of PyTorch Geometric ({error!r})") from None
    except ValueError as error:
        raise FileFormatError(f"{path}: {error}") from None


def load_attributes(path: str | pathlib.Path) -> dict[str, Any]:
    """Read the attributes of a homogeneous graph by name, also of the first of a pair (data, slices). Raises
    FileFormatError for a file that holds anything else."""
    graph = _load(path)
    graph = graph[0] if isinstance(graph, tuple | list) and graph else graph
    found = getattr(graph, "__dict__", {})  # of Data itself where its package has been imported
    if not found:
        raise FileFormatError(f"{path}: not a graph of PyTorch Geometric, but a {type(graph).__name__}")
    return dict(vars(found["_store"])["_mapping"] if "_store" in found else found)


def _load(path: str | pathlib.Path) -> Any:
    import torch  # only here: it takes more memory than all the rest

    if not pathlib.Path(path).is_file():
        raise FileFormatError(f"{path}: no such file")
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        strange = [name for name in names if not name.startswith(PACKAGES)]
        if strange:
            raise FileFormatError(
                f"{path}: holds {strange[0]}, which is not read, as that would run code: save the graph without it"
            )
        stubs: list[Any] = [(type("Attributes", (_Attributes,), {}), name) for name in names]
        with torch.serialization.safe_globals(stubs):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileFormatError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise FileFormatError(f"{path}: not a readable pt file ({' '.join(str(error).split())[:200]})") from None


def _tables(graph: Any, fold: int) -> GraphTables:
    """Make tables of the stores of a graph, or of the dictionary that ``to_dict`` makes of one."""
    if isinstance(graph, dict):
        return of_store(graph, graph.get("num_nodes"), fold)
    if "_node_store_dict" in vars(graph):
        nodes = {kind: vars(store)["_mapping"] for kind, store in graph._node_store_dict.items()}
        edges = {kind: vars(store)["_mapping"] for kind, store in graph._edge_store_dict.items()}
        further = vars(graph).get("_global_store")
        return of_stores(nodes, edges, fold, {} if further is None else vars(further)["_mapping"])
    store = vars(graph._store)["_mapping"]
    count = store.get("num_nodes")
    return of_store(store, None if count is None else int(array_of(count)), fold)
