"""The optimizer step: gradients summed over ranks and over a group of steps, clipped, at the scheduled learning rate.

A group is ``train.accumulate_steps`` consecutive steps of an epoch, the epoch's last one may be shorter. Where a group
ends and what its learning rate is are functions of epoch and step alone, so a resumed run needs no counters.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from hpcgnn.comm.gradients import FlatParameters, GradientSum
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.loop.settings import TrainConfig
from hpcgnn.native.adam import adam_step
from hpcgnn.native.layers import is_supported

LOSS, STOP, BUSY, DUE = 0, 1, 2, 3  # extras that travel with the gradients
MOMENTUM = 0.9
BETAS, EPSILON = (0.9, 0.999), 1e-8
CHUNK = 1024


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Compute the learning rate of an optimizer step, counted from 0 over all epochs (over all rounds of epochs, where
    several are trained at once)."""
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    if config.schedule == "constant":
        return warm * config.lr
    if config.schedule == "step":
        times = step // steps_per_epoch * config.parallel_epochs // config.step_every
        return warm * max(config.min_lr, config.lr * config.step_decay**times)
    decaying_steps = config.epochs // config.parallel_epochs * steps_per_epoch - config.warmup_steps
    done = min(1.0, max(0, step - config.warmup_steps) / max(1, decaying_steps))
    share = 1.0 - done if config.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return warm * (config.min_lr + (config.lr - config.min_lr) * share)


def squared_norm(gradient: torch.Tensor) -> torch.Tensor:
    """Sum the squares of a flat tensor, in float64.

    In chunks of fixed length: torch splits one long sum among its threads, and ranks with other numbers of them would
    end with other last bits, hence other weights.
    """
    padded = torch.nn.functional.pad(gradient.double(), (0, -len(gradient) % CHUNK))
    return padded.square().view(-1, CHUNK).sum(dim=1).sum()


def clip(gradient: torch.Tensor, longest: float) -> None:
    """Shorten a flat gradient in place to norm ``longest`` when it is longer (Pascanu et al. 2013)."""
    factor = longest / (squared_norm(gradient).sqrt() + 1e-12)
    gradient.mul_(factor.clamp(max=1.0).to(gradient.dtype))


def decays(config: TrainConfig, model: torch.nn.Module) -> list[tuple[slice, float]]:
    """Divide the flat weights of a model, in their order, into slices of one weight decay each. Raises DistributedError
    for a part of ``train.part_weight_decay`` that the model does not have."""
    weights = {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}
    for part in config.part_weight_decay:
        if not any(_is_in(name, part) for name in weights):
            known = ", ".join(dict.fromkeys(name.partition(".")[0] for name in weights)) or "no weights"
            message = f"train.part_weight_decay.{part}: the model has no part of this name; it has {known}"
            raise DistributedError(message, user_error=True)
    pieces, end = [], 0
    for decay, names in itertools.groupby(weights, lambda name: _decay_of(name, config)):
        begin, end = end, end + sum(weights[name] for name in names)
        pieces.append((slice(begin, end), decay))
    return pieces


def _decay_of(name: str, config: TrainConfig) -> float:
    """Return the weight decay of a weight: of the part with the longest name, if it is in any."""
    parts = [part for part in config.part_weight_decay if _is_in(name, part)]
    return config.part_weight_decay[max(parts, key=len)] if parts else config.weight_decay


def _is_in(name: str, part: str) -> bool:
    """Whether a weight is in a part of the model."""
    return f"{name}.".startswith(f"{part}.")


