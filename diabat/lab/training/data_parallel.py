"""Data parallelism: the processes that torchrun starts share every batch.

Each process takes its part of a batch, and gradients are added up before the update, each part weighted by its
number of targets.  The weights are therefore those of one process with the same batch size, except for rounding and
for random numbers of a forward pass: dropout and reads differ from process to process.
"""

from __future__ import annotations

import atexit
import os
import zlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, distributed, nn


class Processes:
    """The ``count`` processes of this run, of which the first (``is_main``) writes the files; one without torchrun."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.index = int(os.environ["RANK"]) if self.count > 1 else 0
        self.is_main = self.index == 0
        if self.count > 1 and not distributed.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(device)
            # This module, which torch.optim imports, keeps the process group of its import as a default argument.
            # Imported after the group is made, it would keep it alive, and a thread of gloo may abort the exit.
            from torch.distributed.nn import functional  # noqa: F401

            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
            atexit.register(distributed.destroy_process_group)

    def own(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """This process's share of the pieces of a batch."""
        return list(pieces[self.index :: self.count])

    def reseed(self, seed: int, step: int) -> None:
        """Seed the generators of each process differently; a function of seed and step, so nothing is saved."""
        if self.count > 1:
            torch.manual_seed(zlib.crc32(f"{seed} {step} {self.index}".encode()))

    def sum(self, *values: float) -> list[float]:
        """Add numbers up over all processes."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self._device)
        distributed.all_reduce(total)
        return total.tolist()

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add the gradients up over all processes."""
        if self.count == 1:
            return
        trained = [p for p in parameters if p.requires_grad]
        # A process without an example in the last batch has no gradients; a weight that no process used has none.
        used = torch.tensor([p.grad is not None for p in trained], dtype=torch.uint8, device=self._device)
        distributed.all_reduce(used, op=distributed.ReduceOp.MAX)
        chosen = [p for p, use in zip(trained, used.tolist(), strict=True) if use]
        if not chosen:  # a batch without a counted target
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in chosen])
        distributed.all_reduce(flat)
        for parameter, part in zip(chosen, flat.split([p.numel() for p in chosen]), strict=True):
            parameter.grad = part.view_as(parameter)

    def same_weights(self, model: nn.Module) -> None:
        """Give every process the weights of the first."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                distributed.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Wait until every process has reached this call."""
        self.sum(0.0)
