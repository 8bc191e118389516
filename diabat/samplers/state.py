"""Parameters of the samplers in a model, and the state that samplers keep between calls."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from diabat.checks import ArgumentError
from diabat.samplers.base import Sampler


def remembers(model: nn.Module) -> bool:
    """Whether results of a sampler, or of one in a model or a composite, depend on earlier calls."""
    return bool(_remembering(model))


def _remembering(model: nn.Module) -> list[Sampler]:
    return [m for m in model.modules() if isinstance(m, Sampler) and m.capabilities.remembers]


def own_copy(sampler: Sampler) -> Sampler:
    """A copy with separate parameters and with its state reset; the sampler itself if it has neither."""
    if not remembers(sampler) and next(sampler.parameters(), None) is None:
        return sampler
    own = copy.deepcopy(sampler)
    own.reset()
    return own


def sampler_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Learnable parameters of all samplers of a model, each once."""
    every = (p for module in model.modules() if isinstance(module, Sampler) for p in module.parameters())
    return list(dict.fromkeys(every))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` of a model without the state of its samplers between calls."""
    with reset_chains(model):
        return dict(model.state_dict())


def chain_state(model: nn.Module) -> dict[str, Tensor]:
    """State of the samplers of a model between calls, by name in its ``state_dict``."""
    weights = weights_of(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in weights}


def load_chain_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restore a state from :func:`chain_state`; an empty mapping resets the samplers.

    Raises:
        ValueError: If the state does not belong to the samplers of such a model.
    """
    weights = weights_of(model)
    if state.keys() & weights.keys():
        raise ArgumentError("state", "no weights", ", ".join(state.keys() & weights.keys()))
    try:
        model.load_state_dict({**weights, **state})
    except RuntimeError as error:
        names = ", ".join(sorted(state))
        raise ArgumentError("state", "the state of the samplers of the model", names) from error


@contextmanager
def reset_chains(model: nn.Module) -> Iterator[None]:
    """Reset the samplers of a model for the block, and restore their state afterwards."""
    samplers = _remembering(model)
    kept = [copy.deepcopy(sampler.state_dict()) for sampler in samplers]
    for sampler in samplers:
        sampler.reset()
    try:
        yield
    finally:
        for sampler, state in zip(samplers, kept, strict=True):
            sampler.load_state_dict(state)


@contextmanager
def in_place(sampler: Sampler, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Replace a sampler's parameters by tensors, in the order of ``parameters()``, for the block."""
    if not tensors:
        yield
        return
    before = dict(sampler.named_parameters())

    def put(tensors: Iterable[Any]) -> None:
        for name, tensor in zip(before, tensors, strict=True):
            path, _, last = name.rpartition(".")
            # Assignment as an attribute accepts nn.Parameter only; torch.func.functional_call does the same.
            sampler.get_submodule(path)._parameters[last] = tensor

    try:
        put(tensors)
        yield
    finally:
        put(before.values())
