"""Learned anneals: short plans whose angles are trained so that their reads follow Boltzmann's law at beta = 1."""

from diabat.studies.learned.instances import (
    Instances,
    held_out_instances,
    random_instances,
    recorded_instances,
    split_windows,
    wide_instances,
)
from diabat.studies.learned.objective import Objective, canonical
from diabat.studies.learned.report import COLUMNS, ErrorTable, error_table, plot_plan, trained_range
from diabat.studies.learned.search import Search, Watcher, learn_plan

__all__ = [
    "COLUMNS",
    "ErrorTable",
    "Instances",
    "Objective",
    "Search",
    "Watcher",
    "canonical",
    "error_table",
    "held_out_instances",
    "learn_plan",
    "plot_plan",
    "random_instances",
    "recorded_instances",
    "split_windows",
    "trained_range",
    "wide_instances",
]
