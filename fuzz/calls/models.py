"""Decoders: steps and parts give the full pass, and conversion keeps a model at J = 0."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from diabat.attention.boltzmann import coupling_parameters
from diabat.attention.coupled import SELF_MODES
from diabat.huggingface import convert
from diabat.huggingface.boltzmann import BoltzmannHeads
from diabat.models import Transformer, TransformerOptions
from fuzz.calls.laws import close
from fuzz.calls.layers import possible
from fuzz.calls.mistakes import VALUES, tensors
from fuzz.decoders import VOCABULARY, decoder
from fuzz.problems import SEEDS, mostly, normal, one_in, scales
from fuzz.properties import demand, holds, naming

_MODELS = {
    "num_heads": st.sampled_from([1, 2]),
    "num_layers": st.integers(1, 2),
    "mode": st.sampled_from(SELF_MODES),
    "positions": st.sampled_from(["learned", "rope"]),
    "weights": st.sampled_from(["probability", "odds"]),
    "attention_window": st.integers(1, 5),
    "far": st.sampled_from(["none", "independent"]),
    "offset_bias": one_in(4),
}


@holds
@torch.no_grad()
def decoding(draw: st.DrawFn) -> None:
    """A prompt and the steps behind it have the logits of the full pass, or the refusal names the argument."""
    given: dict[str, Any] = draw(st.fixed_dictionaries(_MODELS).map(possible))
    options = TransformerOptions(embed_dim=8, relative=True, **given)
    model = Transformer(options, 7, 7, 10, draw(st.sampled_from(["exact", "mean_field"]))).eval()
    scale, length, batch = draw(scales(0.01, 1)), draw(st.integers(2, 13)), draw(st.integers(1, 3))
    for parameter in (*model.parameters(), *coupling_parameters(model)):
        parameter.add_(scale * torch.randn_like(parameter))
    symbols, cut = torch.randint(0, 7, (batch, length)), draw(st.integers(1, length - 1))
    wrong = draw(mostly(st.just(""), st.sampled_from(["symbols", "token", "state"])))
    bad: Any = draw(tensors(2)) if wrong else None
    with naming(wrong):
        logits, state = model.prefill(bad if wrong == "symbols" else symbols[:, :cut])
        found = [logits]
        for token in symbols[:, cut:].unbind(1):
            logits, state = model.step(
                bad if wrong == "token" else token,
                bad if wrong == "state" else state,
            )
            found.append(logits[:, None])
    if not wrong:
        _same(torch.cat(found, 1), model(symbols), "logits of steps")


_CONVERSIONS = {
    "window": st.integers(1, 9),
    "sampler": st.sampled_from(["exact", "mean_field", "banded"]),
    "weights": st.sampled_from(["odds", "odds", "probability"]),
    "far": st.sampled_from(["independent", "independent", "none"]),
    "bandwidth": st.integers(1, 4),
}


@holds
@torch.no_grad()
def conversion(draw: st.DrawFn) -> None:
    """A converted model computes what it did at J = 0, and the same in parts and behind padding at any J."""
    options: dict[str, Any] = draw(st.fixed_dictionaries(_CONVERSIONS))
    plain, length = decoder(), draw(st.integers(2, 14))
    model, ids = copy.deepcopy(plain), torch.randint(0, VOCABULARY, (2, length))
    name = draw(st.sampled_from([*options, "gradient", "num_reads"]))
    if draw(one_in(3)):
        options[name] = draw(VALUES)
    try:
        with naming(name), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # reads are drawn: the conversion is approximate
            convert(model, **options)
    except ValueError:
        demand(torch.equal(model(ids).logits, plain(ids).logits), "model: expected it as it was")
        raise
    if model.config.boltzmann["num_reads"] is not None:
        return
    if (options["weights"], options["far"]) == ("odds", "independent"):
        _same(model(ids).logits, plain(ids).logits, "logits at J = 0")
    for module in model.modules():
        if isinstance(module, BoltzmannHeads) and module.coupling_pairs is not None:
            module.coupling_pairs.copy_(0.2 * normal(draw(SEEDS), *module.coupling_pairs.shape))
    whole, cut, missing = model(ids).logits, draw(st.integers(1, length - 1)), draw(st.integers(1, 5))
    first = model(ids[:, :cut], use_cache=True)
    rest = model(ids[:, cut:], past_key_values=first.past_key_values, use_cache=True)
    _same(torch.cat((first.logits, rest.logits), 1), whole, "logits in two parts")
    padding = torch.zeros(2, missing, dtype=torch.int64)
    seen = torch.cat((padding, torch.ones_like(ids)), 1)
    places = (seen.cumsum(1) - 1).clamp(min=0)
    padded = model(torch.cat((padding, ids), 1), attention_mask=seen, position_ids=places).logits
    _same(padded[:, missing:], whole, "logits behind padding")


def _same(got: Tensor, want: Tensor, what: str) -> None:
    """Of float32, relative to the largest."""
    close(got, want, 2e-4 * (1 + float(want.abs().max())), what)
