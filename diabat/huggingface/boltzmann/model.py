"""Models with couplings: :func:`convert`, and types ``boltzmann_llama``, ``boltzmann_gpt2`` and others.

A type of its own keeps the couplings: Auto classes without it refuse a saved model instead of loading it without J,
and a loaded model never runs another attention than ``boltzmann``.
"""

from __future__ import annotations

import warnings
from contextvars import ContextVar
from copy import copy
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from diabat.attention.couplings import pair_bytes
from diabat.attention.readout import as_readout
from diabat.checks import ArgumentError, ArgumentTypeError, refuse_unknown
from diabat.compute.memory import require_memory
from diabat.extras import extra
from diabat.files import replace_file, to_json
from diabat.huggingface.boltzmann.config import OPTIONS, BoltzmannOptions
from diabat.huggingface.boltzmann.layer import ALWAYS_WEIGHTS, NAME, BoltzmannHeads, boltzmann_attention
from diabat.huggingface.hub import check_folder, first_and_others, refuse_embedded_adapter
from diabat.huggingface.pretrained import ABLATION, GAC, attention_modules, query_heads, register_attention
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import UnsupportedError

# Model types of transformers whose attention is a softmax of scores, soft caps included; each is tested.
FAMILIES = ("gemma", "gemma2", "gemma3_text", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3")
_TASKS = {  # the class that loads a model for a task, and transformers' classes for it by configuration
    "AutoModel": "MODEL_MAPPING",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING",
}
SETTINGS = "boltzmann.json"
"""The file beside an adapter of peft with the settings of its couplings, as in ``config.json`` of a model."""
FORMER = "_former_attention"
"""Attribute of a converted model: the attention implementation that it had."""
# Of the model that is being built: one for classes of sequences builds what is below its head by AutoModel.
_BUILT: ContextVar[BoltzmannOptions | None] = ContextVar("built", default=None)
_CARD = """---
library_name: transformers
tags: [diabat]
---
{plain} with couplings of Boltzmann attention; config.json has their settings. It needs the package diabat:

    import diabat.huggingface  # makes the model type known
    from transformers import {auto}

    model = {auto}.from_pretrained(folder)
"""


def convert(
    model: Any, window: int = 16, sampler: Sampler | str | None = None, readout: str = "odds", **options: Any
) -> Any:
    """Turn a model into one with couplings between visible keys of every query, J = 0.

    The model is changed in place: its parameters stay the same objects, its class and configuration become those of the
    model type ``boltzmann_...``.  It computes what it did before, unless ``readout="probability"``, ``far="none"`` or a
    backend that is not analytic changes that, of which it warns.

    Args:
        model: A decoder of one of `FAMILIES`, with a head for tokens, for classes of sequences or of tokens, for
            answers in a text, or none (``LlamaForCausalLM``, ``Qwen3ForSequenceClassification``, ``GemmaModel``).
            Convert before adapters of peft are added.  Below any other head convert ``model.base_model``.
        window: T, the number of last keys that are coupled.
        sampler: Backend of the marginals, or its name; only analytic ones give softmax at J = 0.
        readout: ``odds`` or ``probability``.
        options: The other ones of `BoltzmannOptions`.

    Returns:
        The model.

    Raises:
        ArgumentError: If an option is invalid, or the model is converted already.
        UnsupportedError: If the architecture, quantised weights, or the window for this backend, is not supported.
        ImportError: If the extra ``hf`` is not installed.
    """
    if "heads" in options:
        hold = "diabat.attention.couplings_of(model)[NAME].hold(0, heads=...)"
        got = f"{options['heads']!r:.60}; {hold} ablates some"
        raise ArgumentTypeError("heads", "nothing, since all heads have couplings", got)
    refuse_unknown(options, OPTIONS)
    chosen = BoltzmannOptions(window, sampler, readout, **options)
    couple(model, kind_of(model), chosen)
    for name, value, usual in (("readout", "probability", "odds"), ("far", "none", "independent")):
        if getattr(chosen, name) == value:
            text = "changes what the model computes, also at J = 0, and is meant for training from scratch"
            warnings.warn(f"{name}={value!r} {text}; {name}={usual!r} does not.", stacklevel=2)
    backend = cast(Sampler, chosen.sampler)
    analytic = "exact" in backend.capabilities.gradients and chosen.num_reads is None
    if as_readout(chosen.readout).odds and not analytic:
        cause = f"sampler {backend.name!r} does not return sigmoid(2h) exactly at J = 0"
        text = "so that the converted model computes only approximately what it did before"
        warnings.warn(f"{cause}, {text}; 'exact', 'banded' and 'mean_field' do.", stacklevel=2)
    return model


def revert(model: Any) -> Any:
    """Turn a converted model into what it was: without couplings, with its former attention, to the bit.

    The model is changed in place: its class, configuration and names of parameters are again those of transformers, and
    its parameters stay the same objects.  Its couplings are dropped, learned ones too; ``save_couplings`` before keeps
    them, and ``load_couplings`` gives them back.

    Args:
        model: That ``convert`` made, or that was loaded with couplings, which then gets the attention that transformers
            chooses.  Take adapters of peft off before (``merge_and_unload`` or ``unload``).

    Returns:
        The model.

    Raises:
        ArgumentError: If the model has no couplings.
        UnsupportedError: If it has adapters of peft.
    """
    require_couplings(model)
    former = vars(model).get(FORMER)
    for part in list(cast(nn.Module, model).modules()):
        part._modules.pop(NAME, None)
        vars(part).pop(ALWAYS_WEIGHTS, None)
        if isinstance(part, BoltzmannMixin):  # also below a head that was loaded
            vars(part).pop(FORMER, None)
            cast(Any, part)._keep_in_fp32_modules_strict.discard(NAME)
            _become(part, part._plain)
    cast(Any, model).set_attn_implementation(former)
    return model


class BoltzmannMixin:
    """What a model with couplings adds to a decoder of transformers.

    A configuration names only backends that compute (`FOLDER_SAMPLERS`), since it may come from somebody else.  Any
    other is given in code: ``from_pretrained(folder, sampler=diabat.sampler("dqa"))``, also with the Auto classes.
    """

    _keep_in_fp32_modules_strict = (NAME,)  # for versions of transformers that load at the dtype of the model
    _plain: Any = None  # the class of transformers without couplings
    _auto: Any = None  # the class that finds the model type

    def __init__(self, config: Any, *args: Any, sampler: Sampler | str | None = None, **kwargs: Any) -> None:
        if name := next((name for name in OPTIONS if name in kwargs), None):
            expected = "nothing, since config.boltzmann has all settings but for the sampler"
            raise ArgumentError(name, expected, f"{kwargs[name]!r:.60}")
        options = _BUILT.get() or BoltzmannOptions.from_settings(config.boltzmann, sampler)
        token = _BUILT.set(options)
        try:
            cast(Any, super()).__init__(config, *args, **kwargs)
        finally:
            _BUILT.reset(token)
        if not any(isinstance(part, BoltzmannHeads) for part in cast(nn.Module, self).modules()):
            attach(self, options)
        config.boltzmann = options.as_dict()

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """Load as transformers does; ArgumentError if couplings are missing, or there is an adapter beside them."""
        place, local = pretrained_model_name_or_path, bool(kwargs.get("local_files_only"))
        check_folder(Path(str(place), kwargs.get("subfolder") or ""), "pretrained_model_name_or_path")
        refuse_embedded_adapter(place, local_files_only=local)
        model, info = cast(Any, super()).from_pretrained(place, *args, output_loading_info=True, **kwargs)
        missing = sorted(key for key in info["missing_keys"] if f".{NAME}." in key)
        if missing:
            fix = f"load it as {cls._plain.__name__} and call diabat.huggingface.convert"
            got = f"one without {first_and_others(missing)}; {fix}"
            raise ArgumentError("pretrained_model_name_or_path", "a checkpoint with couplings", got)
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with a card README.md if there is none; UnsupportedError for shared couplings."""
        require_own_couplings(cast(nn.Module, self))
        cast(Any, super()).save_pretrained(save_directory, *args, **kwargs)
        card = Path(save_directory) / "README.md"
        if kwargs.get("is_main_process", True) and not card.exists():
            text = _CARD.format(plain=self._plain.__name__, auto=self._auto.__name__)
            replace_file(card, text.encode())

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; the configurations of adapters, which peft sets, write the settings beside them."""
        super().__setattr__(name, value)
        if name == "peft_config":
            _write_settings_beside(value, cast(Any, self).config)

    def train(self, mode: bool = True) -> Any:
        """Switch training on or off, and warn if adapters of peft leave the couplings frozen."""
        model, adapters = cast(Any, super()).train(mode), vars(self).get("peft_config", {})
        _write_settings_beside(adapters, model.config)  # of adapters added since
        trained = [name.split(".") for name, p in model.named_parameters() if p.requires_grad]
        if mode and adapters and trained and not any(NAME in parts for parts in trained):
            fix = f"add modules_to_save=[{NAME!r}] to their configuration to train them."
            text = f"adapters of peft leave the couplings frozen and do not save them; {fix}"
            warnings.warn(text, stacklevel=2)
        return model

    def initialize_weights(self) -> None:
        """Initialise what is not initialised; transformers leaves the memory of other missing parameters as it is."""
        for part in cast(nn.Module, self).modules():
            if isinstance(part, BoltzmannHeads) and not vars(part).get("_is_hf_initialized"):
                with torch.no_grad():  # what was read from a checkpoint stays
                    part.couplings.initialise(extra("transformers.initialization"))
        cast(Any, super()).initialize_weights()

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: str | None, *args: Any, **kwargs: Any
    ) -> str:
        # The last one calls the attention that the model had before.
        if attn_implementation not in (None, NAME, ABLATION):
            expected = f"{NAME!r} for {type(self).__name__}, since others ignore the couplings"
            raise UnsupportedError("attn_implementation", expected, f"{attn_implementation!r}")
        return attn_implementation or NAME


