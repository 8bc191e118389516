"""Training with GAME-LoRA: losses on the heads of a decoder, and a Trainer of transformers with them."""

from diabat.huggingface.game.config import GameOptions
from diabat.huggingface.game.loss import GameLoss
from diabat.huggingface.game.trainer import GameMixin, game_trainer

__all__ = ["GameLoss", "GameMixin", "GameOptions", "game_trainer"]
