"""The rows of all ranks that score best.

n nodes of this rank, k sequences, D columns, m rows wanted.
"""

from __future__ import annotations

import torch

from hpcgnn.nn.snapshot import Frame

NOBODY = torch.iinfo(torch.int64).max >> 11  # an id, exact in float64, that no row has


def best_rows(frames: list[Frame], rows: list[torch.Tensor], direction: torch.Tensor, num_best: int) -> list:
    """Collective. Of every frame's rows [n, k, D] of all ranks the m with the largest products with a direction [D] of
    length 1, each times tanh of its product: [k, m, D], the best first, of equal ones the lower row id; zeros where
    there are fewer nodes. One exchange for all frames."""
    pieces = [(frame, piece) for frame, some in zip(frames, rows, strict=True) for piece in some.unbind(1)]
    keys, sent = [], []
    for frame, piece in pieces:
        key, found = _own_best(piece, frame.snapshots[0].identity, direction, num_best)
        keys.append(key)
        sent.append(found)
    best = _choose(torch.stack(keys), torch.stack(sent), frames[0].everyone)
    return list(best.split([some.shape[1] for some in rows]))


def _own_best(rows, identity, direction, num_best: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys (product, row id) [m, 2] float64 and weighed rows [m, D] of this rank's best."""
    with torch.no_grad():
        score = rows @ direction
        place = torch.arange(len(score), device=score.device)
        if len(score) > num_best:
            place = torch.nonzero(score >= score.topk(num_best).values[-1]).ravel()
        place = place[identity[place].argsort()]
        place = place[score[place].argsort(descending=True, stable=True)][:num_best]
        key = score.new_tensor([-torch.inf, NOBODY], dtype=torch.float64).repeat(num_best, 1)
        key[: len(place), 0], key[: len(place), 1] = score[place].double(), identity[place].double()
    found = rows[place]
    found = found * torch.tanh(found @ direction).unsqueeze(1)
    return key, torch.nn.functional.pad(found, (0, 0, 0, num_best - len(place)))


def _choose(keys: torch.Tensor, rows: torch.Tensor, everyone) -> torch.Tensor:
    """Collective. The best [p, m, D] of all ranks for p problems: keys [p, m, 2] and rows [p, m, D] are this rank's."""
    if everyone is None:
        return rows
    exchanges = everyone.start(keys.flatten(0, 1)), everyone.start(rows.flatten(0, 1))
    keys, found = (_by_problem(everyone.finish(e), some) for e, some in zip(exchanges, (keys, rows), strict=True))
    order = keys[..., 1].argsort(dim=1)
    order = order.gather(1, keys[..., 0].gather(1, order).argsort(dim=1, descending=True, stable=True))
    order = order[:, : rows.shape[1], None].expand(-1, -1, rows.shape[2])
    return found.gather(1, order)


def _by_problem(received: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
    """What arrived of all ranks [R p m, D] as [p, R m, D]."""
    return received.view(-1, *sent.shape).transpose(0, 1).flatten(1, 2)
