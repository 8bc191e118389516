"""Encoders of Hugging Face: loaded by name or folder, or drawn at random from a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.tasks.hub import quiet, resolve, unavailable

_NUMBERED_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
"""Model types that number positions from the padding token's number + 1."""


def load_encoder(
    name: str,
    *,
    pretrained: bool = True,
    changes: Mapping[str, Any] | None = None,
    local_files_only: bool = False,
) -> nn.Module:
    """Load an encoder in float32.

    Args:
        name: A name on the hub, a folder, or ``package:NAME/FOLDER`` (see :func:`diabat.tasks.hub.resolve`).
        pretrained: Load the weights; otherwise only the configuration is read, and the weights are drawn from
            torch's global generator.
        changes: Changes of the configuration, e.g. {"num_hidden_layers": 2}.
        local_files_only: Use local files only; do not access the hub.

    Raises:
        ValueError: If there is no such encoder, or the configuration has no such key.
        ImportError: If the extra ``hf`` is not installed.
    """
    import torch

    transformers = extra("transformers")
    # Code that is shipped with an encoder is never run, and the user is not asked.
    place, safe = resolve(name), {"local_files_only": local_files_only, "trust_remote_code": False}
    model = transformers.AutoModel
    try:
        with quiet(transformers.utils.logging):  # unused heads of a checkpoint need no warning
            config = transformers.AutoConfig.from_pretrained(place, **safe)
            _change(config, changes or {})
            if pretrained:
                encoder = model.from_pretrained(place, config=config, dtype=torch.float32, **safe)
            else:
                encoder = model.from_config(config, trust_remote_code=False)
    except ArgumentError:
        raise
    except Exception as error:  # transformers raises half a dozen types
        raise unavailable(name, "encoder", "an encoder", error) from None
    # The pooler of BERT is not used: it is left as it is, rather than pulled to zero by weight decay.
    if (pooler := getattr(encoder, "pooler", None)) is not None:
        pooler.requires_grad_(False)
    return encoder


def _change(config: Any, changes: Mapping[str, Any]) -> None:
    known = config.to_dict()
    for key, value in changes.items():
        if key not in known:
            problem = f"unknown key of a '{config.model_type}' configuration."
            raise ArgumentError(f"encoder_config.{key}", problem)
        setattr(config, key, value)


def positions_of(encoder: nn.Module) -> int | None:
    """Largest number of positions of the encoder, or None if there is no limit."""
    config: Any = encoder.config
    limit = config.to_dict().get("max_position_embeddings")
    if not isinstance(limit, int) or limit < 1:
        return None
    return limit - (config.pad_token_id + 1 if config.model_type in _NUMBERED_FROM_PADDING else 0)
