"""What the samplers of a model carry from one batch to the next: saved with a run, left alone by evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from diabat.samplers.base import Sampler

_PREFIX = "sampler."


def samplers(model: nn.Module) -> dict[str, Sampler]:
    """Samplers of the layers of a model, by the name of the layer."""
    found = {name: getattr(module, "sampler", None) for name, module in model.named_modules()}
    return {name: sampler for name, sampler in found.items() if isinstance(sampler, Sampler)}


def memory_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The memory of all samplers, for a checkpoint; empty for samplers that begin anew at every call."""
    return {
        f"{_PREFIX}{key}.{name}": tensor
        for name, sampler in samplers(model).items()
        for key, tensor in sampler.state_dict().items()
    }


def restore_memory(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what :func:`memory_tensors` took."""
    for name, sampler in samplers(model).items():
        mine = {}
        for full, tensor in tensors.items():
            if full.startswith(_PREFIX):
                key, _, layer = full.removeprefix(_PREFIX).partition(".")
                if layer == name:
                    mine[key] = tensor
        sampler.load_state_dict(mine)


@contextmanager
def own_memory(model: nn.Module) -> Iterator[None]:
    """Let the samplers begin anew in the block, and go on afterwards as if it had not been."""
    kept = {name: sampler.state_dict() for name, sampler in samplers(model).items()}
    for sampler in samplers(model).values():
        sampler.load_state_dict({})
    try:
        yield
    finally:
        for name, sampler in samplers(model).items():
            sampler.load_state_dict(kept[name])