@cache
def kinds() -> tuple[Any, ...]:
    """The models with couplings of all families and tasks that this version of transformers has."""
    transformers = extra("transformers")
    classes = []
    for family in (family for family in FAMILIES if family in transformers.CONFIG_MAPPING):
        plain = transformers.CONFIG_MAPPING[family]
        config = _config(family, plain)
        for auto, mapping in _TASKS.items():
            models = getattr(transformers, mapping)
            if plain in models:
                classes.append(_kind(getattr(transformers, auto), models[plain], config))
    return tuple(classes)


def register_boltzmann() -> None:
    """Make the attention and the model types known to transformers; calling it twice does no harm."""
    transformers = extra("transformers")
    register_attention(NAME, boltzmann_attention, boolean=True)
    for kind in kinds():
        config = kind.config_class
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
        kind._auto.register(config, kind, exist_ok=True)


def attach(model: Any, options: BoltzmannOptions) -> None:
    """Give every attention module of a model couplings J = 0, as submodule ``boltzmann``; refused, it is unchanged."""
    if getattr(model.config, "add_cross_attention", False):
        raise UnsupportedError("model", "a decoder without cross-attention", "add_cross_attention=True")
    modules, heads = attention_modules(model), model.config.num_attention_heads
    layers = list(modules) if options.layers is None else options.layers
    if unknown := [layer for layer in layers if layer not in modules]:
        raise ArgumentError("layers", f"layers among 0 .. {max(modules)}", f"{unknown[0]!r}")
    size = sum(pair_bytes(heads, options.window, options.bandwidth, copies=len(layers)))
    what = f"couplings of window = {options.window} in {len(layers)} layers of {heads} heads"
    require_memory(size, what, "window")
    built = {}
    for layer in layers:
        w = next(modules[layer].parameters())
        dtype = torch.promote_types(w.dtype, torch.float32)
        built[layer] = BoltzmannHeads(query_heads(modules[layer]), options, device=w.device, dtype=dtype)
    for layer, part in built.items():
        modules[layer].add_module(NAME, part)
    for module in modules.values():
        setattr(module, ALWAYS_WEIGHTS, "output_attentions" in signature(type(module).forward).parameters)


