"""Temperature and law of a device: declared, or estimated, and refused where they cannot hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch

from diabat.checks import ArgumentError, is_positive
from diabat.circuits import Betas
from diabat.ising import Ising, pack_couplings
from diabat.samplers.answers import Samples
from diabat.samplers.dimod.submission import accepted_parameters, device_properties, family
from diabat.samplers.pseudolikelihood import calibration_error, fit_betas

Mode = Literal["estimate"]
Beta = Mode | float | tuple[float, float]
Scale = float | Literal["fit"]

# The first guess of an estimate: reference problems programmed at 1/16 of their strength are weak on any device
# of beta up to about 50, and still show at beta = 1.
_FIRST_GUESS = 16.0
ROUNDS = 3
ESTIMATE_READS = 1000

# Keywords of samplers that hold a temperature, and how each holds 1.
_STAYS = {
    "beta_schedule": "beta_schedule_type='custom', beta_schedule=[1.0] * 100",
    "beta_range": "beta_range=[1.0, 1.0]",
    "beta": "beta=1.0",
    "beta_max": "beta_min=1.0, beta_max=1.0",
}
# Samplers and composites that look for low energies, or ignore them: no temperature describes their answers.
_NO_LAW = (
    "HybridSampler", "IdentitySampler", "KerberosSampler", "PlanarGraphSolver", "RandomSampler",
    "SteepestDescentComposite", "SteepestDescentSolver", "TabuSampler", "TreeDecompositionSolver",
)  # fmt: skip


def check_beta(beta: Beta | None) -> Mode | Betas:
    """Return inverse temperatures or ``estimate``; ValueError for anything else."""
    if beta is None:
        expected = "the inverse temperature at which the sampler answers programmed values"
        expected += " (a number, or two for fields and couplings) or 'estimate'"
        got = "None; the temperature of an annealer is not that of the problem"
        raise ArgumentError("beta", expected, got)
    if isinstance(beta, str):
        if beta == "estimate":
            return beta
    else:
        values = tuple(beta) if isinstance(beta, (tuple, list)) else (beta, beta)
        if len(values) == 2 and all(is_positive(value) for value in values):
            return Betas(float(values[0]), float(values[1]))
    raise ArgumentError("beta", "a positive number, two of them or 'estimate'", f"{beta!r}")


def check_scale(scale: Scale | None) -> Scale:
    """Return the factor of the programmed values, 1 for None, or 'fit'; ValueError for anything else."""
    if scale is None:
        return 1.0
    if isinstance(scale, str) and scale == "fit":
        return "fit"
    if not is_positive(scale):
        raise ArgumentError("scale", "a positive number or 'fit'", f"{scale!r}")
    return float(scale)


def check_law(law: str | None, scale: Scale, beta: Mode | Betas) -> None:
    """Raise ValueError unless the law is None, or ``boltzmann`` without options that contradict it."""
    if law is None:
        return
    if law != "boltzmann":
        raise ArgumentError("law", "'boltzmann', or None for an unspecified law", f"{law!r}")
    for other, refused, why in (
        (f"scale={scale!r}", scale != 1.0, "because its law has beta = 1"),
        ("beta='estimate'", beta == "estimate", "which fits a temperature to any law"),
    ):
        if refused:
            raise ArgumentError("law", f"'boltzmann' cannot be combined with {other}, {why}.")


def check_sampler(sampler: Any, parameters: Mapping[str, Any], beta: Mode | Betas, law: str) -> None:
    """Refuse a law that an optimiser does not have, and a beta that a simulated annealer does not end at.

    A sampler that states another law than ``boltzmann`` has no such temperature.  ValueError also if keywords that
    could set the temperature do not: an annealer that takes it from the size of a model's biases answers a model times
    ten as the model, and no number describes that, an estimate neither.
    """
    for member in family(sampler) if law == "boltzmann" else ():
        if any(kind.__name__ in _NO_LAW for kind in type(member).__mro__):
            got = f"'boltzmann' for {type(member).__name__}, whose answers follow no Boltzmann law at any temperature"
            raise ArgumentError("law", "None", got)
    offered = [name for name in _STAYS if name in accepted_parameters(sampler)]
    stated = device_properties(sampler)  # an OceanSampler states its law, and keeps to its default beta
    if not offered or stated.get("law", "boltzmann") != "boltzmann":
        return
    named = (parameters[name] for name in offered if parameters.get(name) is not None)
    schedule = next(named, stated.get("default_beta"))
    if schedule is None:
        why = f"because {type(sampler).__name__} may otherwise choose the temperature"
        got = f"none; {_STAYS[offered[0]]} keeps it at 1"
        raise ArgumentError("parameters", f"{' or '.join(offered)}, {why}", got)
    if isinstance(beta, str):
        return
    last = float(np.asarray(schedule, dtype=np.float64).reshape(-1)[-1])
    if any(not math.isclose(last, one, rel_tol=1e-9) for one in beta):
        raise ArgumentError("beta", f"the last inverse temperature of the schedule, {last:g}", tuple(beta))


def reference_problems(spins: int) -> Ising:
    """16 Sherrington-Kirkpatrick problems of strength 0.5 from a fixed seed, each with its J, float64 [16, n]."""
    generator = torch.Generator().manual_seed(0)
    n, instances = spins, 16
    h = 0.5 * torch.randn(instances, n, generator=generator, dtype=torch.float64)
    J = 0.5 / n**0.5 * torch.randn(instances, n * (n - 1) // 2, generator=generator, dtype=torch.float64)
    return Ising(h, pack_couplings(J, n))


def estimate(draw: Callable[[Ising, Betas, int], Samples], problems: Ising) -> Betas:
    """Inverse temperatures by maximum pseudo-likelihood on reference problems.

    There are three rounds; each is programmed with the result of the previous one.  ``draw`` draws reads of problems
    programmed with given inverse temperatures, before a number of further rounds.  ValueError if no finite temperature
    explains the answers.
    """
    betas = Betas(_FIRST_GUESS, _FIRST_GUESS)
    for left in reversed(range(ROUNDS)):
        samples = draw(problems, betas, left)
        fit = fit_betas(problems, samples.spins)
        if fit.field is None or fit.coupling is None or fit.field <= 0 or fit.coupling <= 0:
            fix = "declare beta, or check the parameters of the sampler"
            got = f"a fit of ({fit.field}, {fit.coupling}); {fix}"
            raise ArgumentError("beta", "answers that some positive temperature explains", got)
        betas = Betas(betas.beta_h * fit.field, betas.beta_J * fit.coupling)
    return betas


def fit_report(ising: Ising, samples: Samples) -> dict[str, Any]:
    """Fit the answers: scales relative to the given problems, and the quality of the fit.

    Returns:
        ``beta_h``, ``beta_J``, their 95 % intervals, ``log_pseudolikelihood`` ℓ in nats per spin and ``pseudo_r2``
        = 1 - ℓ/ℓ(0), None where there is no such term or no finite fit; and ``calibration_error``.
    """
    fit = fit_betas(ising, samples.spins)
    value = fit.log_pseudolikelihood
    return {
        "beta_h": fit.field,
        "beta_h_interval": fit.interval("field"),
        "beta_J": fit.coupling,
        "beta_J_interval": fit.interval("coupling"),
        "log_pseudolikelihood": value,
        "pseudo_r2": None if value is None else 1 + value / math.log(2),
        "calibration_error": calibration_error(ising, samples.spins, fit.scales),
    }
