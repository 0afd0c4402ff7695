"""A custom loss, cross entropy that counts confident nodes less (focal loss of Lin et al., 2017), and a callback that
keeps moving averages of the weights and ends training at a wanted accuracy.

Train with both by:

    PYTHONPATH=examples mpirun -np 2 hpcgnn train --kind static \
        --task.loss_path own_loss_and_callback.focal_loss --train.callbacks [own_loss_and_callback.Averages]
"""

import torch
from torch.nn.functional import cross_entropy

from hpcgnn import Callback


def focal_loss(output, label):
    """Return the sum over rows, which the trainer divides by the number of seeds of all ranks."""
    loss = cross_entropy(output, label, reduction="none")
    return ((1 - (-loss).exp()) ** 2 * loss).sum()


class Averages(Callback):
    """Moving averages of the weights, written to averages.pt in the run folder."""

    def on_train_begin(self, run):
        self.run = run
        self.averages = {name: value.detach().clone() for name, value in run.model.named_parameters()}

    def on_step_end(self, step, loss):
        for name, value in self.run.model.named_parameters():
            self.averages[name].lerp_(value.detach(), 0.01)

    def on_epoch_end(self, epoch, metrics):
        return metrics["val_accuracy"] > 0.9

    def on_train_end(self, metrics):
        if self.run.world.rank == 0:
            torch.save(self.averages, self.run.folder / "averages.pt")

    def state_dict(self):
        return self.averages

    def load_state_dict(self, state):
        for name, value in state.items():
            self.averages[name].copy_(value)
