"""A grouped-query decoder trained here, then fine-tuned with each loss on heads: coupling, redundancy, truth.

python -m benchmarks.game_lora_study FOLDER [--seeds 3] [--steps 300] [--workers 2] [--json]
"""
