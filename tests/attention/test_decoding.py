"""Decoding token by token equals the full pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from layers import F64, MOVING, attention, decoded, tokens
from torch import nn

from diabat.attention import WindowCouplings, boltzmann_attention


@pytest.mark.parametrize("name", MOVING)
def test_steps_equal_the_full_pass(name: str) -> None:
    built, x = attention(**MOVING[name]), tokens(2, 40)
    found, state = decoded(built, x)
    assert (found - built(x)).abs().max() < 1e-12
    assert int(state.position) == 40
    assert state.keys.shape == (2, 2, 40 if built.far == "independent" else 4, 4)


@pytest.mark.parametrize("name", ["banded", "mean_field"])
def test_steps_with_other_backends(name: str) -> None:
    built = attention(relative=True, sampler=name, bandwidth=2, dtype=torch.float32, readout="odds")
    x = tokens(dtype=torch.float32)
    assert (decoded(built, x)[0] - built(x)).abs().max() < 1e-5


@pytest.mark.parametrize("name", MOVING)
def test_steps_after_a_padded_prompt(name: str) -> None:
    """Prompts of different lengths, padded on the left."""
    built, x = attention(**MOVING[name]), tokens(3)
    mask = torch.arange(7) < torch.tensor([[0], [3], [6]])
    prompt, state = built.prefill(x[:, :7], mask)
    assert (prompt - built(x[:, :7], mask)).abs().max() < 1e-12
    rest, _ = decoded(built, x[:, 7:], state)
    padded = torch.cat((mask, torch.zeros(3, 4, dtype=torch.bool)), 1)
    assert (rest - built(x, padded)[:, 7:]).abs().max() < 1e-12
    alone = built(x[2:, 6:])
    assert (rest[2:] - alone[:, 1:]).abs().max() < 1e-12


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("far", ["none", "independent"])
@pytest.mark.parametrize("readout", ["odds", "probability"])
@pytest.mark.parametrize("strength", [0.3, 4.0, 100.0])
def test_one_query_of_a_window_is_that_of_many(
    strength: float, readout: str, far: str, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    couplings = WindowCouplings(4, 6, relative=True, dtype=dtype)
    nn.init.normal_(couplings.pairs, std=strength)
    q, k, v = torch.randn(2, 4, 1, 5), torch.randn(2, 2, 40, 5), torch.randn(2, 2, 40, 3)
    for keys in (1, 4, 6, 7, 40):
        given = (t.to(dtype) for t in (q, k[:, :, :keys], v[:, :, :keys]))
        call: Any = boltzmann_attention
        attend = partial(call, *given, couplings, enable_gqa=True, readout=readout, far=far)
        want = attend()
        with torch.no_grad():
            assert (attend() - want).abs().max() < tolerance


def test_beams_are_reordered_and_states_are_not_changed() -> None:
    built, x = attention(**MOVING["far"]), tokens(3)
    _, state = built.prefill(x[:, :6])
    assert state.key_mask is None
    before = [t.clone() for t in (state.keys, state.values, state.position)]
    rows = torch.tensor([2, 0, 2, 1])
    chosen = state.reorder(rows)
    found, _ = decoded(built, x[rows, 6:], chosen)
    assert (found - built(x[rows])[:, 6:]).abs().max() < 1e-12
    decoded(built, x[:, 6:], state)
    torch.testing.assert_close((state.keys, state.values, state.position), before, rtol=0, atol=0)
    assert state.to("cpu").keys.shape == state.keys.shape


def test_gradients_pass_through_steps() -> None:
    built, x = attention(**MOVING["probability"]), tokens(1, 6).requires_grad_()
    leaves, cotangent = [x, *built.parameters()], torch.randn(1, 6, 8, dtype=F64)
    found, want = (torch.autograd.grad(y, leaves, cotangent) for y in (decoded(built, x)[0], built(x)))
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
    assert bool((found[0].abs().amax(-1) > 0).all())


@torch.no_grad()
def test_a_state_can_be_continued_several_times() -> None:
    """Steps from one state, and from states before the last one, as a search takes them."""
    built, x = attention(relative=True, far="independent"), tokens(2, 40)
    whole = built(x)
    states, outputs = [built.prefill(x[:, :2])[1]], []
    for i in range(2, 40):
        y, state = built.step(x[:, i], states[-1])
        states.append(state)
        outputs.append(y)
        built.step(-x[:, i], states[-2])  # a second continuation
    assert (torch.stack(outputs, 1) - whole[:, 2:]).abs().max() < 1e-12
    again = [built.step(x[:, i], states[i - 2])[0] for i in range(2, 40)]
    assert (torch.stack(again, 1) - whole[:, 2:]).abs().max() < 1e-12


def test_steps_leave_inference_mode() -> None:
    built, x = attention(relative=True, far="independent"), tokens(1, 8)
    with torch.inference_mode():
        state = built.step(x[:, 0], built.prefill(x[:, :1])[1])[1]
    with torch.no_grad():
        assert torch.isfinite(built.step(x[:, 2], state)[0]).all()
