"""Distance of a backend from the target law: ensembles, reports, figures."""

from diabat.samplers.pseudolikelihood import BetaFit, fit_betas
from diabat.studies.comparison import FidelityError
from diabat.studies.ensembles import Ensemble, coupling_strength, ferromagnet, from_attention, sk
from diabat.studies.fidelity.figure import plot_fidelity
from diabat.studies.fidelity.report import DEFINITIONS, FidelityReport, fidelity_report
from diabat.studies.fidelity.score import Truth, ask, find_truth, score

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
