from __future__ import annotations

from typing import Any

import pytest
import torch
from layers import PAPER
from rounding import assert_same_sums
from torch import nn

from diabat.lab.models import Transformer, TransformerOptions

MODES = ("softmax", "h+J", "h", "J", "h+K", "J+K", "h+J+K", "K")


def build(seed: int = 0, **changes: object) -> Transformer:
    options = TransformerOptions(**({"embed_dim": 16, "num_heads": 2, "ffn_dim": 24} | changes))  # type: ignore[arg-type]  # on purpose or by keyword
    torch.manual_seed(seed)
    return Transformer(options, vocab_size=11, num_classes=7, window=6)


def symbols(batch: int = 3, length: int = 6) -> torch.Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 6])
def test_logits_have_one_row_per_position(mode: str, length: int) -> None:
    logits = build(mode=mode)(symbols(length=length))
    assert logits.shape == (3, length, 7)
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize("mode", ["softmax", "h+J"])
def test_causal_models_do_not_see_the_future(mode: str) -> None:
    model = build(mode=mode, num_layers=2).eval()
    x = symbols()
    y = x.clone()
    y[:, 4:] = (y[:, 4:] + 1) % 11
    before, after = model(x), model(y)
    assert_same_sums(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-6)
    backward = build(mode=mode, causal=False).eval()
    assert not torch.allclose(backward(x)[:, :4], backward(y)[:, :4], atol=1e-6)


def test_padding_is_not_attended_to() -> None:
    model = build(causal=False).eval()
    x = symbols()
    y = x.clone()
    y[:, 5] = (y[:, 5] + 1) % 11
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[:, 5] = True
    assert_same_sums(model(x, mask)[:, :5], model(y, mask)[:, :5])


def test_all_modes_start_from_the_same_weights() -> None:
    reference = dict(build(mode="softmax").named_parameters())
    for mode in MODES[1:]:
        own = {name: p for name, p in build(mode=mode).named_parameters() if "coupling" not in name}
        assert own.keys() == reference.keys()
        assert all(torch.equal(p, reference[name]) for name, p in own.items())
    other = dict(build(seed=1, mode="softmax").named_parameters())
    assert not torch.equal(other["head.weight"], reference["head.weight"])


def test_initialisation_is_the_documented_one() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerOptions(embed_dim=64), vocab_size=61, num_classes=61, window=8)
    norms = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.LayerNorm)}
    assert len(norms) == 3
    for name, p in model.named_parameters():
        if name in norms:
            assert bool((p == 1).all())
        elif "coupling" in name or p.ndim == 1:
            assert bool((p == 0).all())
        else:
            # N(0, 0.02²): five standard errors of the sample deviation, 0.02/sqrt(2N); N >= 512.
            assert abs(float(p.detach().std()) - 0.02) < 5 * 0.02 / (2 * p.numel()) ** 0.5
    pairs = [name for name, _ in model.named_parameters() if "coupling" in name]
    assert pairs == ["blocks.0.attention.couplings.pairs"]


def test_published_size() -> None:
    model = Transformer(TransformerOptions(mode="softmax"), vocab_size=61, num_classes=61, window=8)
    d, f, v = 64, 128, 61
    attention, ffn, norms = 4 * (d * d + d), 2 * d * f + f + d, 3 * 2 * d
    assert sum(p.numel() for p in model.parameters()) == attention + ffn + norms + (v + 8) * d + v * (d + 1)


def test_every_weight_receives_a_gradient() -> None:
    model = build(mode="h+J+K", num_layers=2)
    model(symbols()).square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert bool(p.grad.isfinite().all()), name
        # A bias of the keys shifts every field of a query alike, which only softmax ignores.
        assert bool((p.grad != 0).any()), name


@pytest.mark.parametrize(("changes", "window", "name"), [
    ({"embed_dim": 10**6}, 4, "embed_dim"), ({"num_layers": 10**9}, 4, "embed_dim"),
    ({"ffn_dim": 10**12}, 4, "embed_dim"), ({}, 10**6, "window"), ({"mode": "h+K"}, 3000, "window"),
    ({}, 10**18, "embed_dim"),
])  # fmt: skip
def test_weights_that_fit_into_no_memory_are_refused(
    changes: dict[str, Any], window: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diabat.compute.memory.available_bytes", lambda: 1 << 33)
    message = rf"^{name}: (weights|couplings) of .* GiB of memory, got 8 GiB available\.$"
    with pytest.raises(ValueError, match=message):
        Transformer(TransformerOptions(**changes), 12, 8, window, sampler="mean_field")


def test_a_relative_model_with_rotary_positions_takes_any_length() -> None:
    """The last logits depend on the last T symbols of each layer's window only."""
    model = build(relative=True, attention_window=3, positions="rope", num_layers=2, **PAPER).eval()
    assert [layer.window for layer in model.attention_layers()] == [3, 3]
    x = symbols(length=20)
    logits = model(x)
    assert logits.shape == (3, 20, 7)
    assert_same_sums(model(x[:, -5:])[:, -1], logits[:, -1])  # two layers see 2(T-1) + 1 symbols
    assert not torch.allclose(model(x[:, -3:])[:, -1], logits[:, -1], atol=1e-6)
    far = build(relative=True, attention_window=3, positions="rope").eval()
    assert not torch.allclose(far(x[:, -5:])[:, -1], far(x)[:, -1], atol=1e-6)


def test_learned_positions_limit_the_context() -> None:
    model = build(relative=True, attention_window=3)
    assert model(symbols(length=6)).shape == (3, 6, 7)
    for changes in ({"relative": True}, {"positions": "rope"}):
        with pytest.raises(ValueError, match="symbols: expected at most window = 6 positions, got 7"):
            build(**changes)(symbols(length=7))
    assert build(positions="rope").positions is None


def test_odds_without_couplings_are_the_softmax_model() -> None:
    x = symbols()
    odds, softmax = (build(readout="odds").eval(), build(mode="softmax").eval())
    assert_same_sums(odds(x), softmax(x))


def test_embedding_dropout_acts_on_the_sum_of_the_embeddings() -> None:
    x = symbols()
    for p in (0.0, 0.5):
        model = build(dropout=0.0, embedding_dropout=p)
        seen: list[torch.Tensor] = []
        model.blocks[0].register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        torch.manual_seed(4)
        model(x)
        torch.manual_seed(4)
        assert model.positions is not None
        whole = model.symbols(x) + model.positions.weight
        want = torch.nn.functional.dropout(whole, p) if p else whole
        assert torch.equal(seen[0], want)
        assert bool((seen[0] == 0).any()) == bool(p)
