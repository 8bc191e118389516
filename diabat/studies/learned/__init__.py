"""Learned anneals: short plans whose angles are trained so that their reads follow Boltzmann's law at beta = 1."""

from diabat.studies.learned.objective import Objective, canonical
from diabat.studies.learned.problems import (
    AnnealOptions,
    Instances,
    random_problems,
    split_windows,
    wide_problems,
    with_moments,
)
from diabat.studies.learned.report import ErrorTable, error_table, plot_plan, trained_range
from diabat.studies.learned.search import Watch, learn_plan

__all__ = [
    "AnnealOptions",
    "ErrorTable",
    "Instances",
    "Objective",
    "Watch",
    "canonical",
    "error_table",
    "learn_plan",
    "plot_plan",
    "random_problems",
    "split_windows",
    "trained_range",
    "wide_problems",
    "with_moments",
]
