"""How far the gradient through a backend is from the exact one, for each estimator."""

from diabat.studies.gradients.figure import plot_gradients
from diabat.studies.gradients.report import GradientReport, gradient_report
from diabat.studies.gradients.table import GRADIENT_DEFINITIONS

__all__ = ["GRADIENT_DEFINITIONS", "GradientReport", "gradient_report", "plot_gradients"]
