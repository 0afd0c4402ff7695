"""Static neighbor sampling of a whole batch in one call, on the CPU. n rows, m entries."""

from __future__ import annotations

from dataclasses import replace

from hpcgnn.native.build import _native
from hpcgnn.native.neighbors import MODES, checked_draws
from hpcgnn.native.random import Random
from hpcgnn.native.relabel import Relabel


def sample_layers(
    indptr, src, seeds, identity, fanouts, random: Random, relabel: Relabel, *, mode="uniform", weight=None,
    with_positions=False, threads=1,
):  # fmt: skip
    """A whole batch in one call: per hop (offsets [F + 1] int64, source [E] int32, positions [E] int64 or None).

    One node type, one relation, all of it here: indptr [n + 1], src [m], identity [n] int64, ``relabel`` of n nodes.
    The frontier of a hop, F nodes, is all unique nodes so far, the distinct seeds first. source is the place of each
    neighbor among the unique nodes after the hop, in the end ``relabel.unique``. Equal, bit for bit, to
    ``sample_neighbors`` with ``random.hop`` one more each hop, followed by ``relabel.add(src[positions])``; for mode
    and weight see there. NumPy only; releases the GIL, so that threads with a Relabel each may sample a batch each.
    """
    fanouts = [checked_draws(fanout, mode, weight, len(src))[0] for fanout in fanouts]
    if fanouts:
        replace(random, hop=random.hop + len(fanouts) - 1)  # refuses more hops than the counter has room for
    drawn_from = (indptr, src, identity, weight, MODES.get(mode, 0), seeds, fanouts, with_positions, random.native())
    return _native.sample_layers(*drawn_from, relabel._native, threads)
