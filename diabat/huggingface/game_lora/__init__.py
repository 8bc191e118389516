"""Training with GAME-LoRA: around a Trainer of Hugging Face or in a loop of your own."""
