"""From a graph of PyTorch Geometric in memory to the class, the probabilities and the embedding of every node.

python examples/further/pyg_data.py
"""

import numpy as np
import torch
from torch_geometric.data import Data

import hpcgnn


def make_data():
    """A graph of 400 nodes with 4 classes, which stands in for yours."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 400)
    x = 0.8 * np.eye(8)[y] + rng.normal(size=(400, 8))
    same = [rng.choice(np.flatnonzero(y == y[source]), 6) for source in range(400)]
    edges = np.stack([np.repeat(np.arange(400), 6), np.concatenate(same)])
    share = torch.from_numpy(rng.random(400))
    return Data(
        x=torch.tensor(x, dtype=torch.float32), y=torch.from_numpy(y), edge_index=torch.from_numpy(edges),
        train_mask=share < 0.5, val_mask=(share >= 0.5) & (share < 0.75), test_mask=share >= 0.75,
    )  # fmt: skip


def main(folder="runs/pyg_data"):
    data, world = make_data(), hpcgnn.World()
    if world.rank == 0:
        hpcgnn.convert(data, f"{folder}/graph.h5")
    world.barrier()
    config = {"model.hidden": 32, "train.epochs": 10, "train.batch_size": 64, "eval.exact": True}
    run = hpcgnn.fit(f"{folder}/graph.h5", recipe="sage", config=config, quiet=True)
    metrics, rows, vectors = run.evaluate(), run.predict(probabilities=True), run.embeddings()
    if world.rank == 0:  # the answers are on rank 0
        print(rows.head(3))  # a row per node, in the order of data.x
        print("embeddings", vectors["embedding"].shape)
        print(f"test accuracy {metrics['test_accuracy']:.4f}")
    return data, metrics, rows, vectors


if __name__ == "__main__":
    main()
