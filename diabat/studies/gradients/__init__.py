"""Distance of the gradient through a backend from the exact one, for each estimator."""

from diabat.studies.gradients.report import (
    GRADIENT_DEFINITIONS,
    GradientReport,
    gradient_report,
    plot_gradients,
)

__all__ = ["GRADIENT_DEFINITIONS", "GradientReport", "gradient_report", "plot_gradients"]