def _write_settings_beside(adapters: dict[str, Any], config: Any) -> None:
    """Let adapters, by name, write the settings of a model beside them, by a copy of their configuration."""
    for name, adapter in adapters.items():
        if "save_pretrained" not in vars(adapter):
            adapters[name] = own = copy(adapter)
            own.save_pretrained = partial(_save_adapter, own, {NAME: config.boltzmann})


def _save_adapter(adapter: Any, settings: dict[str, Any], save_directory: Any, **kwargs: Any) -> None:
    type(adapter).save_pretrained(adapter, save_directory, **kwargs)
    replace_file(Path(save_directory) / SETTINGS, to_json(settings))


def _config(family: str, plain: Any) -> Any:
    def get_config_dict(cls: Any, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read the configuration of a plain model as one without settings: peft does so where it saves an adapter."""
        settings, others = plain.get_config_dict(*args, **kwargs)
        if settings.get("model_type") == family:
            settings = settings | {"model_type": cls.model_type}
        return settings, others

    own: dict[str, Any] = {
        "__doc__": f"{plain.__name__} with couplings; ``boltzmann`` has their settings.",
        "__module__": __name__,
        "__annotations__": {"boltzmann": dict[str, Any] | None},
        "model_type": f"boltzmann_{family}",
        "boltzmann": None,
        "get_config_dict": classmethod(get_config_dict),
    }
    return type(f"Boltzmann{plain.__name__}", (plain,), own)


def _kind(auto: Any, plain: Any, config: Any) -> Any:
    own = {
        "__doc__": f"{plain.__name__} with couplings between the last keys of every query.",
        "__module__": __name__,
        "config_class": config,
        "_plain": plain,
        "_auto": auto,
    }
    return type(f"Boltzmann{plain.__name__}", (BoltzmannMixin, plain), own)


def kind_of(model: Any) -> Any:
    """The class with couplings of a model without, or a refusal."""
    if isinstance(model, BoltzmannMixin):
        raise ArgumentError("model", "a model without couplings", type(model).__name__)
    _refuse_adapters(model, f"convert it before they are added, with modules_to_save=[{NAME!r}]")
    known = {kind._plain: kind for kind in kinds()}
    if type(model) not in known:
        expected, below = f"a decoder of transformers of one of {', '.join(FAMILIES)}", ""
        parts = model.named_modules() if isinstance(model, nn.Module) else ()
        if name := next((name for name, part in parts if type(part) in known), None):
            heads = ", ".join(auto.removeprefix("AutoModelFor") for auto in _TASKS if auto != "AutoModel")
            expected = f"no head, or one of {heads}"
            below = f"; convert what is below it, model.{name}"
        raise UnsupportedError("model", expected, f"{type(model).__name__}{below}")
    if model.config._attn_implementation == GAC:
        got = f"attention {GAC!r}; disable_gac first"
        raise UnsupportedError("model", "a model that is not calibrated", got)
    hooked = [part for part in model.modules() if "_hf_hook" in vars(part)]
    if any(p.is_meta for part in hooked for p in part.parameters()):
        raise UnsupportedError("model", "weights in memory", "offloaded ones; convert before")
    if getattr(model, "hf_quantizer", None) is not None:
        method = model.hf_quantizer.quantization_config.quant_method
        got = f"those of {getattr(method, 'value', method)!r}"
        raise UnsupportedError("model", "weights that are not quantised", got)
    return known[type(model)]


def require_couplings(model: Any) -> None:
    """Refuse a model without couplings, or with adapters of peft."""
    _refuse_adapters(model, "take them off before (merge_and_unload or unload)")
    if not isinstance(model, BoltzmannMixin):
        raise ArgumentError("model", "a model with couplings", type(model).__name__)


def require_own_couplings(model: nn.Module) -> None:
    """Refuse to write couplings that layers share: a file would not say so, and safetensors takes none."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(parameter.data_ptr() or id(parameter), name)
        if first != name and NAME in name.split("."):
            got = f"{first} and {name}, which are one; give each layer a copy (copy.deepcopy)"
            raise UnsupportedError("model", "couplings of its own in every layer that is saved", got)


def _refuse_adapters(model: Any, fix: str) -> None:
    if isinstance(model, nn.Module) and any(vars(part).get("peft_config") for part in model.modules()):
        raise UnsupportedError("model", "a model without adapters", f"{type(model).__name__}; {fix}")


def couple(model: Any, kind: Any, options: BoltzmannOptions) -> None:
    """Give a model couplings J = 0, its class and a configuration of its own; other models may share the old one."""
    register_boltzmann()
    attach(model, options)
    setattr(model, FORMER, model.config._attn_implementation)
    _become(model, kind, **{NAME: options.as_dict()})
    model._keep_in_fp32_modules_strict = {*model._keep_in_fp32_modules_strict, NAME}


def _become(model: Any, kind: Any, **own: Any) -> None:
    """Give a model a class and a configuration of its own."""
    old = model.config
    if type(old) is not kind.config_class:  # else it is that of a head, which has it already
        settings = {key: value for key, value in old.to_dict().items() if key not in ("model_type", NAME)}
        new = kind.config_class.from_dict(settings | {"architectures": [kind.__name__]} | own)
        new._attn_implementation = NAME
        for module in model.modules():
            if vars(module).get("config") is old:
                module.config = new
    model.__class__ = kind


def __getattr__(name: str) -> Any:
    """The classes by their names, made on first use; pickle finds them here."""
    if name.startswith("Boltzmann"):
        known = {one.__name__: one for kind in kinds() for one in (kind.config_class, kind)}
        if name in known:
            return known[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
