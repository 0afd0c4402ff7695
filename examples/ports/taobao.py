"""Links of users and items with two encoders, as in taobao.py of PyTorch Geometric: items see items that users have in
common, users see items. The negatives of training are pairs of two drawn ends.

mpirun -np 2 python examples/ports/taobao.py parts/
"""

import sys

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch_geometric.nn import SAGEConv

from hpcgnn import FlatParameters, GradientSum, LinkNeighborLoader, StaticGraph, World

WITH, LIKED = ("item", "with", "item"), ("item", "rev_to", "user")


class TwoEncoders(nn.Module):
    """Scores of pairs [n], from embeddings of users and items."""

    def __init__(self, num_users, num_items, width=32):
        super().__init__()
        self.user, self.item = nn.Embedding(num_users, width), nn.Embedding(num_items, width)
        self.item_conv, self.user_conv = (nn.ModuleList(SAGEConv(width, width) for _ in range(2)) for _ in range(2))
        self.decoder = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, data):
        items, users = self.item(data["item"].n_id), self.user(data["user"].n_id)
        for item_conv, user_conv in zip(self.item_conv, self.user_conv, strict=True):
            users = users + user_conv((items, users), data[LIKED].edge_index).relu()
            items = items + item_conv(items, data[WITH].edge_index).relu()
        source, destination = data["user", "to", "item"].edge_label_index
        return self.decoder(torch.cat([users[source], items[destination]], 1)).squeeze(1)


def train(path, epochs=5, batch_size=256, world=None):
    world = world or World()
    graph = StaticGraph(path, world)
    loader, tests = (
        LinkNeighborLoader(graph, ("user.to.item", split), [8, 4], batch_size, neg_sampling="binary", as_data="pyg")
        for split in ("train", "test")
    )
    torch.manual_seed(0)  # the same weights on all ranks
    model = TwoEncoders(300, 120)
    flat, reduce = FlatParameters(model, num_extras=1), GradientSum(world)
    optimizer, losses = torch.optim.Adam([flat.parameter], lr=0.02), []
    for _ in range(epochs):
        for data in loader:
            label = data["user", "to", "item"].edge_label
            loss = bce(model(data), label.float(), reduction="sum") / (2 * data.num_seeds)
            flat.zero()
            loss.backward()
            flat.extras[0] = loss.detach()
            flat.sum(reduce)
            optimizer.step()
            losses.append(float(flat.extras[0]))
    return losses, accuracy(model, tests, world)


@torch.no_grad()
def accuracy(model, loader, world):
    """Share of the pairs of all ranks that are told apart."""
    right = pairs = 0
    for data in loader:
        label = data["user", "to", "item"].edge_label
        right += int(((model(data) > 0) == (label > 0)).sum())
        pairs += len(label)
    return world.total(right) / world.total(pairs)


if __name__ == "__main__":
    ranks = World()
    losses, share = train(sys.argv[1], world=ranks)
    if ranks.rank == 0:
        print(f"first loss {losses[0]:.4f}, last loss {losses[-1]:.4f}, test accuracy {share:.4f}")
