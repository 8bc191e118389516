"""How far a backend, or the gradient through it, is from the law that was asked for: ensembles, reports, figures."""

from diabat.fidelity.ensembles import Ensemble, coupling_strength, ferromagnet, sk
from diabat.fidelity.evaluate import ask, score
from diabat.fidelity.figure import plot_fidelity
from diabat.fidelity.gradient_figure import plot_gradients
from diabat.fidelity.gradient_table import GRADIENT_DEFINITIONS
from diabat.fidelity.gradients import GradientReport, gradient_report
from diabat.fidelity.recorded import from_attention
from diabat.fidelity.report import FidelityReport, fidelity_report
from diabat.fidelity.table import DEFINITIONS
from diabat.fidelity.truth import FidelityError, Truth, find_truth
from diabat.samplers.pseudolikelihood import BetaFit, fit_betas

__all__ = [
    "DEFINITIONS",
    "GRADIENT_DEFINITIONS",
    "BetaFit",
    "Ensemble",
    "FidelityError",
    "FidelityReport",
    "GradientReport",
    "Truth",
    "ask",
    "coupling_strength",
    "ferromagnet",
    "fidelity_report",
    "find_truth",
    "fit_betas",
    "from_attention",
    "gradient_report",
    "plot_fidelity",
    "plot_gradients",
    "score",
    "sk",
]