class FlatOptimizer:
    """Optimizes one flat parameter, the same on all ranks. Collective to create, to sum, to save and to close.

    Steps use the functions of torch's optimizers: making one of their objects loads torch's compiler, which takes a
    second and 90 MB on every rank. lr: of the newest step.
    """

    def __init__(self, config: TrainConfig, model: torch.nn.Module, world: World, num_steps: int):
        self._decays = decays(config, model)
        self.flat = FlatParameters(model, num_extras=4)
        self._config, self._num_steps = config, num_steps
        self._groups = -(-num_steps // config.accumulate_steps)  # of every epoch, for the schedule
        self._sum = GradientSum(world)
        self.lr, self._moments = config.lr, self._first_moments()

    def start_epoch(self, num_steps: int) -> None:
        """Set the number of steps of an epoch, with which its last group ends; epochs may differ."""
        self._num_steps = num_steps

    def begin(self, step: int) -> None:
        """Clear gradients where a group begins."""
        if step % self._config.accumulate_steps == 0:
            self.flat.zero()

    def sum(
        self, step: int, loss: torch.Tensor, stop: bool, busy: bool = False, due: bool = False
    ) -> tuple[float, bool, bool, bool]:  # fmt: skip
        """Collective. Return the step's loss over all ranks, and whether any rank requests to stop, is busy with a
        checkpoint, and finds that another one is due. With the last step of a group the gradient is summed in the same
        message."""
        self.flat.extras[LOSS] = loss
        for place, flag in ((STOP, stop), (BUSY, busy), (DUE, due)):
            self.flat.extras[place] = float(flag)
        if self._ends_group(step):
            self.flat.sum(self._sum)
        else:
            self.flat.sum_extras(self._sum)
        total, stops, writers, clocks = self.flat.extras.tolist()
        return total / self._config.parallel_epochs, stops > 0, writers > 0, clocks > 0

    def rate(self, epoch: int, step: int) -> float:
        """Compute the share of ``train.lr`` that the schedule gives to a step."""
        return self._scheduled(epoch, step) / self._config.lr

    def _scheduled(self, epoch: int, step: int) -> float:
        round_start = epoch // self._config.parallel_epochs * self._groups
        number = round_start + min(step // self._config.accumulate_steps, self._groups - 1)
        return learning_rate(self._config, number, self._groups)

    def step(self, epoch: int, step: int) -> None:
        """Update the weights, if this is the last step of a group."""
        if not self._ends_group(step):
            return
        num_summed = (step % self._config.accumulate_steps + 1) * self._config.parallel_epochs
        if num_summed > 1:
            self.flat.gradient.div_(num_summed)
        if self._config.clip_grad_norm > 0:
            clip(self.flat.gradient, self._config.clip_grad_norm)
        self.lr = self._scheduled(epoch, step)
        if self.flat.parameter.numel() == 0:
            return
        if self._config.optimizer == "sgd":
            self._step_sgd()
        else:
            self._step_adam()

    def _first_moments(self) -> dict[str, torch.Tensor]:
        """Return the moments before the first step, named as torch's optimizers name them."""
        parameter = self.flat.parameter.data
        if self._config.optimizer == "sgd":
            return {"momentum_buffer": torch.zeros_like(parameter)}
        averages = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **averages}

    def _step_sgd(self) -> None:
        parameter, gradient, momentum = self.flat.parameter.data, self.flat.gradient, self._moments["momentum_buffer"]
        for part, weight_decay in self._decays:
            sgd(
                [parameter[part]], [gradient[part]], [momentum[part]], fused=True, lr=self.lr,
                weight_decay=weight_decay, momentum=MOMENTUM, dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip

    def _step_adam(self) -> None:
        """Step in one pass over the arrays for each weight decay, on the host without the calls around it."""
        decoupled, is_native = self._config.optimizer == "adamw", is_supported(self.flat.parameter.data)
        step_torch: Any = adamw if decoupled else adam
        step, mean, square = (self._moments[name] for name in ("step", "exp_avg", "exp_avg_sq"))
        for part, weight_decay in self._decays:
            arrays = [array[part] for array in (self.flat.parameter.data, self.flat.gradient, mean, square)]
            if is_native:
                options = int(step) + 1, self.lr, BETAS, EPSILON, weight_decay, decoupled
                adam_step(arrays[0], arrays[1], arrays[2], arrays[3], *options)
            else:  # with a copy of the step, which torch counts up
                step_torch(
                    *([array] for array in arrays), [], [step.clone()], fused=True, amsgrad=False, beta1=BETAS[0],
                    beta2=BETAS[1], lr=self.lr, weight_decay=weight_decay, eps=EPSILON, maximize=False,
                )  # fmt: skip
        step += 1

    def tensors(self, step: int) -> dict[str, torch.Tensor]:
        """Collective. Return the optimizer's tensors for a checkpoint before ``step``: the moments, the newest learning
        rate and, within a group, the gradient so far, summed over ranks."""
        tensors = {f"optimizer.{name}": value for name, value in self._moments.items()}
        tensors["lr"] = torch.tensor(self.lr, dtype=torch.float64)
        if step % self._config.accumulate_steps and step < self._num_steps:
            tensors["gradient"] = self.flat.gather_gradient(self._sum).clone()
        return tensors

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take over what ``tensors`` returned, on any number of ranks."""
        device, prefix = self.flat.parameter.device, "optimizer."
        for name, value in tensors.items():
            if name.startswith(prefix):
                self._moments[name[len(prefix) :]] = value.to(device, copy=True)
        if "lr" in tensors:
            self.lr = float(tensors["lr"])
        if "gradient" in tensors:
            self.flat.set_gradient(tensors["gradient"], self._sum)

    def close(self) -> None:
        """Collective. Free the communicator."""
        self._sum.close()

    def _ends_group(self, step: int) -> bool:
        return (step + 1) % self._config.accumulate_steps == 0 or step + 1 == self._num_steps
