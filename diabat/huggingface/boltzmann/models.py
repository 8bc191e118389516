"""Model types with couplings: ``boltzmann_llama``, ``boltzmann_qwen2`` and ``boltzmann_gpt2``.

A type of its own keeps the couplings: plain transformers refuses a saved model instead of loading it without J, and a
loaded model never runs another attention than ``boltzmann``.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from diabat.attention.heads.attention import NAME as COALITIONS
from diabat.checks import ArgumentError
from diabat.compute.memory import require_memory
from diabat.extras import extra
from diabat.huggingface.boltzmann.attention import NAME, boltzmann_attention
from diabat.huggingface.boltzmann.heads import BoltzmannHeads
from diabat.huggingface.boltzmann.options import BoltzmannOptions
from diabat.huggingface.enabling import attention_modules
from diabat.samplers.base import UnsupportedError

_BASES = {  # model type: configuration, model
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
}


class Kind(NamedTuple):
    """The classes of one architecture; ``plain`` is the model of transformers."""

    plain: Any
    config: Any
    model: Any


class BoltzmannMixin:
    """What a model with couplings adds to a causal language model of transformers."""

    _keep_in_fp32_modules_strict = (NAME,)  # for versions of transformers that load at the dtype of the model
    _plain: Any = None
    """The class of transformers without couplings."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        options = BoltzmannOptions.from_config(config)
        check_config(config)
        base: Any = super()
        base.__init__(config, *args, **kwargs)
        attach(self, options)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load as transformers does, and refuse a checkpoint without couplings.

        Raises:
            ArgumentError: If couplings are missing.
        """
        base: Any = super()
        model, info = base.from_pretrained(*args, output_loading_info=True, **kwargs)
        missing = sorted(key for key in info["missing_keys"] if f".{NAME}." in key)
        if missing:
            raise ArgumentError(
                "pretrained_model_name_or_path",
                f"expected a checkpoint with couplings, got one without {missing[0]}"
                f"{f' and {len(missing) - 1} others' * (len(missing) > 1)}; load it as {cls._plain.__name__} and call "
                "diabat.huggingface.convert.",
            )
        return (model, info) if output_loading_info else model

    def train(self, mode: bool = True) -> Any:
        """Switch training on or off, and warn if adapters of peft leave the couplings frozen."""
        base: Any = super()
        found = base.train(mode)
        if mode and vars(self).get("peft_config"):
            _warn_if_frozen(found)
        return found

    def initialize_weights(self) -> None:
        """Initialise what is not initialised; transformers leaves the memory of other missing parameters as it is."""
        base: Any = super()
        for part in cast(nn.Module, self).modules():
            if isinstance(part, BoltzmannHeads) and not vars(part).get("_is_hf_initialized"):
                with torch.no_grad():
                    # Skips what was read from a checkpoint.
                    extra("transformers.initialization").zeros_(part.coupling_pairs)
        base.initialize_weights()

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: str | None, *args: Any, **kwargs: Any
    ) -> str:
        # The last one calls the attention that the model had before.
        if attn_implementation not in (None, NAME, COALITIONS):
            raise UnsupportedError(
                "attn_implementation",
                f"expected {NAME!r} for {type(self).__name__}, since others ignore the couplings, "
                f"got {attn_implementation!r}.",
            )
        return attn_implementation or NAME


@cache
def kinds() -> dict[str, Kind]:
    """The classes by the model type of transformers.

    Raises:
        ImportError: If the extra ``hf`` is not installed.
    """
    return {name: _kind(name) for name in _BASES}


def register_boltzmann() -> None:
    """Make the attention and the model types known to transformers; calling it twice does no harm.

    Raises:
        ImportError: If the extra ``hf`` is not installed.
    """
    transformers, masks = extra("transformers"), extra("transformers.masking_utils")
    transformers.AttentionInterface.register(NAME, boltzmann_attention)
    # Without a mask function of this name the mask would be None.
    masks.AttentionMaskInterface.register(NAME, masks.eager_mask)
    for kind in kinds().values():
        transformers.AutoConfig.register(kind.config.model_type, kind.config, exist_ok=True)
        transformers.AutoModelForCausalLM.register(kind.config, kind.model, exist_ok=True)


def attach(model: Any, options: BoltzmannOptions) -> None:
    """Give every attention module of a model couplings J = 0, as its submodule ``boltzmann``.

    Raises:
        ValueError: If an option is invalid; the model is then unchanged.
    """
    modules = attention_modules(model)
    _require_memory(len(modules), model.config.num_attention_heads, options)
    built = []
    for module in modules.values():
        weight = next(module.parameters())
        dtype = torch.promote_types(weight.dtype, torch.float32)
        built.append(
            BoltzmannHeads(module.config.num_attention_heads, options, device=weight.device, dtype=dtype)
        )
    for module, heads in zip(modules.values(), built, strict=True):
        module.add_module(NAME, heads)


def _require_memory(layers: int, heads: int, options: BoltzmannOptions) -> None:
    window = options.window
    reach = window - 1 if options.bandwidth is None else min(options.bandwidth, window - 1)
    pairs = reach * window - reach * (reach + 1) // 2
    # float32: J, its gradient and both moments of an optimiser; and the J of one layer as a matrix, with its gradient.
    require_memory(
        16 * layers * heads * pairs + 12 * heads * window**2,
        f"couplings of window = {window} in {layers} layers of {heads} heads",
        "window",
    )


def check_config(config: Any) -> None:
    """Refuse cross-attention.

    Raises:
        UnsupportedError: If the model has it.
    """
    if config.to_dict().get("add_cross_attention"):
        raise UnsupportedError(
            "model", "expected a decoder without cross-attention, got add_cross_attention=True."
        )


def _kind(name: str) -> Kind:
    transformers = extra("transformers")
    config_base, plain = (getattr(transformers, part) for part in _BASES[name])
    config = type(
        f"Boltzmann{config_base.__name__}",
        (config_base,),
        {
            "__doc__": f"Configuration of {plain.__name__} with couplings; ``boltzmann`` has their settings.",
            "__module__": __name__,
            "__annotations__": {"boltzmann": dict[str, Any] | None},
            "model_type": f"boltzmann_{name}",
            "boltzmann": None,
        },
    )
    model = type(
        f"Boltzmann{plain.__name__}",
        (BoltzmannMixin, plain),
        {
            "__doc__": f"{plain.__name__} with couplings between the last keys of every query.",
            "__module__": __name__,
            "config_class": config,
            "_plain": plain,
        },
    )
    return Kind(plain, config, model)


def _warn_if_frozen(model: nn.Module) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    heads = [part for part in model.modules() if isinstance(part, BoltzmannHeads)]
    if trained and not any(p.requires_grad for part in heads for p in part.parameters()):
        warnings.warn(
            "adapters of peft leave the couplings frozen and do not save them; add "
            f"modules_to_save=[{NAME!r}] to their configuration to train them.",
            UserWarning,
            stacklevel=3,
        )


def __getattr__(name: str) -> Any:
    """The classes by their names, made on first use; pickle finds them here."""
    if name.startswith("Boltzmann"):
        for kind in kinds().values():
            for found in (kind.config, kind.model):
                if found.__name__ == name:
                    return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
