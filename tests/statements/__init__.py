"""Checks of statements of the guide; importing them fills the table."""

from statements import anneals, answers, chains, choices, conventions, in_torch, limitations, processors

__all__ = ["anneals", "answers", "chains", "choices", "conventions", "in_torch", "limitations", "processors"]
