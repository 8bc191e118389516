r"""How far the gradient through a backend is from the exact one, for each estimator.

    python -m experiments.gradients [KEY=VALUE ...] [--figure FILE] [--json]

The section fidelity names backends and problems: fidelity.backends.tempering=null leaves one out, and
fidelity.ensembles=[] fidelity.checkpoint=RUN takes the problems of a trained model.  About 4 minutes, nearly all of
them tempering.

The loss is linear, L = Σ_q Σ_j v_qj P_q(s_j = +1), with v ~ N(0, 1) over visible spins: the cotangent of a layer in
training has no preferred direction.  Gradients are those of training: ∂L/∂h of every query, and ∂L/∂J in the shape
of J, summed over the queries that share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from diabat.attention import spin_probabilities
from diabat.config import make_config
from diabat.config.loading import apply_overrides
from diabat.ising import Ising
from diabat.plots import Line, Panel, lines
from diabat.runs.studies import compared
from diabat.samplers import Sampler, sampler
from diabat.samplers.capabilities import Estimator
from diabat.studies.ensembles import LABELS, Ensemble, compare, is_analytic, timed
from diabat.studies.report import Column, Report, Row, with_error
from experiments.common import parser, show

SECTION: dict[str, Any] = {
    "backends": {
        "exact": {"backend": "exact"},
        "tempering": {"backend": "tempering"},
        "dqa-5ns": {"backend": "dqa", "annealing_time_ns": 5.0},
        "boltzmann-8": {"backend": "dqa", "schedule": "boltzmann-8"},
        "mean_field": {"backend": "mean_field"},
    },
    "ensembles": ["sk"],
    "strengths": [0.1, 0.3, 0.6, 1.0],
    "instances": 16,
}
"""The section fidelity of the tables in docs/gradients.md; 8 spins, 4 fields for each J, 1000 reads."""


def _columns(name: str, of: str) -> tuple[Column, ...]:
    """Columns of ∂L/∂h or of ∂L/∂J."""
    bias, floor = f"{name}_bias", f"{name}_bias_floor"
    return (
        Column(f"{name}_cosine", f"cosine of one estimate with the exact {of}; mean over estimates", f"cos {name}"),
        Column(bias, f"|mean estimate - exact| / |exact| of {of}; ± the noise of the mean", f"bias {name}",
               lambda row: with_error(row[bias], row[floor])),
        Column(floor, "what the noise of the mean alone contributes to it; null if nothing is drawn"),
        Column(f"{name}_variance", f"num_reads times the variance of one estimate / |exact|^2 of {of}: per read"),
        Column(f"{name}_own_cosine",
               "cosine with the derivative of the backend's own law; null for Boltzmann backends"),
    )  # fmt: skip


@dataclass(frozen=True)
class GradientReport(Report):
    """Quality of the gradient estimators of several backends; a row for each ensemble, strength, backend and estimator.

    ``num_reads`` are the reads per problem of one estimate, ``repeats`` the estimates behind mean and variance.
    """

    num_reads: int
    repeats: int
    seed: int

    title = "Gradients against exact"
    labels = (
        *LABELS,
        Column("estimator", "gradient estimator; the loss is L = sum v P(s=+1) with v ~ N(0, 1), "
               "the exact gradient Boltzmann's", "estimator"),
    )  # fmt: skip
    columns = (
        Column("num_reads", "reads per problem of one estimate; null if nothing is drawn"),
        Column("repeats", "independent estimates"),
        *_columns("h", "dL/dh of all queries"),
        *_columns("J", "dL/dJ, summed over the queries that share J"),
        Column(
            "us_per_query", "wall time of a forward and backward pass, without compilation, by problem, in µs"
        ),
    )

    def plot(self, path: str | Path) -> Path:
        """Draw the cosines of ∂L/∂h above those of ∂L/∂J: a column for each backend, a line for each estimator.

        Raises ValueError if every backend refused every problem.
        """
        rows = self.answered()
        places = dict.fromkeys((row["backend"], row["ensemble"]) for row in rows)
        of = {place: [row for row in rows if (row["backend"], row["ensemble"]) == place] for place in places}
        upper = [_panel(own, "h", {"title": "\n".join(place)}) for place, own in of.items()]
        lower = [_panel(own, "J", {"xlabel": "coupling strength g"}) for own in of.values()]
        return lines([upper, lower], path, size=(2.6, 2.4))


def _panel(rows: list[Row], name: str, settings: Mapping[str, object]) -> Panel:
    drawn = []
    for look, estimator in enumerate((*get_args(Estimator)[1:], "exact")):
        cosines = {row["strength"]: row[f"{name}_cosine"] for row in rows if row["estimator"] == estimator}
        drawn.append(Line(sorted(cosines), [cosines[g] for g in sorted(cosines)], estimator, look))
    strengths = sorted({row["strength"] for row in rows})
    if len(strengths) == 1:  # a single strength needs no axis
        settings = {**settings, "xticks": strengths}
    return Panel(drawn, settings={"ylabel": f"cosine of ∂L/∂{name} with exact", **settings})


def gradient_report(
    backends: Mapping[str, Sampler],
    ensembles: Iterable[Ensemble],
    *,
    num_reads: int = 1000,
    repeats: int = 16,
    seed: int = 0,
    progress: bool = False,
) -> GradientReport:
    """Compare every gradient estimator that a backend supports with the exact gradient of a random linear loss.

    Arguments and errors are those of :func:`diabat.studies.fidelity.fidelity_report`; ``num_reads`` is of one estimate,
    for backends and estimators that draw, and ``repeats`` >= 2 are independent estimates of those.

    Returns:
        One row for each ensemble, backend and estimator, also if the backend refuses the ensemble (key ``refused``).
    """
    exact = sampler("exact")
    seeds = np.random.SeedSequence(seed).generate_state(repeats).tolist()

    def loss(case: Ensemble) -> tuple[Tensor, Gradient]:
        """The cotangent v, 0 on invisible spins, and the exact gradient in float64."""
        ising, random = case.ising, np.random.default_rng(seed)
        drawn = torch.from_numpy(random.standard_normal((*ising.batch_shape, ising.num_spins)))
        v = torch.where(ising.visible_mask, drawn.to(ising.fields), 0)
        return v, gradient_of(exact, "exact", ising.detach().to(torch.float64), v.double())

    def score(backend: Sampler, ising: Ising, loss: tuple[Tensor, Gradient]) -> list[Row]:
        able, own = backend.capabilities, Gradient()
        mine = [name for name in ("exact", "adjoint") if name in able.gradients and able.law != "boltzmann"]
        if mine:
            own = gradient_of(backend, mine[0], ising, loss[0], seed=seeds[0])
        return [
            {"estimator": name} | _score(backend, name, ising, *loss, own, num_reads, seeds)
            for name in able.gradients
        ]

    found = compare(backends, ensembles, loss, score, progress=progress)
    return GradientReport(found, num_reads, repeats, seed)


Gradient = dict[str, Tensor]
"""∂L/∂h and, of problems with couplings, ∂L/∂J of a whole ensemble by ``h`` and ``J``; flattened, float64."""


def gradient_of(
    backend: Sampler, estimator: str, ising: Ising, v: Tensor, *, num_reads: int | None = None, seed: int = 0
) -> Gradient:
    """Differentiate Σ v·P, v [*batch, n], once through the bridge.

    Raises:
        UnsupportedError: If the backend refuses the problems or the estimator.
    """
    leaves = {"h": ising.fields.detach().requires_grad_()}
    if ising.couplings is not None:
        leaves["J"] = ising.couplings.detach().requires_grad_()
    alpha = spin_probabilities(
        leaves["h"], leaves.get("J"), backend, gradient=estimator, visible=ising.visible,
        three_body=ising.three_body, num_reads=num_reads, seed=seed, check=False,
    )  # fmt: skip
    found = torch.autograd.grad((v.to(alpha) * alpha).sum(), tuple(leaves.values()))
    return {name: part.detach().double().cpu().flatten() for name, part in zip(leaves, found, strict=True)}


def _score(
    backend: Sampler, estimator: Estimator, ising: Ising, cotangent: Tensor, exact: Gradient, own: Gradient,
    num_reads: int, seeds: Sequence[int],
) -> Row:  # fmt: skip
    """All metrics of one estimator; one call if nothing is drawn, else one per seed."""
    drawn = estimator == "covariance" or (estimator != "exact" and not is_analytic(backend))
    reads = num_reads if drawn else None
    estimate = partial(gradient_of, backend, estimator, ising, cotangent, num_reads=reads)
    seconds, first = timed(lambda: estimate(seed=seeds[0]))
    estimates = [first, *(estimate(seed=seed) for seed in (seeds[1:] if drawn else ()))]
    row: Row = {"num_reads": reads, "repeats": len(estimates)}
    for name in ("h", "J"):
        scores: Row = {}
        if name in exact and exact[name].any():
            got, true = torch.stack([one[name] for one in estimates]), exact[name]
            norm = float(true.norm())
            scores = {"cosine": _cosine(got, true), "bias": float((got.mean(0) - true).norm()) / norm}
            if reads is not None and len(got) > 1:
                spread = float(got.var(0).sum())
                scores["variance"] = reads * spread / norm**2
                scores["bias_floor"] = (spread / len(got)) ** 0.5 / norm
            if name in own and own[name].any():
                scores["own_cosine"] = _cosine(got, own[name])
        keys = ("cosine", "bias", "bias_floor", "variance", "own_cosine")
        row |= {f"{name}_{key}": scores.get(key) for key in keys}
    return row | {"us_per_query": 1e6 * seconds / ising.num_problems}


def _cosine(got: Tensor, to: Tensor) -> float:
    """Mean over the estimates; 0 for an estimate that vanishes."""
    return float(torch.nn.functional.cosine_similarity(got, to[None], dim=-1).mean())


def main() -> None:
    """Print the table of the command line."""
    made = parser(__doc__)
    made.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the section fidelity, or seed=N")
    made.add_argument("--figure", type=Path, help="file of the figure: .png, .pdf or .svg")
    options = made.parse_args()
    config = make_config(apply_overrides({"fidelity": SECTION}, options.overrides))
    found = gradient_report(**compared(config), progress=True)
    if options.figure is not None:
        found.plot(options.figure)
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
