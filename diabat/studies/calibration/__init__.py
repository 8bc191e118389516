"""Predicted and fitted inverse temperatures of a diabatic anneal, as a table over annealing times."""

from diabat.studies.calibration.figure import plot_calibration
from diabat.studies.calibration.measure import Goodness, Measurement, boltzmann, goodness, measure, rescaled
from diabat.studies.calibration.report import COLUMNS, CalibrationTable, calibration_table

__all__ = [
    "COLUMNS",
    "CalibrationTable",
    "Goodness",
    "Measurement",
    "boltzmann",
    "calibration_table",
    "goodness",
    "measure",
    "plot_calibration",
    "rescaled",
]
