"""Write-back into node memory on the CPU. n nodes, D state width, M mail width."""

from __future__ import annotations

import torch

from hpcgnn.native.layers import address, kernels_for


def replace_memory(table: tuple[torch.Tensor, ...], rows, place, state, rest, time) -> None:
    """Replace state and only mail of unique rows [m] int64 of a table, in place: state [n, D], mail [n, 1, M], updated
    [n], mailed [n, 1], delivered [n]. New states are state [., D] at place [m] int64 (None: [m, D] as they come), new
    mails, of times [m], the new state and rest [m, M - D]. The state's time becomes that of the mail it consumed; for
    a node without mail, that of its first mail."""
    states, mails, updated, mailed, delivered = table
    (total, width), mail_width, count = states.shape, mails.shape[2], rows.shape[0]
    kernels, dtype, long = kernels_for(states), states.dtype, torch.int64
    target = kernels.MemoryTable()
    target.state_width, target.mail_width = width, mail_width
    target.state = address(states, dtype, total, width)
    target.mail = address(mails, dtype, total, 1, mail_width)
    target.updated = address(updated, long, total)
    target.mailed = address(mailed, long, total, 1)
    target.delivered = address(delivered, long, total)
    write = kernels.MemoryWrite()
    write.count = count
    write.rows = address(rows, long, count)
    write.state = address(state, dtype, count if place is None else -1, width)
    write.rest = address(rest, dtype, count, mail_width - width)
    write.time = address(time, long, count)
    if place is not None:
        write.place = address(place, long, count)
    kernels.replace_memory(target, write, torch.get_num_threads())
