"""Learned anneals: short plans whose angles are trained so that their reads follow Boltzmann's law at beta = 1."""

from diabat.studies.learned.angles import canonical
from diabat.studies.learned.figure import plot_plan
from diabat.studies.learned.instances import held_out_instances, random_instances, wide_instances
from diabat.studies.learned.objective import Objective
from diabat.studies.learned.optimise import learn_plan
from diabat.studies.learned.range import trained_range
from diabat.studies.learned.recorded import Instances, recorded_instances, split_windows
from diabat.studies.learned.report import COLUMNS, Row, error_table
from diabat.studies.learned.search import Search, Watcher

__all__ = [
    "COLUMNS",
    "Instances",
    "Objective",
    "Row",
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
