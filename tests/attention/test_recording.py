"""Layers keep nothing of a batch, unless they are asked to record: in memory, in copies and in files."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from diabat import BoltzmannAttention, BoltzmannMultiheadAttention
from diabat.attention.coupled import CoupledHeads, recording
from diabat.attention.pooling import BoltzmannPooling
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.boltzmann.layer import BoltzmannHeads

LAYERS: dict[str, Callable[[], CoupledHeads]] = {
    "absolute": lambda: BoltzmannAttention(8, 2, 6),
    "relative": lambda: BoltzmannAttention(8, 2, 3, relative=True, weights="odds"),
    "self": lambda: BoltzmannAttention(8, 2, 3, relative=True, mode="J-self"),
    "band": lambda: BoltzmannAttention(8, 2, 6, bandwidth=1, sampler="banded"),
    "independent": lambda: BoltzmannAttention(8, 2, 3, relative=True, far="independent"),
    "chain": lambda: BoltzmannAttention(8, 2, None, relative=True, couplings="tokens", rank=2),
    "mean field chain": lambda: BoltzmannAttention(8, 2, None, relative=True, sampler="mean_field"),
    "multihead": lambda: BoltzmannMultiheadAttention(8, 2, window=6, batch_first=True),
    "multihead chain": lambda: BoltzmannMultiheadAttention(8, 2, window=None, batch_first=True),
    "pooling": lambda: BoltzmannPooling(8, 2, 6),
    "hugging face": lambda: BoltzmannHeads(2, BoltzmannOptions(window=3)),
    "hugging face chain": lambda: BoltzmannHeads(2, BoltzmannOptions(window=None), features=16),
}
MASK = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()


def given(layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """The arguments of a layer from tokens [B, 6, 8]."""
    if isinstance(layer, BoltzmannHeads):
        return (*(x[:, None].expand(-1, 2, -1, -1),) * 3, MASK)
    return (x,) * (3 if isinstance(layer, BoltzmannMultiheadAttention) else 1)


def called(layer: nn.Module, x: Tensor) -> Tensor:
    found: Any = layer(*given(layer, x))
    out: Tensor = found[0] if isinstance(found, tuple) else found
    return out


@contextmanager
def only_new_objects() -> Iterator[None]:
    """Whatever there is before is left out by the collector, which is then fast."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def numbers_alive() -> int:
    """Numbers in all new tensors that Python holds."""
    gc.collect()
    return sum(
        t.numel() for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter) and t.is_floating_point()
    )


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_nothing_of_a_batch_is_alive_after_it(name: str, gradients: bool) -> None:
    if name == "hugging face chain" and not gradients:
        pytest.skip("values of the last pass are kept beside the cache of a decoder")
    layer = LAYERS[name]()
    with torch.set_grad_enabled(gradients):
        called(layer, torch.randn(40, 6, 8))  # whatever is computed once
        with only_new_objects():
            called(layer, torch.randn(50, 6, 8))
            assert numbers_alive() == 0
            with layer.recording():
                called(layer, torch.randn(50, 6, 8))
                assert numbers_alive() > 0
            assert numbers_alive() == 0


@pytest.mark.parametrize("name", LAYERS)
def test_copies_and_files_are_those_of_a_new_layer(name: str) -> None:
    layer = LAYERS[name]().eval()
    size = len(pickle.dumps(layer))
    with torch.no_grad(), layer.recording():
        called(layer, torch.randn(40, 6, 8))
        layer.last_fields_and_couplings()
        assert len(pickle.dumps(layer)) == size
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            with pytest.raises(RuntimeError, match="not recorded"):
                other.last_fields_and_couplings()
        layer.last_fields_and_couplings()
    assert len(pickle.dumps(layer)) == size


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_copied_after_vmap(name: str, gradients: bool) -> None:
    layers = [LAYERS[name]() for _ in range(2)]
    parameters, buffers = stack_module_state(layers)
    x = torch.randn(1, 6, 8)
    with torch.set_grad_enabled(gradients):
        vmap(lambda p, b: functional_call(layers[0], (p, b), given(layers[0], x))[0])(parameters, buffers)
        assert torch.equal(called(pickle.loads(pickle.dumps(layers[0])), x), called(layers[0], x))
        assert torch.equal(called(copy.deepcopy(layers[0]), x), called(layers[0], x))


def test_fields_are_asked_for_inside_of_a_recording() -> None:
    layer, x = LAYERS["absolute"](), torch.randn(2, 6, 8)
    layer(x)
    with pytest.raises(
        RuntimeError, match=r"not recorded; call the layer.* inside of 'with layer\.recording\(\):'\.$"
    ):
        layer.last_fields_and_couplings()
    with layer.recording():
        with pytest.raises(
            RuntimeError, match="no Boltzmann forward pass has been recorded yet; call the layer"
        ):
            layer.last_fields_and_couplings()
        layer(x)
        fields, J = layer.last_fields_and_couplings()
        with layer.recording():  # one in another is the same
            assert torch.equal(layer.last_fields_and_couplings()[0], fields)
            layer(2 * x)
        assert not torch.equal(layer.last_fields_and_couplings()[0], fields)
        assert not fields.requires_grad
        assert J is not None
        assert not J.requires_grad
    with pytest.raises(RuntimeError, match="not recorded"):
        layer.last_fields_and_couplings()


def test_a_recording_ends_with_an_error() -> None:
    layers = [LAYERS["absolute"](), LAYERS["chain"]()]

    def call() -> None:
        with recording(layers):
            for layer in layers:
                called(layer, torch.randn(2, 6, 8))
            layers[0](torch.randn(2, 6, 7))

    with pytest.raises(ValueError, match="x: expected"):
        call()
    for layer in layers:
        with pytest.raises(RuntimeError, match="not recorded"):
            layer.last_fields_and_couplings()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("name", ["absolute", "relative", "band"])
def test_a_compiled_layer_records_as_well(name: str) -> None:
    layer, x = LAYERS[name](), torch.randn(2, 6, 8)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with layer.recording():
        called(layer, x)
        want = layer.last_fields_and_couplings()
        called(compiled, x)
        torch.testing.assert_close(layer.last_fields_and_couplings(), want)
    called(compiled, x)
