"""Predicted and fitted inverse temperatures of a diabatic anneal, as a table over annealing times."""

from diabat.calibration.figure import plot_calibration
from diabat.calibration.goodness import Goodness, boltzmann, goodness, rescaled
from diabat.calibration.measure import Measurement, measure
from diabat.calibration.render import COLUMNS
from diabat.calibration.study import calibration_table
from diabat.calibration.table import CalibrationRow, CalibrationTable

__all__ = [
    "COLUMNS",
    "CalibrationRow",
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
