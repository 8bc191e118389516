"""Steps of the trainings: gradients on processors and GPUs, groups of parameters, time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from experiments.common import Row


class Backward:
    """Computes ``loss(model(inputs), targets)`` and its gradients; on a GPU as a graph for each shape of the inputs.

    Gradients are added up in place in a graph, so that all graphs share them.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[[Tensor, Tensor], Tensor], device: str) -> None:
        self.model, self.loss, self.device = model, loss, device
        self.graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def __call__(self, inputs: Tensor, targets: Tensor) -> None:
        """Leave the gradients of one batch in the parameters."""
        if self.device == "cpu":
            self._run(inputs, targets)
            return
        if inputs.shape not in self.graphs:
            self.graphs[inputs.shape] = self._captured(inputs.to(self.device), targets.to(self.device))
        graph, *places = self.graphs[inputs.shape]
        for place, values in zip(places, (inputs, targets), strict=True):
            place.copy_(values, non_blocking=True)
        graph.replay()

    def _run(self, inputs: Tensor, targets: Tensor) -> None:
        torch._foreach_zero_([p.grad for p in self.model.parameters() if p.grad is not None])
        self.loss(self.model(inputs), targets).backward()

    def _captured(self, inputs: Tensor, targets: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries set themselves up outside of the graph
                self._run(inputs, targets)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            self._run(inputs, targets)
        return graph, inputs, targets


def step_ms(backward: Callable[[], None], optimiser: torch.optim.Optimizer) -> float:
    """CPU ms of a training step on one thread: the fastest of ten after two."""
    torch.set_num_threads(1)
    times = []
    for _ in range(12):
        began = time.process_time()
        backward()
        optimiser.step()
        times.append(1e3 * (time.process_time() - began))
    return min(times[2:])


def parameters_by_name(model: torch.nn.Module, *kinds: tuple[Sequence[str], Row]) -> list[Row]:
    """Groups for an optimiser: parameters whose names hold one of some parts have options, the first that fit."""
    found: list[list[Tensor]] = [[] for _ in range(len(kinds) + 1)]
    for name, parameter in model.named_parameters():
        fitting = (k for k, (parts, _) in enumerate(kinds) if any(part in name for part in parts))
        found[next(fitting, len(kinds))].append(parameter)
    options = (*(given for _, given in kinds), {})
    return [{"params": one, **given} for one, given in zip(found, options, strict=True) if one]


def size_of(model: torch.nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
