"""Attention maps of one head on one question, before and after calibration (figure 5 of the paper on GAC)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diabat.attention.heads.calibration import Calibration
from diabat.attention.heads.decoder import forward_logits
from diabat.attention.heads.pretrained import attention_modules, pretrained_model
from diabat.attention.heads.samples import read_samples
from diabat.checks import ArgumentError
from diabat.plots import new_figure, save_figure
from diabat.runs.heads.evaluation.states import State, entered
from diabat.runs.heads.questions.sets import QuestionSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LABELS = 48
"""Longest question whose tokens are written at the axes."""


def draw_maps(
    model: Any,
    tokenizer: Any,
    questions: QuestionSet,
    calibration: Calibration | None,
    path: Path,
    *,
    layer: int | None = None,
    head: int | None = None,
    sample: int = 0,
) -> None:
    """Draw the map of one head as the model is, calibrated, and the difference.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its tokenizer; None if the questions are token ids.
        questions: Where the question is from.
        calibration: What is compared.
        path: The figure.
        layer: The first layer that is calibrated if None.
        head: A query head; the first one that is calibrated if None.
        sample: Position of the question.

    Raises:
        ArgumentError: If there is no calibration, layer, head or question.
    """
    if calibration is None:
        raise ArgumentError("calibration", "expected one for maps before and after it, got none.")
    modules = attention_modules(pretrained_model(model))
    layer = min(calibration.salient) if layer is None else layer
    if layer not in modules:
        raise ArgumentError("layer", f"expected one of {', '.join(map(str, modules))}, got {layer}.")
    count = modules[layer].config.num_attention_heads
    if head is None:
        salient = calibration.salient.get(layer, ())
        head = next((k for k in range(count) if k not in salient), 0)
    if head >= count:
        raise ArgumentError("head", f"expected at most {count - 1} in layer {layer}, got {head}.")
    if sample >= len(questions.samples):
        raise ArgumentError("sample", f"expected at most {len(questions.samples) - 1}, got {sample}.")
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = read_samples([questions.samples[sample]], tokenizer, vocabulary)[0].tokens
    before, after = attention_maps(model, calibration, tokens, layer)
    words = [str(token) for token in tokens.tolist()]
    if tokenizer is not None:
        # As they are read: byte-level tokenizers write a space in a token as another letter.
        words = [tokenizer.decode([token]).strip() or "␣" for token in tokens.tolist()]
    _draw(before[head], after[head], words, f"layer {layer}, head {head}, {_settings(calibration)}", path)


def attention_maps(
    model: Any, calibration: Calibration, tokens: Tensor, layer: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Maps [heads, T, T] of a layer for tokens [T], as the model is and calibrated."""
    module = attention_modules(pretrained_model(model))[layer]
    # β = 1 changes nothing, and the attention function returns the weights, which sdpa does not.
    unchanged = Calibration({layer: ()}, beta=1.0)
    maps = []
    for state in (State("before", unchanged), State("after", calibration)):
        caught: list[Tensor] = []

        def catch(part: nn.Module, given: Any, output: Any, caught: list[Tensor] = caught) -> None:
            caught.append(output[1])

        with entered(model, state), torch.no_grad():
            handle = module.register_forward_hook(catch)
            try:
                forward_logits(model, model.get_output_embeddings(), tokens[None], torch.tensor([-1]))
            finally:
                handle.remove()
        maps.append(caught[0][0].double().cpu().numpy())
    return maps[0], maps[1]


def _settings(calibration: Calibration) -> str:
    return f"α = {calibration.alpha:g}, β = {calibration.beta:g}, rows {calibration.rows}"


def _draw(
    before: NDArray[np.float64], after: NDArray[np.float64], words: list[str], title: str, path: Path
) -> None:
    side = min(6.0, max(3.6, 0.2 * len(words)))
    figure = new_figure(3 * side + 1.5, side + 0.9)
    figure.set_layout_engine("compressed")  # the maps are squares: no space between them and their scale
    axes = figure.subplots(1, 3)
    hidden = np.triu(np.ones_like(before, dtype=bool), 1)
    most = max(float(before.max()), float(after.max()))
    change = np.ma.array(after - before, mask=hidden)
    limit = max(float(np.abs(change).max()), 1e-6)
    for axis, values, name in (
        (axes[0], np.ma.array(before, mask=hidden), "as the model is"),
        (axes[1], np.ma.array(after, mask=hidden), "calibrated"),
    ):
        shown = axis.imshow(values, cmap="viridis", vmin=0, vmax=most, interpolation="nearest")
        _label(axis, words, name)
    figure.colorbar(shown, ax=axes[1], label="attention")
    shown = axes[2].imshow(change, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    _label(axes[2], words, "difference")
    figure.colorbar(shown, ax=axes[2], label="change")
    figure.suptitle(title)
    save_figure(figure, path)


def _label(axis: Axes, words: list[str], name: str) -> None:
    axis.set_title(name)
    axis.set_xlabel("key")
    axis.set_ylabel("query")
    if len(words) <= _MOST_LABELS:
        # No mathematics: a token may be a dollar sign.
        escaped = [word.replace("$", r"\$") for word in words]
        axis.set_xticks(range(len(words)), escaped, rotation=90, fontsize=7)
        axis.set_yticks(range(len(words)), escaped, fontsize=7)
