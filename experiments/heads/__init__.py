"""Scripts on attention heads: evaluation by lm-eval, questions for games, GAME-LoRA, measurements of interaction."""
