"""Write-back into node memory against plain torch."""

import pytest
import torch

from hpcgnn.native.memory import replace_memory

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize(("nodes", "rows"), [(30, 12), (3000, 2000), (4, 0)])
def test_rows_are_replaced(nodes, rows, placed):
    torch.manual_seed(nodes)
    width, mail_width = 7, 12
    states, mails = torch.randn(nodes, width), torch.randn(nodes, 1, mail_width)
    updated, mailed, delivered = (torch.randint(1, 9, (nodes,)) for _ in range(3))
    delivered[::3] = 0
    before = [tensor.clone() for tensor in (states, mails, updated, mailed, delivered)]
    index, time = torch.randperm(nodes)[:rows], torch.randint(9, 20, (rows,))
    place = torch.randperm(rows + 5)[:rows] if placed else None
    state, behind = torch.randn(rows + 5 if placed else rows, width), torch.randn(rows, mail_width - width)
    replace_memory((states, mails, updated, mailed.view(-1, 1), delivered), index, place, state, behind, time)
    arrived = state if place is None else state[place]
    expected = [tensor.clone() for tensor in before]
    expected[0][index] = arrived
    expected[1][index, 0] = torch.cat([arrived, behind], dim=1)
    expected[2][index] = torch.where(before[4][index] > 0, before[3][index], time)
    expected[3][index] = time
    expected[4][index] += 1
    assert all(map(torch.equal, (states, mails, updated, mailed, delivered), expected))
