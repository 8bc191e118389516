"""How far a backend is from the law that was asked for: ensembles, reports, figures."""

from diabat.samplers.pseudolikelihood import BetaFit, fit_betas
from diabat.studies.fidelity.ensembles import Ensemble, coupling_strength, ferromagnet, sk
from diabat.studies.fidelity.evaluate import ask, score
from diabat.studies.fidelity.figure import plot_fidelity
from diabat.studies.fidelity.recorded import from_attention
from diabat.studies.fidelity.report import FidelityReport, fidelity_report
from diabat.studies.fidelity.table import DEFINITIONS
from diabat.studies.fidelity.truth import FidelityError, Truth, find_truth

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
