"""Checks of statements of the guide; importing them fills the table."""

from importlib import import_module

NAMES = "anneals answers attention chains choices conventions in_torch limitations papers processors"
for name in NAMES.split():
    import_module(f"statements.{name}")
