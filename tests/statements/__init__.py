"""Checks of statements of the guide; importing them fills the table."""

from statements import (
    anneals,
    answers,
    attention,
    chains,
    choices,
    conventions,
    in_torch,
    limitations,
    papers,
    processors,
)

__all__ = [
    "anneals",
    "answers",
    "attention",
    "chains",
    "choices",
    "conventions",
    "in_torch",
    "limitations",
    "papers",
    "processors",
]
