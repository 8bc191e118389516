r"""Predicted and fitted inverse temperatures of a diabatic anneal, over annealing times (docs/dqa.md).

    python -m experiments.calibration [--times 2 5 7 10 20] [--strength 0.3] [--json]

SK problems, h ~ N(0, g) and J ~ N(0, g/√n), n = 6, are annealed with h/β_h and J/β_J programmed as the schedule
predicts: β_h = 2π ∫ B sin(2π ∫A), β_J = 2π ∫ B sin(4π ∫A), right for weak problems.  Both are fitted to the exact law
of the result by maximum pseudo-likelihood; the scale that is fitted, times the predicted value, is the fitted value.
± is half a 95 % confidence interval over instances: Student's t, instances - 1 degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

import diabat
from diabat.samplers.dqa import DQASampler
from diabat.samplers.pseudolikelihood import Term, fit_state_betas
from diabat.studies.ensembles import sk
from diabat.studies.states import states_of
from experiments.common import Row, parser, report

TERMS: dict[str, Term] = {"h": "field", "J": "coupling"}


def calibrate(
    times_ns: Iterable[float], *, strength: float = 0.3, spins: int = 6, instances: int = 8, queries: int = 4,
    seed: int = 0,
) -> list[Row]:  # fmt: skip
    """A row for each annealing time, ascending; None where there is no fit or no interval."""
    (ensemble,) = sk([strength], num_spins=spins, instances=instances, queries=queries, seed=seed)
    rows = []
    for time in sorted(set(times_ns)):
        sampler = diabat.sampler("dqa", engine="native", annealing_time_ns=time)
        assert isinstance(sampler, DQASampler)
        law = states_of(sampler, ensemble.ising)
        fit = fit_state_betas(ensemble.ising, law, groups=torch.arange(instances)[:, None])
        row: Row = {"t_a [ns]": time, "steps": sampler.plan.steps}
        for (name, term), predicted in zip(TERMS.items(), sampler.betas, strict=True):
            scale, ends = getattr(fit, term), fit.interval(term)
            row |= {
                f"beta_{name}, predicted": predicted,
                f"beta_{name}, fitted": None if scale is None else predicted * scale,
                f"± beta_{name}": None if ends is None else predicted * (ends[1] - ends[0]) / 2,
            }
        rows.append(row)
    return rows


def main() -> None:
    """Print the table."""
    made = parser(__doc__)
    made.add_argument("--times", type=float, nargs="+", default=[2.0, 5.0, 7.0, 10.0, 20.0], help="in ns")
    made.add_argument("--strength", type=float, default=0.3, help="g of the problems")
    asked = made.parse_args()
    title = f"Calibration, SK n = 6, g = {asked.strength:g}, 8 J x 4 h"
    report(title, calibrate(asked.times, strength=asked.strength), as_json=asked.json)


if __name__ == "__main__":
    main()
