"""From a table of events to the best items of each user, in Python: without mpirun, or on all its ranks.

python examples/events_in_python.py
"""

import numpy as np
import pandas as pd

import hpcgnn

# A table as a file or a database gives it: who bought what, and when.
rng = np.random.default_rng(0)
user = rng.integers(0, 60, 6000)
item = np.where(rng.random(6000) < 0.7, user % 20, rng.integers(0, 40, 6000))
when = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.sort(rng.integers(0, 30 * 86400, 6000)), unit="s")
buys = pd.DataFrame({"user": user, "item": item, "when": when})


def main(folder="buys"):
    world = hpcgnn.World()
    if world.rank == 0:
        hpcgnn.from_edges(buys, f"{folder}/buys.h5", src="user", dst="item", time="when", relation="user.buys.item")
    world.barrier()
    run = hpcgnn.fit(f"{folder}/buys.h5", recipe="tgn", config={"train.epochs": 4, "memory.dim": 32}, quiet=True)
    scores, best = run.evaluate(), run.predict(top_k=10, new_only=True)
    if world.rank == 0:  # the data frames are on rank 0
        print(run.metrics()[["kind", "epoch", "loss", "val_ap"]])
        print(f"test AP {scores['test_ap']:.3f}")
        print(best[best["src"] == 7])
    return run, best


if __name__ == "__main__":
    main()
