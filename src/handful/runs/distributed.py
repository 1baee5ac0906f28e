"""Several processes that train one model: what each must know so that together they do what one would.

Each takes its share of the episodes of every step, gradients are averaged (DistributedDataParallel, set up by Lightning
Fabric), and batch norm takes its statistics over the images of all processes: the loss curve is that of one process
with the same episodes per step.
"""

from __future__ import annotations

import atexit
import logging
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn

from ..errors import HandfulError


def start_fabric(accelerator: str, devices: int, num_nodes: int, turns: int) -> Fabric:
    """Fabric, with its processes started."""
    if devices * num_nodes == 1:
        return Fabric(accelerator=accelerator, devices=1)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # not a line of greeting from each process
    # One turn gives the same parameters a gradient in every step, if perhaps not all of them; several take turns.
    strategy = DDPStrategy(static_graph=True) if turns == 1 else DDPStrategy(find_unused_parameters=True)
    fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=num_nodes, strategy=strategy)
    fabric.launch()
    atexit.register(_leave)
    return fabric


def _leave() -> None:
    """Part from the other processes: threads of a group that is still open at the end may abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def check_shares(episodes: int, episodes_per_step: int, processes: int) -> None:
    """Raise a HandfulError unless every step can be shared out evenly."""
    for name, amount in (("--episodes-per-step", episodes_per_step), ("--episodes", episodes)):
        if amount % processes:
            raise HandfulError(f"{name} {amount} cannot be shared out evenly: give a multiple of {processes} processes")


def share(start: int, count: int, rank: int, processes: int) -> tuple[int, int]:
    """The stretch of a step's episodes that one process takes, as (start, count).

    Example:
        >>> [share(100, 4, rank, 2) for rank in range(2)]
        [(100, 2), (102, 2)]
    """
    each = count // processes
    return start + rank * each, each


def synchronise_batch_norm(model: nn.Module, device: torch.device) -> None:
    """Let every batch norm in it take its statistics over all processes; weights and their names stay the same."""
    kind = nn.SyncBatchNorm if device.type == "cuda" else GlobalBatchNorm2d
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d:
                synced = kind(child.num_features, child.eps, child.momentum)
                synced.load_state_dict(child.state_dict())
                setattr(module, name, synced)


class GlobalBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over the images of all processes, for the processor (PyTorch has one for GPUs only)."""

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return super().forward(images)
        outputs: tuple[Tensor, ...] = _GlobalNorm.apply(images, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        normalised, mean, variance, count = outputs
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)  # type: ignore[union-attr, arg-type]
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)  # type: ignore[union-attr, arg-type]
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        return normalised


class _GlobalNorm(torch.autograd.Function):
    """Images (n, C, h, w) -> normalised images, and mean (C,), variance (C,) and count over all processes."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
        variance, mean = torch.var_mean(images, (0, 2, 3), correction=0)
        own = torch.stack([variance, mean, torch.full_like(mean, images.numel() / len(mean))])
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        variances, means, counts = torch.stack(parts).unbind(1)  # (processes, C) each
        count = counts.sum(0)
        mean = (counts * means).sum(0) / count
        variance = (counts * (variances + (means - mean).square())).sum(0) / count
        ctx.save_for_backward(images, weight, mean, torch.rsqrt(variance + eps), count)
        ctx.mark_non_differentiable(mean, variance, count)
        return nn.functional.batch_norm(images, mean, variance, weight, bias, eps=eps), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, mean, inverse, count = ctx.saved_tensors
        gradient = gradients[0]
        wide = (1, -1, 1, 1)
        normal = (images - mean.view(wide)).mul_(inverse.view(wide))
        sums = torch.stack([gradient.sum((0, 2, 3)), (gradient * normal).sum((0, 2, 3))])
        over_all = sums.clone()
        dist.all_reduce(over_all)
        shift, slope = over_all / count
        back = gradient - shift.view(wide) - normal.mul_(slope.view(wide))
        return back.mul_((weight * inverse).view(wide)), sums[1], sums[0], None
