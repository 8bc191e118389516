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
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from diabat.attention import spin_probabilities
from diabat.documents.overrides import apply_overrides
from diabat.ising import Ising
from diabat.lab.config import make_config
from diabat.lab.runs.studies import compared
from diabat.lab.studies.ensembles import Ensemble, compare, is_analytic
from diabat.plots import Line, Panel, lines
from diabat.samplers import Sampler, sampler
from diabat.samplers.capabilities import Estimator
from experiments.common import Row, parser, report, run_script

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


def draw(rows: Sequence[Row], path: Path) -> Path:
    """Draw the cosines of ∂L/∂h above those of ∂L/∂J: a column for each backend, a line for each estimator."""
    places = dict.fromkeys((row["backend"], row["ensemble"]) for row in rows if row["refused"] is None)
    of = {place: [row for row in rows if (row["backend"], row["ensemble"]) == place] for place in places}
    upper = [_panel(own, "h", {"title": "\n".join(place)}) for place, own in of.items()]
    lower = [_panel(own, "J", {"xlabel": "coupling strength g"}) for own in of.values()]
    return lines([upper, lower], path, size=(2.6, 2.4))


def _panel(rows: Sequence[Row], name: str, settings: Row) -> Panel:
    drawn = []
    for look, estimator in enumerate((*get_args(Estimator)[1:], "exact")):
        cosines = {row["strength"]: row[f"{name}_cosine"] for row in rows if row["estimator"] == estimator}
        drawn.append(Line(sorted(cosines), [cosines[g] for g in sorted(cosines)], estimator, look))
    return Panel(drawn, settings={"ylabel": f"cosine of ∂L/∂{name} with exact", **settings})


def gradient_rows(
    backends: Mapping[str, Sampler], ensembles: Iterable[Ensemble], *, num_reads: int = 1000, repeats: int = 16,
    seed: int = 0, progress: bool = False,
) -> list[Row]:  # fmt: skip
    """Compare every gradient estimator that a backend supports with the exact gradient of a random linear loss.

    ``num_reads`` are those of one estimate, for backends and estimators that draw; ``repeats`` >= 2 their estimates.
    A row for each ensemble, backend and estimator, for ∂L/∂h and ∂L/∂J: mean cosine of an estimate with the exact
    gradient; bias |mean - exact| / |exact|, and its floor, the noise of the mean; variance of a read, num_reads times
    that of an estimate / |exact|²; cosine with the derivative of the backend's own law, if that is not Boltzmann's.
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

    return compare(backends, ensembles, loss, score, progress=progress)


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
    gradients = torch.autograd.grad((v.to(alpha) * alpha).sum(), tuple(leaves.values()))
    return {
        name: part.detach().double().cpu().flatten() for name, part in zip(leaves, gradients, strict=True)
    }


def _score(
    backend: Sampler, estimator: Estimator, ising: Ising, cotangent: Tensor, exact: Gradient, own: Gradient,
    num_reads: int, seeds: Sequence[int],
) -> Row:  # fmt: skip
    """All metrics of one estimator; one call if nothing is drawn, else one per seed."""
    drawn = estimator == "covariance" or (estimator != "exact" and not is_analytic(backend))
    reads = num_reads if drawn else None
    estimate = partial(gradient_of, backend, estimator, ising, cotangent, num_reads=reads)
    estimates = [estimate(seed=seed) for seed in (seeds if drawn else seeds[:1])]
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
    return row


def _cosine(got: Tensor, to: Tensor) -> float:
    """Mean over the estimates; 0 for an estimate that vanishes."""
    return float(torch.nn.functional.cosine_similarity(got, to[None], dim=-1).mean())


def main() -> None:
    """Print the table of the command line."""
    command = parser(__doc__)
    command.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="of the section fidelity, or seed=N"
    )
    command.add_argument("--figure", type=Path, help="file of the figure: .png, .pdf or .svg")
    options = command.parse_args()
    config = make_config(apply_overrides({"fidelity": SECTION}, options.overrides))
    rows = gradient_rows(**compared(config), progress=True)
    if options.figure is not None:
        draw(rows, options.figure)
    if not options.json:  # as wide as a screen
        hidden = ("num_spins", "queries", "num_reads")
        rows = [{key: row[key] for key in row if key not in hidden} for row in rows]
    report("Gradients against exact", rows, as_json=options.json)


if __name__ == "__main__":
    run_script(main)
