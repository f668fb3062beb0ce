"""A model with tied, frozen and unused weights of odd sizes, as a task."""

from __future__ import annotations

import torch
from torch import nn

from oakum_worker.task import Task
from training_ranks import Points, mean_squared_error


class Tied(nn.Module):
    """Weights tied within the model and across blocks, frozen ones and ones that are never used, of odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 7), nn.Linear(7, 7)])
        self.blocks[2].weight = self.blocks[1].weight
        self.middle = nn.Sequential(nn.Linear(7, 11), nn.GELU(), nn.Linear(11, 7))
        self.readout, self.again = nn.Linear(7, 2, bias=False), nn.Linear(7, 2)
        self.again.weight = self.readout.weight
        self.middle[0].bias.requires_grad_(False)
        self.unused, self.blocks_for_later = nn.Linear(3, 3), nn.ModuleList([nn.Linear(4, 3)])
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        hidden = self.blocks[1](torch.tanh(self.blocks[0](inputs)))
        hidden = self.blocks[2](hidden + self.middle(hidden))
        return self.readout(hidden) + self.again(torch.tanh(hidden))


def build_tied_task() -> Task:
    """With AdamW in two groups, one of them without decay, a schedule, clipped gradients."""
    torch.manual_seed(1)
    model = Tied().double()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1 and p.requires_grad]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, amsgrad=True)
    optimizer.register_step_pre_hook(_clip)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.1], total_steps=100)
    return Task(model=model, dataset=Points(), loss=mean_squared_error, optimizer=optimizer, scheduler=schedule)


def _clip(optimizer: torch.optim.Optimizer, *_: object) -> None:
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.5)
