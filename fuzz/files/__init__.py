"""Damaged files: problems, plans, schedules, configurations and checkpoints."""
