"""Backend ``dimod``: any dimod sampler or composite, including D-Wave processors."""

from diabat.samplers.dimod.budget import BudgetError
from diabat.samplers.dimod.sampler import DimodSampler
from diabat.samplers.dimod.submit import SubmissionError

__all__ = ["BudgetError", "DimodSampler", "SubmissionError"]
