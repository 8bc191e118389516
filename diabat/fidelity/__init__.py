"""How far a backend is from the law that was asked for: ensembles, metrics, report and figure."""

from diabat.fidelity.ensembles import Ensemble, coupling_strength, ferromagnet, sk
from diabat.fidelity.evaluate import ask, score
from diabat.fidelity.figure import plot_fidelity
from diabat.fidelity.recorded import from_attention
from diabat.fidelity.report import FidelityReport, fidelity_report
from diabat.fidelity.table import DEFINITIONS
from diabat.fidelity.truth import FidelityError, Truth, find_truth
from diabat.samplers.pseudolikelihood import BetaFit, fit_betas

__all__ = [
    "DEFINITIONS",
    "BetaFit",
    "Ensemble",
    "FidelityError",
    "FidelityReport",
    "Truth",
    "ask",
    "coupling_strength",
    "ferromagnet",
    "fidelity_report",
    "find_truth",
    "fit_betas",
    "from_attention",
    "plot_fidelity",
    "score",
    "sk",
]
