"""How heads interact, and training with GAME-LoRA: losses on heads, and a Trainer of transformers with them."""
