"""The dense models that ours are compared with are those of PyTorch-Geometric-Temporal, where it has the same ones.

K terms of a filter, H hidden columns.
"""

import pytest
import torch
from dense_models import DENSE

from hpcgnn.snapshots.config import SnapshotModelConfig

peers = pytest.importorskip("torch_geometric_temporal.nn.recurrent", reason="needs torch_geometric_temporal")

pytestmark = pytest.mark.serial

NODES, SNAPSHOTS, INPUTS, HIDDEN = 14, 4, 3, 5


def make_case(loops: int):
    """Symmetric weighted matrices, loops at the first nodes, one of a graph with an isolated node; inputs; as edges,
    too."""
    torch.manual_seed(2)
    a = torch.rand(SNAPSHOTS, NODES, NODES).double() * (torch.rand(SNAPSHOTS, NODES, NODES) < 0.2)
    a = (a + a.transpose(1, 2)) * (1 - torch.eye(NODES))
    a[:, range(loops), range(loops)] = torch.rand(SNAPSHOTS, loops).double() + 0.5
    a[1, 9], a[1, :, 9] = 0, 0
    edges = [(torch.nonzero(matrix).T, matrix[tuple(torch.nonzero(matrix).T)]) for matrix in a]
    return a, torch.randn(SNAPSHOTS, NODES, INPUTS).double(), edges


def terms(convolutions):
    """Weights [K I, gates H] of Chebyshev convolutions, and their biases [gates H]."""
    weight = [torch.cat([lin.weight.T for lin in conv.lins]) for conv in convolutions]
    return torch.cat(weight, 1), torch.cat([conv.bias for conv in convolutions])


def tgcn(cell):
    pairs = [(getattr(cell, f"conv_{g}"), getattr(cell, f"linear_{g}")) for g in "zrh"]
    around = [linear.weight[:, :HIDDEN].T for _, linear in pairs]
    kept = [linear.weight[:, HIDDEN:].T for _, linear in pairs]
    bias = [conv.bias @ after + linear.bias for (conv, linear), after in zip(pairs, around, strict=True)]
    weight = [conv.lin.weight.T @ after for (conv, _), after in zip(pairs, around, strict=True)]
    return {
        "weight": torch.cat(weight, 1), "bias": torch.cat(bias), "cell.gates": torch.cat(kept[:2], 1),
        "cell.candidate": kept[2],
    }  # fmt: skip


def gconv_gru(cell):
    weight, bias = terms([cell.conv_x_z, cell.conv_x_r, cell.conv_x_h])
    kept, more = terms([cell.conv_h_z, cell.conv_h_r, cell.conv_h_h])
    both, candidate = kept[:, : 2 * HIDDEN], kept[:, 2 * HIDDEN :]
    return {"weight.0": weight, "bias.0": bias + more, "cells.0.kept": both, "cells.0.candidate": candidate}


def gconv_lstm(cell):
    weight, bias = terms([cell.conv_x_i, cell.conv_x_f, cell.conv_x_o, cell.conv_x_c])
    kept, more = terms([cell.conv_h_i, cell.conv_h_f, cell.conv_h_o, cell.conv_h_c])
    own = torch.cat([cell.b_i, cell.b_f, cell.b_o, cell.b_c], 1).ravel()
    look = torch.cat([cell.w_c_i, cell.w_c_f, cell.w_c_o])
    return {"weight.0": weight, "bias.0": bias + more + own, "cells.0.kept": kept, "cells.0.peephole": look}


PEERS = {
    "tgcn": (tgcn, lambda: peers.TGCN(INPUTS, HIDDEN)),
    "gconv_gru": (gconv_gru, lambda: peers.GConvGRU(INPUTS, HIDDEN, 3)),
    "gconv_lstm": (gconv_lstm, lambda: peers.GConvLSTM(INPUTS, HIDDEN, 3)),
}


@pytest.mark.parametrize(("kind", "loops"), [*((kind, 0) for kind in PEERS), ("tgcn", 5)])
def test_cells_are_the_same(kind, loops):
    a, x, edges = make_case(loops)
    parameters, make = PEERS[kind]
    cell = make().double()
    for value in cell.parameters():
        torch.nn.init.normal_(value, std=0.5)
    output = {"output.weight": torch.randn(2, HIDDEN).double(), "output.bias": torch.randn(2).double()}
    state, expected = [x.new_zeros(NODES, HIDDEN)] * (2 if kind == "gconv_lstm" else 1), []
    for rows, (index, weight) in zip(x, edges, strict=True):
        found = cell(rows, index, weight, *state)
        state = list(found) if isinstance(found, tuple) else [found]
        expected.append(torch.relu(state[0]) @ output["output.weight"].T + output["output.bias"])
    config = SnapshotModelConfig(kind=kind, hidden=HIDDEN, order=2 if kind == "tgcn" else 3)
    found = DENSE[kind](parameters(cell) | output, a, x, config)
    assert torch.allclose(torch.stack(found), torch.stack(expected), rtol=1e-10, atol=1e-10)
