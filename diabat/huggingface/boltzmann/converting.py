"""Give a model of transformers couplings."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from diabat.checks import ArgumentError
from diabat.huggingface.boltzmann.attention import NAME
from diabat.huggingface.boltzmann.models import (
    BoltzmannMixin,
    Kind,
    attach,
    check_config,
    kinds,
    register_boltzmann,
)
from diabat.huggingface.boltzmann.options import BoltzmannOptions
from diabat.samplers.base import Sampler, UnsupportedError


def convert(
    model: Any,
    window: int = 16,
    sampler: Sampler | str = "exact",
    weights: str = "odds",
    *,
    far: str = "independent",
    gradient: str = "auto",
    num_reads: int | None = None,
    bandwidth: int | None = None,
) -> Any:
    """Turn a model into one with couplings between the last ``window`` visible keys of every query, J = 0.

    The model is changed in place: its parameters stay the same objects, its class and configuration become those of the
    model type ``boltzmann_...``.  With ``weights="odds"`` and an analytic backend it computes what it did before.

    Args:
        model: A LlamaForCausalLM, Qwen2ForCausalLM or GPT2LMHeadModel.  Convert before adapters of peft are added.
        window: T.
        sampler: Backend of the marginals, or its name: ``exact``, ``banded`` or ``mean_field``; sampling backends give
            softmax at J = 0 only approximately, and warn.
        weights: ``odds``; or ``probability``, weights P(s_j = +1) / Σ P, which is not softmax at J = 0: it changes what
            a trained model computes, and is meant for training from scratch.
        far: Keys before the window: ``independent``, spins without couplings; or ``none``, not visible, which changes
            what a trained model computes on longer sequences.
        gradient: Estimator, see :func:`diabat.spin_probabilities`.
        num_reads: Reads per query for sampling backends.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.

    Returns:
        The model.

    Raises:
        ArgumentError: If an option is invalid, or the model is converted already.
        UnsupportedError: If the architecture, or the window for this backend, is not supported.
        ImportError: If the extra ``hf`` is not installed.
    """
    options = BoltzmannOptions.of(
        sampler,
        window=window,
        weights=weights,
        far=far,
        gradient=gradient,
        num_reads=num_reads,
        bandwidth=bandwidth,
    )
    kind = _kind_of(model)
    check_config(model.config)
    register_boltzmann()
    attach(model, options)
    _retype(model, kind, options)
    _warn_if_approximate(model, options)
    return model


def _kind_of(model: Any) -> Kind:
    if isinstance(model, BoltzmannMixin):
        raise ArgumentError("model", f"expected a model without couplings, got {type(model).__name__}.")
    if isinstance(model, nn.Module) and any(vars(part).get("peft_config") for part in model.modules()):
        raise UnsupportedError(
            "model",
            f"expected a model without adapters, got {type(model).__name__}; convert it before they are added, with "
            f"modules_to_save=[{NAME!r}].",
        )
    for kind in kinds().values():
        if type(model) is kind.plain:
            return kind
    known = ", ".join(kind.plain.__name__ for kind in kinds().values())
    raise UnsupportedError("model", f"expected one of {known}, got {type(model).__name__}.")


def _retype(model: Any, kind: Kind, options: BoltzmannOptions) -> None:
    """Give a model its class and a configuration of its own; other models may share the old one."""
    old = model.config
    settings = {key: value for key, value in old.to_dict().items() if key != "model_type"}
    new = kind.config.from_dict(settings | {NAME: options.as_dict(), "architectures": [kind.model.__name__]})
    new._attn_implementation = NAME
    for module in model.modules():
        if vars(module).get("config") is old:
            module.config = new
    model.__class__ = kind.model
    model._keep_in_fp32_modules_strict = {*model._keep_in_fp32_modules_strict, NAME}


def _warn_if_approximate(model: Any, options: BoltzmannOptions) -> None:
    analytic = "exact" in options.build_sampler().capabilities.gradients
    if options.weights == "odds" and (not analytic or options.num_reads is not None):
        warnings.warn(
            f"sampler {options.sampler!r} does not return sigmoid(2h) exactly at J = 0, so that the converted model "
            "computes only approximately what it did before; 'exact', 'banded' and 'mean_field' do.",
            UserWarning,
            stacklevel=3,
        )
