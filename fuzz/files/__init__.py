"""Damaged files and folders: what can be read gives finite answers, and the rest is refused by name."""
