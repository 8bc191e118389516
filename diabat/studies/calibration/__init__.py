"""Predicted and fitted inverse temperatures of a diabatic anneal, as a table over annealing times."""

from diabat.studies.calibration.figure import plot_calibration
from diabat.studies.calibration.goodness import Goodness, boltzmann, goodness, rescaled
from diabat.studies.calibration.measure import Measurement, measure
from diabat.studies.calibration.render import COLUMNS
from diabat.studies.calibration.study import calibration_table
from diabat.studies.calibration.table import CalibrationRow, CalibrationTable

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
