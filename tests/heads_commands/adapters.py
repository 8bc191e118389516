"""LoRA adapters of the small decoder, saved."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from .tiny import decoder


def saved_adapter(path: Path, seed: int = 1, **options: Any) -> Path:
    """An adapter of random weights, so that it changes the model."""
    from peft import LoraConfig, get_peft_model

    config: dict[str, Any] = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "o_proj"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers renames
        model = get_peft_model(decoder(), LoraConfig(**config | options))
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.5)
        model.save_pretrained(str(path))
    return path
