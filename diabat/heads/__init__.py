"""Attention heads of Hugging Face decoders: games on them, calibration (GAC), and how they interact (GAME-LoRA).

With transformers installed (the extra ``hf``), importing this package registers ``attn_implementation="gac"``.
"""

from importlib.util import find_spec
from typing import Any

from diabat.heads.calibration.attention import NAME, gac_attention
from diabat.heads.calibration.file import load_gac, save_gac
from diabat.heads.calibration.mathematics import Calibration, ColumnSums, calibrate
from diabat.heads.calibration.model import disable_gac, enable_gac, enabled_calibration
from diabat.heads.games.coalitions import HeadCoalitions
from diabat.heads.games.dividends import Dividends, common, max_dividend, small_coalitions
from diabat.heads.games.search import SearchResult, Surrogate, fit_surrogate, surrogate
from diabat.heads.lora.interactions import HeadInteractions, LayerInteraction
from diabat.heads.lora.loss import GameLoss
from diabat.heads.lora.options import GameOptions
from diabat.heads.lora.trainer import GameMixin, game_trainer
from diabat.huggingface.pretrained import register_attention

__all__ = [
    "Calibration",
    "ColumnSums",
    "Dividends",
    "GameLoss",
    "GameMixin",
    "GameOptions",
    "GameTrainer",
    "HeadCoalitions",
    "HeadInteractions",
    "LayerInteraction",
    "SearchResult",
    "Surrogate",
    "calibrate",
    "common",
    "disable_gac",
    "enable_gac",
    "enabled_calibration",
    "fit_surrogate",
    "load_gac",
    "max_dividend",
    "save_gac",
    "small_coalitions",
    "surrogate",
]

# Without it the functions name the extra; the modules can be imported.
if find_spec("transformers") is not None:
    register_attention(NAME, gac_attention)


def __getattr__(name: str) -> Any:
    """``GameTrainer``, which is a class of transformers, made on first use."""
    if name == "GameTrainer":
        return game_trainer()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
