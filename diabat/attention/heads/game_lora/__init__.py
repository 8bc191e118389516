"""The mathematics of GAME-LoRA: losses on heads, Nash weights of several losses, schedules; no trainer."""
