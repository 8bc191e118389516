"""The GPT of the benchmarks: whatever attends in it, tokens one by one are those of a pass over all."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpt
from benchmarks.layers import SYMBOLS
from diabat.attention import coupling_parameters


@pytest.mark.parametrize("kind", ["SDPA", *gpt.TARGETS])
def test_greedy_tokens_are_those_of_passes(kind: str) -> None:
    made = gpt.model(kind, 64).eval()
    symbols = torch.randint(SYMBOLS, (2, 20))
    with torch.no_grad():
        expected = made(symbols).argmax(-1)
        found, state = made.prefill(symbols[:, :12])
        assert torch.equal(found, expected[:, :12])
        for n in range(12, 20):
            found, state = made.step(symbols[:, n], state)
            assert torch.equal(found, expected[:, n])


def test_without_couplings_the_kinds_differ_in_nothing_but_their_code() -> None:
    """Zero couplings are softmax, so that the same parameters give the same model."""
    one, two = gpt.model("SDPA", 64), gpt.model("window by the function", 64)
    for parameter in coupling_parameters(two):
        torch.nn.init.zeros_(parameter)
    two.load_state_dict(one.state_dict(), strict=False)
    symbols = torch.randint(SYMBOLS, (2, gpt.LENGTH))
    torch.testing.assert_close(one(symbols), two(symbols), rtol=1e-4, atol=1e-5)
