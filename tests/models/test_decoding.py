"""Decoding a whole model token by token equals the full pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layers import PAPER
from torch import Tensor

from diabat.attention import coupling_parameters
from diabat.lab.models import ModelState, Transformer, TransformerOptions

CASES: dict[str, dict[str, Any]] = {
    "learned": {},
    "rope": {"positions": "rope"},
    "far odds": {"far": "independent", "readout": "odds", "positions": "rope"},
    "softmax": {"mode": "softmax", "positions": "rope"},
    "no ffn": {"ffn_dim": 0, "num_layers": 1},
}


def build(**changes: Any) -> Transformer:
    sizes = {"embed_dim": 16, "num_heads": 2, "ffn_dim": 24, "num_layers": 3, "dropout": 0.2}
    relative = {"relative": True, "attention_window": 4}
    torch.manual_seed(0)
    model = Transformer(TransformerOptions(**(PAPER | sizes | relative | changes)), 11, 7, window=14).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape))
        for p in coupling_parameters(model):
            p.add_(torch.randn(p.shape))
    return model


def symbols(batch: int = 3, length: int = 14) -> Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(1))


def decoded(model: Transformer, x: Tensor, state: ModelState | None = None) -> Tensor:
    outputs = []
    for i in range(x.shape[1]):
        y, state = model.step(x[:, i], state)
        outputs.append(y)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("name", CASES)
def test_steps_and_prefill_equal_the_full_pass(name: str) -> None:
    model, x = build(**CASES[name]), symbols()
    full = model(x)
    assert (full[:, 1:] - full[:, :-1]).abs().max() > 0.1
    assert (decoded(model, x) - full).abs().max() < 1e-5
    prompt, state = model.prefill(x[:, :6])
    assert (prompt - full[:, :6]).abs().max() < 1e-5
    assert int(state.position) == 6
    assert (decoded(model, x[:, 6:], state) - full[:, 6:]).abs().max() < 1e-5


def test_rotary_models_decode_beyond_the_context() -> None:
    model, x = build(positions="rope"), symbols(length=60)
    assert (decoded(model, x) - model(x)).abs().max() < 1e-5


def test_learned_positions_end_at_the_context() -> None:
    model, x = build(), symbols(length=15)
    _, state = model.prefill(x[:, :14])
    with pytest.raises(ValueError, match="token: expected at most window = 14 positions, got 15"):
        model.step(x[:, 14], state)
    with pytest.raises(ValueError, match="symbols: expected at most window = 14 positions, got 15"):
        model.prefill(x)


@pytest.mark.parametrize("name", ["learned", "far odds"])
def test_steps_after_prompts_padded_on_the_left(name: str) -> None:
    model, x = build(**CASES[name]), symbols()
    mask = torch.arange(7) < torch.tensor([[0], [3], [6]])
    prompt, state = model.prefill(x[:, :7], mask)
    assert (prompt - model(x[:, :7], mask)).abs().max() < 1e-5
    padded = torch.cat((mask, torch.zeros(3, 7, dtype=torch.bool)), 1)
    assert (decoded(model, x[:, 7:], state) - model(x, padded)[:, 7:]).abs().max() < 1e-5


def test_states_are_reordered_and_do_not_change() -> None:
    model, x = build(**CASES["far odds"]), symbols()
    _, state = model.prefill(x[:, :6])
    before = [(layer.keys.clone(), layer.values.clone()) for layer in state.layers]
    rows = torch.tensor([2, 0, 2, 1])
    found = decoded(model, x[rows, 6:], state.reorder(rows).to("cpu"))
    assert (found - model(x[rows])[:, 6:]).abs().max() < 1e-5
    for layer, (keys, values) in zip(state.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)


def test_what_cannot_be_decoded_is_refused() -> None:
    x = symbols()
    absolute = build(relative=False, attention_window=None)
    for call in (lambda: absolute.prefill(x), lambda: absolute.step(x[:, 0])):
        with pytest.raises(ValueError, match="relative: expected True to decode token by token, got False"):
            call()
    model = build()
    for token in (x, x[:, 0].float(), x[:0, 0], 3):
        with pytest.raises(ValueError, match=r"token: expected int64 \[B\] without empty dimensions, got"):
            model.step(token)  # type: ignore[arg-type]  # on purpose
    for prompt in (x[0], x.float(), x[:, :0], [[1]]):
        with pytest.raises(
            ValueError, match=r"symbols: expected int64 \[B, L\] without empty dimensions, got"
        ):
            model.prefill(prompt)  # type: ignore[arg-type]  # on purpose
    _, state = build(num_layers=1).prefill(x[:, :3])
    with pytest.raises(ValueError, match="state: expected the states of 3 layers, got those of 1"):
        model.step(x[:, 3], state)
    with pytest.raises(TypeError, match="state: expected a ModelState or None, got DecodingState"):
        model.step(x[:, 3], state.layers[0])  # type: ignore[arg-type]  # on purpose
    _, state = model.prefill(x[:, :3])
    with pytest.raises(ValueError, match=r"state: expected keys \[2, 2, S, 8\] for this token"):
        model.step(x[:2, 3], state)
