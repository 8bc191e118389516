"""Load a decoder with its tokenizer, and a LoRA adapter, which may come from somebody else: no code of theirs is run.

docs/security.md says what such a folder may name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from diabat.checks import ArgumentError, check_choice
from diabat.extras import extra
from diabat.huggingface import hub
from diabat.huggingface.boltzmann.adapter import match_couplings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# A folder without any of these has no tokenizer; models on token ids need none.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
ADAPTER_FILES = (hub.ADAPTER_CONFIG, "adapter_model.safetensors")
# What an adapter may set; other keys have to be as LoraConfig has them.  megatron_config imports the module that
# megatron_core names, and others read files, change the base model or call for data.
_ADAPTER_KEYS = frozenset({
    "peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode",
    "peft_version", "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "fan_in_fan_out", "bias",
    "use_rslora", "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern",
    "alpha_pattern", "use_dora", "lora_bias", "trainable_token_indices", "target_parameters", "ensure_weight_tying",
})  # fmt: skip


def load_decoder(
    name: str | Path, *, dtype: str = "float32", device: str = "cpu", local_files_only: bool = False
) -> tuple[Any, Any]:
    """Load a causal language model in evaluation mode, and its tokenizer.

    Weights are read from safetensors; neither code that a repository brings along nor a kernel that it names is run.

    Args:
        name: A folder, a name on the hub, or ``package:NAME/FOLDER``.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        device: As torch names it.
        local_files_only: Use what is on the disk; do not ask the hub.

    Returns:
        The model, and its fast tokenizer; None if the folder holds none.

    Raises:
        ArgumentError: If there is no such model, it is no causal language model, weights are missing, it has an adapter
            or chooses its own attention, its tokenizer cannot be loaded, or dtype or device are unknown.
        ImportError: If the extra ``hf`` is not installed.
    """
    check_choice("dtype", dtype, DTYPES)
    name = str(name)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # unknown, not compiled in, or not there
        raise ArgumentError("device", "a device that torch has here", f"'{device}'") from None
    transformers, place = extra("transformers"), hub.resolve(name, "model")
    offline: dict[str, Any] = {"local_files_only": local_files_only, "trust_remote_code": False}
    with _refusing("model", "the folder of a model", name, place):
        hub.refuse_embedded_adapter(place, local_files_only=local_files_only)
        config = transformers.AutoConfig.from_pretrained(place, **offline)
    _check_config(name, config)
    what = "the folder of a causal language model"
    with _refusing("model", what, name, place), hub.quiet(transformers.utils.logging):
        options = {"config": config, "dtype": DTYPES[dtype], "use_safetensors": True, **offline}
        auto = transformers.AutoModelForCausalLM
        model, report = auto.from_pretrained(place, output_loading_info=True, **options)
    missing = sorted(report["missing_keys"])
    if missing:  # transformers fills them with random numbers
        got = f"'{name}' without {hub.first_and_others(missing)}"
        raise ArgumentError("model", "the weights of a causal language model", got)
    folder, tokenizer = Path(place), None
    if not folder.is_dir() or any((folder / file).is_file() for file in _TOKENIZER_FILES):
        with _refusing("model", "the folder of a model with a tokenizer", name, place):
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, use_fast=True, **offline)
        if not tokenizer.is_fast:
            raise ArgumentError("model", "a model with a fast tokenizer", f"'{name}', which has none")
    return model.to(device).eval(), tokenizer


def load_adapter(model: Any, folder: str | Path) -> Any:
    """Return the model with a LoRA adapter, in evaluation mode.

    An adapter with couplings has their settings beside it, in ``boltzmann.json``.  A model without couplings is
    converted with them, in place.  A converted model must have the same settings; only its backend may be another.

    Args:
        model: The model that the adapter was trained on.  After a refusal it may have empty adapters, and couplings
            of 0: load it again.
        folder: Of ``save_pretrained``: the configuration, weights in safetensors, and settings of couplings.

    Raises:
        ArgumentError: If a file is missing or damaged, the adapter does not fit the model, it sets more than the
            sizes and places of LoRA, or its couplings are not those of the model.
        UnsupportedError: If the model cannot have the couplings of the adapter, as for ``convert``.
        ImportError: If the extra ``hf`` is not installed.

    Warns:
        UserWarning: If settings of its couplings are missing, so that only their sizes can be compared.
    """
    peft, path = extra("peft"), Path(folder)
    check_adapter(path)
    what = "an adapter of this model"
    with _refusing("adapter", what, path, path), safe_open(path / ADAPTER_FILES[1], "pt") as file:
        stored = set(file.keys())
    match_couplings(model, path, stored)
    with _refusing("adapter", what, path, path), warnings.catch_warnings():
        # Of a property that transformers has renamed, and of what is missing, which is checked below.
        warnings.simplefilter("ignore")
        adapted = peft.PeftModel.from_pretrained(model, str(path), local_files_only=True)
        expected = set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=False))
    taken = expected | {key for key in adapted.state_dict() if "lora_" not in key}  # with resized embeddings
    wrong = sorted((expected - stored) | (stored - taken))
    if wrong:
        got = "without" if wrong[0] in expected else "with"
        raise ArgumentError("adapter", "an adapter of this model", f"'{folder}' {got} {wrong[0]}")
    return adapted.eval()


def check_adapter(folder: Path) -> dict[str, Any]:
    """Read the configuration of an adapter, and refuse what is no LoRA or sets more than its sizes and places."""
    for name in ADAPTER_FILES:
        if not (folder / name).is_file():
            raise ArgumentError("adapter", f"a folder with {name}", f"'{folder}' without it")
    path = folder / ADAPTER_FILES[0]
    config = hub.json_of(path, "adapter")
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise ArgumentError("adapter", "peft_type 'LORA'", f"{kind!r:.40} in '{path}'")
    usual = extra("peft").LoraConfig().to_dict()
    for key, value in config.items():
        # An older peft leaves keys out, a newer one adds some that are off.
        if key not in _ADAPTER_KEYS and value and value != usual.get(key):
            expected = f"{key} {usual.get(key)!r}, the only value that is taken from a folder"
            raise ArgumentError("adapter", expected, f"{value!r:.60} in '{path}'")
    return config


def _check_config(name: str, config: Any) -> None:
    """Refuse a model that is no causal one, or names attention or experts to be fetched."""
    if type(config) not in extra("transformers").MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ArgumentError("model", "a causal language model", f"'{name}' of type {config.model_type}")
    for part in (config, *(getattr(config, key) for key in config.sub_configs)):
        for key in ("attn_implementation", "experts_implementation"):
            # save_pretrained writes neither; a name with a slash is fetched and run.
            if (value := getattr(part, f"_{key}", None)) is not None:
                raise ArgumentError("model", f"a configuration without {key}", f"{value!r:.60} in '{name}'")


@contextmanager
def _refusing(argument: str, expected: str, name: str | Path, place: str | Path) -> Iterator[None]:
    """Turn what transformers and peft raise into one sentence: their texts are long, and may quote requests."""
    try:
        yield
    except ArgumentError:
        raise
    except Exception as error:
        if not Path(place).is_dir():
            fix = "check the spelling, the connection to huggingface.co and your access to it"
            got = f"'{name}' ({type(error).__name__}); {fix}"
            raise ArgumentError(argument, f"{expected}, or its name on the hub", got) from None
        words = " ".join(str(error).split()) or type(error).__name__
        first = words.partition(". ")[0].rstrip(".:")[:200]
        raise ArgumentError(argument, expected, f"'{name}': {first}") from None
