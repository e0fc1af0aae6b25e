"""C&W-Ada, the paper's attack (section 4)."""

import torch
from torch import Tensor

from popqorn._typing import Float
from popqorn.attacks.fgsm import FAR
from popqorn.attacks.found import Found
from popqorn.attacks.pgd import polish
from popqorn.task import Task

STEPS = 200
RATE = 0.05  # Adam's, in units of the first-order radius
CONSTANT = 0.01


def cw(task: Task, found: Found, linear: Float[Tensor, "batch rows"], restarts: int, generator: torch.Generator) -> None:
    """Adam on `q + (v + c) size`, `q` the margin that is left, `v = 1` where none is, `size` that of the set that holds it."""
    allowed, nearest = task.allowed, linear.amin(-1)
    everyone = torch.arange(len(linear), device=linear.device)
    around = allowed.at(nearest)
    box = around.box()
    widest = torch.maximum(box.upper - allowed.center, allowed.center - box.lower)
    safe = torch.where(widest > 0, widest, 1.0)
    limit = allowed.at(torch.minimum(FAR * nearest, allowed.greatest))
    for restart in range(restarts):
        start = allowed.center + 0.5 * (around.random(generator) - allowed.center) if restart else allowed.center
        scaled = ((start - allowed.center) / safe).requires_grad_()
        optimizer = torch.optim.Adam([scaled], lr=RATE)
        for step in range(STEPS):
            with torch.enable_grad():
                points = allowed.center + widest * scaled
                left = task.values(points).amin(-1)
                loss = left.clamp(min=0) + ((left < 0).to(left.dtype) + CONSTANT) * allowed.size_of(points)
            found.offer(task, everyone, points.detach(), left.detach() < 0)
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
            (scaled.grad,) = torch.autograd.grad(loss.sum(), scaled)
            optimizer.step()
            with torch.no_grad():
                scaled.copy_((limit.nearest(allowed.center + widest * scaled) - allowed.center) / safe)
    polish(task, found)
