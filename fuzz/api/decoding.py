"""Decoders: steps equal the full pass, and explanations are consistent, with any options and arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diabat.attention.boltzmann import coupling_parameters
from diabat.attention.correlations import query_moments, reason_without_correlations
from diabat.attention.coupled import SELF_MODES
from diabat.models import Transformer, TransformerOptions
from diabat.models.decoder_explanation import DecoderExplanation, explain_decoder
from diabat.tasks import TextForm
from fuzz.api.values import TENSORS, VALUES
from fuzz.dice import Dice
from fuzz.outcome import demand, naming

_CHARACTERS = "abcd (\n"
_CONTEXT = 10
_TOLERANCE = 1e-4


def _model(dice: Dice, *, relative: bool, backends: tuple[str, ...] = ("exact", "mean_field")) -> Transformer:
    mode = dice.pick(SELF_MODES)
    options: dict[str, Any] = {
        "embed_dim": 8,
        "num_heads": dice.pick([1, 2]),
        "num_layers": dice.integer(1, 2),
        "ffn_dim": dice.pick([0, 8]),
        "mode": mode,
        "relative": relative,
        "causal": relative or dice.chance(0.7),
        "positions": dice.pick(["learned", "rope"]),
        "weights": "probability" if mode == "J-self" else dice.pick(["probability", "odds"]),
    }
    if relative:
        options |= {"attention_window": dice.integer(1, 5), "far": dice.pick(["none", "independent"])}
        options["offset_bias"] = (mode == "softmax" or "h" in mode.split("+")) and dice.chance(0.3)
    torch.manual_seed(dice.integer(0, 2**31))
    symbols, backend = len(_CHARACTERS), dice.pick(backends)
    model = Transformer(TransformerOptions(**options), symbols, symbols, _CONTEXT, backend).eval()
    scale = dice.log_uniform(0.01, 1)
    with torch.no_grad():
        for parameter in (*model.parameters(), *coupling_parameters(model)):
            parameter.add_(scale * torch.randn_like(parameter))
    return model


@torch.no_grad()
def decoding(dice: Dice) -> None:
    """A prompt and the steps behind it have the logits of the full pass, or the refusal names the argument."""
    model = _model(dice, relative=dice.chance(0.9))
    symbols = torch.from_numpy(
        dice.random.integers(0, len(_CHARACTERS), (dice.integer(1, 3), dice.integer(2, 13)))
    )
    if dice.chance(0.2):
        with naming("symbols" if model.options.relative else "relative"):
            model.prefill(TENSORS[dice.pick([*TENSORS])](2, 3))
        return
    cut = dice.integer(1, symbols.shape[1] - 1)
    logits, state = model.prefill(symbols[:, :cut])
    if dice.chance(0.2):
        with naming("token"):
            model.step(dice.pick([*VALUES, TENSORS[dice.pick([*TENSORS])](2)]), state)
        return
    if dice.chance(0.2):
        with naming("state"):
            model.step(symbols[:, cut], dice.pick([v for v in VALUES if v is not None]))
        return
    found = [logits]
    for token in symbols[:, cut:].unbind(1):
        logits, state = model.step(token, state)
        found.append(logits[:, None])
    _close(torch.cat(found, 1), model(symbols), "logits of steps")


def explanation(dice: Dice) -> None:
    """Explanations of a text agree with a forward pass; invalid texts, positions and queries are refused by name."""
    model = _model(dice, relative=dice.chance(0.6), backends=("exact", "exact", "mean_field", "dqa"))
    form = TextForm(_CHARACTERS, tuple(_CHARACTERS), lambda symbols: symbols)
    text: Any = "".join(dice.pick(_CHARACTERS) for _ in range(dice.integer(1, 12)))
    if dice.chance(0.2):
        text = dice.pick(["", "é", text + "é", "\0", *VALUES])
    position = dice.pick(VALUES) if dice.chance(0.3) else None
    with naming("text"):
        symbols = form.encode(text)
    too_long = model.longest is not None and len(symbols) > model.longest
    torch.manual_seed(0)
    with naming("text" if too_long else "position"):
        found = explain_decoder(model, symbols, text, form.classes, position=position)
    torch.manual_seed(0)
    with torch.no_grad():
        _close(found.probabilities, model(symbols[None])[0].softmax(-1), "probabilities")
    _check(found)
    layer = model.attention_layers()[-1]
    if reason_without_correlations(layer) is None:
        with naming("query"):
            query_moments(layer, dice.pick(VALUES), seed=1)


def _check(found: DecoderExplanation) -> None:
    _close(found.attention.sum(-1), torch.ones(found.attention.shape[:-1]), "sums of weights")
    most = found.visible.double().expand(found.effective.shape) + _TOLERANCE
    demand(
        bool((found.effective <= most * (1 + _TOLERANCE)).all()),
        "effective: expected at most the visible keys",
    )
    if found.correlations is None or found.alpha is None:
        demand(found.without_correlations is not None, "without_correlations: expected a sentence, got None")
        return
    C, variance = found.correlations.double(), 4 * (found.alpha * (1 - found.alpha)).double()
    demand(bool(C.isfinite().all()), "correlations: expected finite numbers")
    _close(C.diagonal(dim1=-2, dim2=-1), variance, "variances")
    largest = (variance[..., :, None] * variance[..., None, :]).clamp_min(0).sqrt() + _TOLERANCE
    demand(bool((C.abs() <= largest).all()), "correlations: expected at most the deviations of both spins")


def _close(got: Tensor, expected: Tensor, what: str) -> None:
    error = float((got - expected).abs().max())
    bound = _TOLERANCE * (1 + float(expected.abs().max()))
    demand(error <= bound, f"{what}: expected those of the full pass within {bound:.1e}, off by {error:.1e}")
