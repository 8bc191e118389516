"""Explanations of decoders."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from layers import PAPER
from matplotlib.backends.backend_agg import FigureCanvasAgg

from diabat.attention import BoltzmannAttention, coupling_parameters
from diabat.lab.models import Transformer, TransformerOptions
from diabat.lab.models.explanation import DecoderExplanation, explain_decoder, selected
from diabat.lab.models.figures import plot_decoder, shown

TEXT = "abca badc"
ALPHABET = " abcd"
MODES = ("softmax", "h", "J", "h+J", "h+J+K", "J-self")
WINDOWS: dict[str, dict[str, Any]] = {
    "absolute": {},
    "relative": {"relative": True, "attention_window": 4},
    "far": {"relative": True, "attention_window": 4, "far": "independent", "positions": "rope"},
}


def build(sampler: str = "exact", **changes: Any) -> Transformer:
    sizes = {"embed_dim": 16, "num_heads": 3, "ffn_dim": 8, "num_layers": 2, "dropout": 0.3}
    torch.manual_seed(0)
    options = TransformerOptions(**{**PAPER, **sizes, "embed_dim": 18, **changes})
    model = Transformer(options, 5, 5, window=10, sampler=sampler)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape))
        for p in coupling_parameters(model):
            p.add_(0.5 * torch.randn(p.shape))
    return model


def symbols(text: str = TEXT) -> torch.Tensor:
    return torch.tensor([ALPHABET.index(character) for character in text])


def explain(model: Transformer, text: str = TEXT, **options: Any) -> DecoderExplanation:
    return explain_decoder(model, symbols(text), text, ALPHABET, **options)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("mode", MODES)
def test_modes_and_windows(window: str, mode: str) -> None:
    model = build(mode=mode, **WINDOWS[window])
    found = explain(model, position=6)
    assert model.training
    logits = model.eval()(symbols()[None])[0]
    assert (found.probabilities - logits.softmax(-1)).abs().max() < 1e-6
    assert found.attention.shape == (2, 3, 9, 9)
    assert (found.attention.sum(-1) - 1).abs().max() < 1e-5
    for i, row in enumerate(found.attention[1, 2].tolist()):
        assert float(found.entropy[1, 2, i]) == pytest.approx(
            -sum(w * math.log(w) for w in row if w), abs=1e-5
        )
        first = 0 if window != "relative" else max(0, i - 3)
        assert int(found.visible[i]) == i + 1 - first
        assert float(found.effective[1, 2, i]) < i + 1 - first + 1e-4
    assert tuple(found.tokens) == tuple(TEXT)
    if mode in ("softmax", "h", "J"):
        assert found.correlations is found.alpha is None
        assert found.without_correlations is not None
        assert found.coupled == ()
        assert found.strongest(3) == []
        return
    coupled = range(7) if window == "absolute" else range(3, 7)
    assert (found.without_correlations, found.coupled) == (None, tuple(coupled))
    assert found.correlations is not None
    assert found.alpha is not None
    assert found.correlations.shape == (2, 3, len(coupled), len(coupled))
    diagonal = found.correlations.diagonal(dim1=-2, dim2=-1)
    assert (diagonal - 4 * found.alpha * (1 - found.alpha)).abs().max() < 1e-5
    layers = [layer for layer in model.attention_layers() if isinstance(layer, BoltzmannAttention)]
    J = [layer.couplings.matrix(len(coupled)) for layer in layers]
    if "J" not in mode:
        assert found.couplings is None
    else:
        assert found.couplings is not None
        assert torch.equal(found.couplings, torch.stack([one[:, 0] for one in J if one is not None]))
    if window != "far":  # far keys share in the sum
        weights = found.attention[:, :, 6, coupled[0] : 7]
        assert (weights - found.alpha / found.alpha.sum(-1, keepdim=True)).abs().max() < 1e-5


def test_uniform_attention_has_as_many_effective_positions_as_keys() -> None:
    found = explain(build(mode="J", relative=True, attention_window=4))
    assert (found.effective - found.visible).abs().max() < 1e-5
    assert (found.entropy - found.visible.log()).abs().max() < 1e-6
    assert "uniform attention whatever J is" in str(found.without_correlations)


def test_strongest_pairs_are_named_by_position() -> None:
    found = explain(build(relative=True, attention_window=4), position=7)
    assert found.correlations is not None
    for layer, head in ((None, None), (1, None), (0, 2)):
        C = selected(found.correlations, layer, head)
        pairs = found.strongest(6, layer, head)
        sizes = [abs(value) for *_, value in pairs]
        assert len(pairs) == 6
        assert sizes == sorted(sizes, reverse=True)
        for j, k, value in pairs:
            assert found.couplings is not None
            place = found.coupled.index(j), found.coupled.index(k)
            assert found.coupling(j, k, layer, head) == float(selected(found.couplings, layer, head)[place])
            assert 4 <= j < k <= 7
            assert value == float(C[j - 4, k - 4])
        assert found.strongest(6, layer, head, sizes[2]) == pairs[:3]
    clamped = explain(build(mode="J-self", relative=True, attention_window=4), position=7)
    assert {j for j, *_ in clamped.strongest(20)} | {k for _, k, _ in clamped.strongest(20)} == {4, 5, 6}
    assert torch.equal(selected(found.entropy, 1, None), found.entropy[1].mean(0))


def test_reads_of_the_prediction_are_those_of_a_forward_pass() -> None:
    model = build("tempering", relative=True, attention_window=4).eval()
    logits = model(symbols()[None])[0]
    found = explain(model)
    assert (found.probabilities - logits.softmax(-1)).abs().max() < 1e-6  # other reads would move it by 2e-3
    assert found.num_reads is not None
    for layer in model.attention_layers():
        layer.eval_seed = 6
    other = explain(model)
    assert found.correlations is not None
    assert other.correlations is not None
    assert not torch.equal(found.correlations, other.correlations)


def test_classes_and_targets() -> None:
    found = explain(build(), targets=[*TEXT[1:], None])
    assert found.position == 8
    assert found.targets == (*TEXT[1:], None)
    best = found.most_probable(8, 3)
    assert [chance for _, chance in best] == found.probabilities[8].sort(descending=True)[0][:3].tolist()
    assert best[0][0] == ALPHABET[int(found.probabilities[8].argmax())]
    assert len(found.most_probable(0, 50)) == 5


def test_texts_and_positions_out_of_range_are_refused() -> None:
    with pytest.raises(
        ValueError, match="text: expected at most 10 tokens, the context of the model, got 11"
    ):
        explain(build(), "abcda abcda")
    assert explain(build(relative=True, positions="rope", attention_window=4), "abcd" * 5).position == 19
    for position in (-1, 9):
        with pytest.raises(
            ValueError, match=rf"position: expected a position of the text in 0 .. 8, got {position}"
        ):
            explain(build(), position=position)


@pytest.mark.parametrize("mode", ["h+J", "softmax"])
def test_the_figure_has_maps_correlations_and_entropies(mode: str, tmp_path: Path, drawn: list[Any]) -> None:
    found = explain(build(mode=mode, relative=True, attention_window=4), position=6)
    plot_decoder(found, tmp_path / "all.png", named=2)
    plot_decoder(found, tmp_path / "one.png", layer=1, head=2)
    correlations = mode == "h+J"
    for figure, layers, heads in ((drawn[0], [0, 1], [0, 1, 2]), (drawn[1], [1], [2])):
        images = {
            axis.get_title(): axis.images[0] for axis in figure.axes if axis.images and axis.get_title()
        }
        assert len(images) == len(layers) * (len(heads) + correlations)
        for layer in layers:
            for head in heads:
                values = torch.as_tensor(images[f"layer {layer}, head {head}"].get_array().data)
                assert torch.equal(values, found.attention[layer, head])
        lines = [axis for axis in figure.axes if axis.lines and axis.get_ylabel().startswith("entropy")]
        assert [len(axis.lines) for axis in lines] == [len(layers) + 2]  # uniform attention, and the query
    if not correlations:
        return
    FigureCanvasAgg(drawn[0]).draw()  # every glyph is in the font
    assert found.correlations is not None
    maps = [axis for axis in drawn[0].axes if axis.get_title() == "correlations, layer 0, mean over heads"]
    values = torch.as_tensor(maps[0].images[0].get_array().data)
    off = ~torch.eye(4, dtype=torch.bool)
    assert torch.equal(values[off], found.correlations[0].mean(0)[off])
    assert maps[0].images[0].get_clim() == (-float(values[off].abs().max()), float(values[off].abs().max()))
    assert len(maps[0].patches) == 4
    j, k, C = found.strongest(1, 0)[0]
    assert f"{j} “{shown(TEXT[j])}” and {k} “{shown(TEXT[k])}” {C:+.2g}" in maps[0].get_xlabel()
    assert (shown(" "), shown("a\n")) == ("␣", "a↵")
