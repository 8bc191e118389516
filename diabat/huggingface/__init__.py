"""Hugging Face models: Boltzmann attention, attention calibrated by games on heads, and training with GAME-LoRA.

With transformers installed (the extra ``hf``), importing this package registers ``attn_implementation="gac"`` and
``"boltzmann"``, and the model types of :mod:`diabat.huggingface.boltzmann`.
"""

from importlib.util import find_spec
from typing import Any

from diabat.huggingface.boltzmann import (
    convert,
    load_couplings,
    parameter_groups,
    register_boltzmann,
    save_couplings,
)
from diabat.huggingface.gac import disable_gac, enable_gac, load_gac, read_gac, register_gac, save_gac
from diabat.huggingface.game import GameLoss, GameMixin, GameOptions, game_trainer
from diabat.huggingface.loading import load_adapter, load_decoder

__all__ = [
    "GameLoss",
    "GameMixin",
    "GameOptions",
    "GameTrainer",
    "convert",
    "disable_gac",
    "enable_gac",
    "load_adapter",
    "load_couplings",
    "load_decoder",
    "load_gac",
    "parameter_groups",
    "read_gac",
    "register_boltzmann",
    "register_gac",
    "save_couplings",
    "save_gac",
]

# Without it the functions name the extra; the modules can be imported.
if find_spec("transformers") is not None:
    register_gac()
    register_boltzmann()


def __getattr__(name: str) -> Any:
    """``GameTrainer``, which is a class of transformers, made on first use."""
    if name == "GameTrainer":
        return game_trainer()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
