"""Messages, and the updater that reads a mailbox of several mails. r rows, S slots, D memory width, M mail width."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.nn.linear import linear
from hpcgnn.nn.time_encoding import TimeEncoding
from hpcgnn.nn.updater import work_in


class MessageMLP(nn.Module):
    """A mail becomes a message through two linear layers (Rossi et al., 2020)."""

    def __init__(self, mail_width: int, width: int):
        super().__init__()
        self.hidden, self.out = nn.Linear(mail_width, width), nn.Linear(width, width)

    def forward(self, mail: torch.Tensor) -> torch.Tensor:
        """mail [..., M]; returns [..., width]."""
        rows = torch.relu(linear(mail.flatten(0, -2), self.hidden.weight, self.hidden.bias))
        return linear(rows, self.out.weight, self.out.bias).view(*mail.shape[:-1], -1)


class TransformerUpdater(nn.Module):
    """The state attends to the mails of its mailbox (Wang et al., APAN: asynchronous propagation attention network for
    real-time temporal graph embedding, 2021)."""

    def __init__(self, mail_width: int, memory_width: int, time: TimeEncoding, heads: int):
        super().__init__()
        if memory_width % heads:
            raise ValueError(f"model.heads ({heads}) must divide model.memory_dim ({memory_width})")
        width = mail_width + len(time.phase)
        self.time, self.heads = time, heads
        self.query = nn.Linear(memory_width, memory_width)
        self.key, self.value = nn.Linear(width, memory_width, bias=False), nn.Linear(width, memory_width)
        self.out, self.norm = nn.Linear(2 * memory_width, memory_width), nn.LayerNorm(memory_width)

    def forward(self, state, mail, dt, count) -> torch.Tensor:
        """state [r, D], mail [r, S, M], dt [r, S] int64 >= 0 age against the newest mail, count [r] mails there;
        returns the new state, or the old one without mail."""
        return work_in(self._step, count > 0, state, mail, dt, count.clamp(min=1))

    def _step(self, state, mail, dt, count) -> torch.Tensor:
        r, slots = dt.shape
        given = torch.cat([mail.flatten(0, 1), self.time(dt.flatten())], dim=1)
        heads = lambda rows, n: rows.view(r, n, self.heads, -1).transpose(1, 2)  # noqa: E731 - [r, H, n, D / H]
        query = heads(linear(state, self.query.weight, self.query.bias), 1)
        key = heads(linear(given, self.key.weight), slots)
        value = heads(linear(given, self.value.weight, self.value.bias), slots)
        score = (query * key).sum(-1) * key.shape[-1] ** -0.5  # [r, H, S]
        absent = torch.arange(slots, device=dt.device) >= count.unsqueeze(1)
        weight = torch.softmax(score.masked_fill(absent.unsqueeze(1), float("-inf")), dim=2)
        read = (weight.unsqueeze(-1) * value).sum(2).flatten(1)
        merged = linear(torch.cat([read, state], dim=1), self.out.weight, self.out.bias)
        return self.norm(torch.relu(merged))
