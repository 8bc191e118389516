"""Scripts on attention heads: questions for games, GAME-LoRA, measurements of interaction."""
