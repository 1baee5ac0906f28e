"""The optimisers of a run, one for each turn of a step: their rate, their decay, their state in a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from .config import RunConfig

Optimizers = dict[str, Any]  # of each turn of a training step, in order, as Fabric wraps them
MOMENTUM = 0.9
STATE = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "sgd": {"momentum_buffer"}}  # of a parameter


def build_optimizer(config: RunConfig, parameters: list[nn.Parameter]) -> Optimizer:
    """An optimiser of these parameters. The fused form does all tensors of a model in one call."""
    penalty = config.weight_decay if config.decay_form == "l2" else 0.0
    decayed, free = _by_decay(config, parameters)
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": penalty}]
    if free:
        groups.append({"params": free, "weight_decay": 0.0})
    if config.optimiser == "sgd":
        return SGD(groups, lr=config.learning_rate, momentum=MOMENTUM, nesterov=True, fused=True)
    return Adam(groups, lr=config.learning_rate, fused=True)


def _by_decay(config: RunConfig, parameters: list[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that decay, and those that do not."""
    if config.decay_on == "all":
        return parameters, []
    return [p for p in parameters if p.dim() == 4], [p for p in parameters if p.dim() != 4]


def learning_rate(config: RunConfig, episode: int) -> float:
    """The rate of the step that starts with this episode."""
    done = episode / config.episodes
    factor = 1.0
    if config.schedule == "step" and done >= config.decay_at:
        factor = config.decay
    elif config.schedule == "cosine":
        factor = 0.5 * (1 + math.cos(math.pi * done))
    elif every := config.halving():
        factor = 0.5 ** (episode // every)
    return config.learning_rate * factor


def set_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


@torch.no_grad()
def decay(config: RunConfig, optimizer: Any, rate: float) -> None:
    """Shrink the weights after a step, if they decay beside the gradient and not in it."""
    if config.decay_form == "l2" or config.weight_decay == 0:
        return
    amount = config.weight_decay * (rate if config.decay_form == "decoupled" else 1.0)
    torch._foreach_mul_(optimizer.param_groups[0]["params"], max(0.0, 1.0 - amount))


def optimizer_tensors(optimizers: Optimizers) -> dict[str, Tensor]:
    """The state of the optimisers, for a checkpoint."""
    return {
        f"{prefix}.{index}.{key}": value
        for prefix, optimizer in _prefixes(optimizers)
        for index, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
    }


def restore_optimizers(config: RunConfig, optimizers: Optimizers, tensors: dict[str, Tensor]) -> None:
    """Give the optimisers their state back; a ValueError or RuntimeError if it is none."""
    for prefix, optimizer in _prefixes(optimizers):
        content = optimizer.state_dict()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(parameters):
            entries = {k.rsplit(".", 1)[1]: v for k, v in tensors.items() if k.startswith(f"{prefix}.{index}.")}
            if entries and entries.keys() != STATE[config.optimiser]:
                raise ValueError(f"the optimiser has {sorted(entries)}")
            if not all(value.isfinite().all() for value in entries.values()):
                raise ValueError("the optimiser has numbers that are not finite")
            if "exp_avg_sq" in entries and (entries["exp_avg_sq"] < 0).any():
                raise ValueError("the optimiser has negative squares")
            # In the memory layout of the parameter, as they were made: the same numbers summed in the same order.
            content["state"][index] = {
                key: value if key == "step" else torch.empty_like(parameter).copy_(value.reshape(parameter.shape))
                for key, value in entries.items()
            }
        optimizer.load_state_dict(content)


def _prefixes(optimizers: Optimizers) -> Iterator[tuple[str, Any]]:
    """What the tensors of each optimiser are called in a checkpoint; that of the first turn needs no name."""
    for number, (turn, optimizer) in enumerate(optimizers.items()):
        yield "optimizer" if number == 0 else f"optimizer.{turn}", optimizer
