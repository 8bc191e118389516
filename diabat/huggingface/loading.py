"""Load a decoder and its tokenizer, from a folder or the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from diabat.checks import ArgumentError, check_choice
from diabat.extras import extra
from diabat.tasks.hub import load_tokenizer, resolve, unavailable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# A folder without any of these has no tokenizer; models on token ids need none.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


def load_decoder(
    name: str, *, dtype: str = "float32", device: str = "cpu", local_files_only: bool = False
) -> tuple[Any, Any]:
    """Load a causal language model in evaluation mode, and its tokenizer.

    Code that a repository brings along is not run.

    Args:
        name: A folder, a name on the hub, or ``package:NAME/FOLDER``.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        device: As torch names it.
        local_files_only: Use what is on the disk; do not ask the hub.

    Returns:
        The model, and its fast tokenizer; None if the folder holds none.

    Raises:
        ArgumentError: If there is no such model, it is no causal language model, weights are missing, its tokenizer
            cannot be loaded, or dtype or device are unknown.
        ImportError: If the extra ``hf`` is not installed.
    """
    check_choice("dtype", dtype, DTYPES)
    target = _device(device)
    transformers = extra("transformers")
    place = resolve(name, "model")
    options = {"local_files_only": local_files_only, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(place, **options)
    # transformers raises half a dozen types here; see unavailable.
    except Exception as error:
        raise unavailable(name, "model", "a model", error) from None
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ArgumentError(
            "model", f"expected a causal language model, got '{name}' of type {config.model_type}."
        )
    try:
        with _quiet(transformers.utils.logging):
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                place, config=config, dtype=DTYPES[dtype], output_loading_info=True, **options
            )
    except Exception as error:
        raise unavailable(name, "model", "a causal language model", error) from None
    if report["missing_keys"]:  # transformers fills them with random numbers
        missing = sorted(report["missing_keys"])
        raise ArgumentError(
            "model",
            f"expected the weights of a causal language model, got '{name}' without {missing[0]}"
            f"{f' and {len(missing) - 1} others' if len(missing) > 1 else ''}.",
        )
    folder = Path(place)
    bare = folder.is_dir() and not any((folder / file).is_file() for file in _TOKENIZER_FILES)
    tokenizer = None if bare else load_tokenizer(name, local_files_only=local_files_only, argument="model")
    return model.to(target).eval(), tokenizer


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Hide the bars and warnings of loading; what is missing is refused by name."""
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # unknown, not compiled in, or not there
        raise ArgumentError("device", f"expected a device that torch has here, got '{name}'.") from None
    return device
