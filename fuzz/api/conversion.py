"""Conversion of a decoder of transformers: any option, padding, and prompts in parts."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

from diabat.huggingface import convert
from diabat.huggingface.boltzmann import BoltzmannHeads
from fuzz.api.values import VALUES
from fuzz.decoders import VOCABULARY, decoder
from fuzz.dice import Dice
from fuzz.outcome import demand, naming

_ANALYTIC = ("exact", "mean_field", "banded")
_TOLERANCE = 2e-4
"""Logits of a model with weights of 0.5 in float32."""


def conversion(dice: Dice) -> None:
    """A converted model computes what it did at J = 0, and the same in parts and behind padding at any J."""
    options: dict[str, Any] = {
        "window": dice.integer(1, 9),
        "sampler": dice.pick(_ANALYTIC),
        "weights": dice.pick(["odds", "odds", "probability"]),
        "far": dice.pick(["independent", "independent", "none"]),
        "bandwidth": dice.integer(1, 4),
    }
    name = dice.pick([*options, "gradient", "num_reads"])
    if dice.chance(0.4):
        options[name] = dice.pick(VALUES)
    plain = decoder(dice.integer(0, 1))
    model = copy.deepcopy(plain)
    ids = torch.from_numpy(dice.random.integers(0, VOCABULARY, (2, dice.integer(2, 14))))
    try:
        with naming(name), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # reads are drawn: the conversion is approximate
            model = convert(model, **options)
    except ValueError:
        demand(torch.equal(_logits(model, ids), _logits(plain, ids)), "model: expected it as it was")
        raise
    if model.config.boltzmann["num_reads"] is not None:
        return
    if (options["weights"], options["far"]) == ("odds", "independent"):
        _close(_logits(model, ids), _logits(plain, ids), "J = 0")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, BoltzmannHeads) and module.coupling_pairs is not None:
                module.coupling_pairs.copy_(0.2 * dice.normal(*module.coupling_pairs.shape))
    whole = _logits(model, ids)
    demand(bool(torch.isfinite(whole).all()), "logits: expected finite numbers")
    _close(_in_parts(model, ids, dice.integer(1, ids.shape[1] - 1)), whole, "in two parts")
    _close(_padded(model, ids, dice.integer(1, 5)), whole, "behind padding")


def _logits(model: Any, ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(ids, **inputs).logits
    return found


def _in_parts(model: Any, ids: torch.Tensor, cut: int) -> torch.Tensor:
    with torch.no_grad():
        first = model(ids[:, :cut], use_cache=True)
        rest = model(ids[:, cut:], past_key_values=first.past_key_values, use_cache=True)
    return torch.cat((first.logits, rest.logits), 1)


def _padded(model: Any, ids: torch.Tensor, missing: int) -> torch.Tensor:
    padding = torch.zeros(len(ids), missing, dtype=torch.int64)
    seen = torch.cat((padding, torch.ones_like(ids)), 1)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    return _logits(model, torch.cat((padding, ids), 1), attention_mask=seen, position_ids=positions)[
        :, missing:
    ]


def _close(got: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    error = float((got - expected).abs().max())
    bound = _TOLERANCE * (1 + float(expected.abs().max()))
    demand(
        error <= bound, f"logits {where}: expected those of the whole within {bound:.1e}, off by {error:.1e}"
    )
