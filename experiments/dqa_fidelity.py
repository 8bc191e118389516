"""How near simulated anneals come to Boltzmann's law: strength, calibration, times, schedules, refine, noise.

    python -m experiments.dqa_fidelity [SECTION ...] [--figures FOLDER] [--json]

Problems are Sherrington-Kirkpatrick models with h ~ N(0, g), J ~ N(0, g/√n), 64 J x 4 h, seed 0, unless a title says
otherwise.  Laws are exact (all 2^n states, no reads).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diabat
from diabat import circuits
from diabat.circuits.problem import spin_table
from diabat.circuits.schedules import PROTOCOLS
from diabat.ising import Ising, pack_couplings
from diabat.lab.studies.ensembles import sk
from diabat.lab.studies.learned.problems import error_table, wide_problems
from diabat.lab.studies.states import mean_deviation, states_of, states_of_marginals
from diabat.lab.studies.states import total_variation as distance_of
from diabat.plots import Line, Panel, lines
from diabat.samplers.exact import ExactSampler
from experiments.common import Row, Titled, parser, print_tables, run_script

SOLVER = "Advantage2_system1"
LEARNED = tuple(name for name in circuits.available_plans() if name.startswith("boltzmann-"))
STRENGTHS, SIZES, BOUND, ERROR = (0.1, 0.2, 0.3, 0.6, 1.0, 1.5, 2.0), (6, 8), 0.02, "Mean |ΔP| of marginals"
READS = "1000 exact reads"
SHOWN = ("J = 0", "mean field", READS, "5 ns, predicted", "5 ns + refine 1", "5 ns + refine 4",
         "boltzmann-4", "boltzmann-8", "boltzmann-16", "boltzmann-8 + refine 1")  # fmt: skip
"""Methods in the figure."""
SWEEPS = (0, 1, 2, 4, 8, 16)


@dataclass(frozen=True, eq=False)
class Problems:
    """Problems of one size and strength, Boltzmann's law and those of simple answers, float64 [64, 4, 2^n]."""

    ising: Ising
    law: Tensor
    simple: dict[str, Tensor]

    def error(self, law: Tensor) -> float:
        """Mean |P(s_j = +1) - exact| over spins and problems."""
        return float((marginals(law) - marginals(self.law)).abs().mean())

    def distance(self, law: Tensor) -> float:
        """Total variation to Boltzmann's law, mean over problems."""
        return float(distance_of(law, self.law).mean())


@cache
def sk_problems(n: int, g: float, instances: int = 64, field_strength: float | None = None) -> Problems:
    """SK problems with their exact law."""
    (ensemble,) = sk([g], num_spins=n, instances=instances, queries=4, seed=0)
    ising = ensemble.ising
    if field_strength is not None:
        ising = Ising(field_strength / g * ising.fields, ising.couplings)
    mean_field = diabat.sampler("mean_field").moments(ising).probability
    simple = {"J = 0": torch.sigmoid(2 * ising.fields), "mean field": mean_field}
    law = states_of(ExactSampler(), ising)
    return Problems(ising, law, {name: states_of_marginals(p) for name, p in simple.items()})


@cache
def anneal(**options: Any) -> Any:
    """The backend ``dqa`` on the native engine; 5 ns on one solver by default."""
    return diabat.sampler("dqa", engine="native", **options)


def law_of(ising: Ising, **options: Any) -> Tensor:
    """Exact law of an anneal, float64 [*batch, 2^n]."""
    return states_of(anneal(**options), ising)


def marginals(law: Tensor) -> Tensor:
    """P(s_j = +1), float64 [*batch, n]."""
    return law @ (torch.from_numpy(spin_table(law.shape[-1].bit_length() - 1)) > 0).double()


def swept(law: Tensor, ising: Ising, sweeps: int) -> Tensor:
    """The law of a read after sweeps of heat bath, the spins in order: ``refine`` with infinitely many reads."""
    states = torch.from_numpy(spin_table(ising.num_spins)).double()
    index = torch.arange(len(states))
    # f_j(s) = h_j + Σ_k J_jk s_k, float64 [*batch, n, 2^n]; it does not depend on s_j.
    local = ising.fields[..., None] + (0.0 if ising.couplings is None else ising.couplings @ states.T)
    up = torch.sigmoid(2 * local * states.T)  # P(s_j as in the state | rest)
    for _ in range(sweeps):
        for j in range(ising.num_spins):
            law = up[..., j, :] * (law + law[..., index ^ (1 << j)])
    return law


def least_root(f: Callable[[float], float], low: float, high: float) -> float:
    """Bisect an increasing function to 1 %; the end of the interval if there is no root in it."""
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if f(middle) > 0 else (middle, high)
    return high


def without_fields() -> Titled:
    """KL and TV, ensemble by ensemble, and where TV reaches 2 %: n = 10, h = 0, 64 instances, 800 Strang steps."""
    for family in ("SK", "RBM", "ferromagnet", "grid"):
        unit = unit_couplings(family)
        for g in (0.1, 0.3, 0.5, 1.0):
            row: Row = {"ensemble": family, "g": g}
            for name, x in zip(("KL", "TV"), distances(g * unit), strict=True):
                error = float(x.std(correction=min(1, len(x) - 1))) / len(x) ** 0.5
                row |= {name: float(x.mean()), f"± {name}": error}
            yield "Anneal without fields, n = 10", row

        def excess(g: float, unit: Tensor = unit) -> float:
            return float(distances(g * unit)[1].mean()) - BOUND

        g = least_root(excess, 0.01, 3.0)
        yield "Strength at which the mean TV reaches 2 %, h = 0", {
            "ensemble": family, "g": g, "row norm √ΣJ²": float((g * unit).square().sum(-1).sqrt().mean()),
            "row sum Σ|J|": float((g * unit).abs().sum(-1).mean()),
        }  # fmt: skip


def unit_couplings(family: str, n: int = 10) -> Tensor:
    """Couplings at g = 1: J ~ N(0, 1/√n) on all pairs or between halves, 1/n on all pairs, 1 on a 2x5 grid."""
    g, double = torch.Generator().manual_seed(0), torch.float64
    if family == "SK":
        return pack_couplings(torch.randn(64, n * (n - 1) // 2, generator=g, dtype=double), n) / math.sqrt(n)
    J = torch.zeros(64 if family == "RBM" else 1, n, n, dtype=double)
    j, k = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    if family == "RBM":
        J[:, :5, 5:] = torch.randn(64, 5, 5, generator=g, dtype=double) / math.sqrt(n)
    elif family == "ferromagnet":
        J[:, j < k] = 1 / n
    else:
        J[:, ((k == j + 1) & (j % 5 < 4)) | (k == j + 5)] = 1
    return J + J.mT


def distances(J: Tensor) -> tuple[Tensor, Tensor]:
    """KL(anneal ‖ Boltzmann) and total variation of every instance."""
    ising = Ising(torch.zeros(J.shape[:-1], dtype=torch.float64), J)
    got, exact = law_of(ising, steps=800), states_of(ExactSampler(), ising)
    ratio = torch.where(got > 0, got / exact, 1.0)
    return (got * ratio.log()).sum(-1), distance_of(got, exact)


@cache
def methods() -> dict[str, tuple[int, dict[str, Any]]]:
    """Sweeps of refine and options of every anneal."""
    betas = anneal().betas
    return {
        "5 ns, none": (0, {"calibration": "none"}), "5 ns, one beta": (0, {"betas": (betas.beta_J, betas.beta_J)}),
        "5 ns, predicted": (0, {}),
        "5 ns, J / 0.6": (0, {"betas": (betas.beta_h, 0.6 * betas.beta_J)}),
        **{f"5 ns + refine {k}": (k, {}) for k in (1, 4, 16)},
        **{name: (0, {"schedule": name}) for name in LEARNED},
        "boltzmann-8 + refine 1": (1, {"schedule": "boltzmann-8"}),
    }  # fmt: skip


def answer(problems: Problems, name: str) -> Tensor:
    """Law of a method."""
    if name in problems.simple:
        return problems.simple[name]
    sweeps, options = methods()[name]
    return swept(law_of(problems.ising, **options), problems.ising, sweeps)


def strength() -> Titled:
    """With fields: error of the marginals, coupling capture and TV against coupling strength, method by method."""
    for n in SIZES:
        problems = {g: sk_problems(n, g) for g in STRENGTHS}
        for name in ("J = 0", "mean field", *methods()):
            rows: dict[str, Row] = {}
            for g, p in problems.items():
                law = answer(p, name)
                capture = 1 - p.error(law) / p.error(p.simple["J = 0"])
                measures = {ERROR: p.error(law), "Coupling capture": capture, "TV": p.distance(law)}
                for title, value in measures.items():
                    rows.setdefault(title, {"n": n, "method": name})[f"g={g:g}"] = value
            yield from rows.items()
        floor: Row = {"n": n, "method": READS}  # below it a better law cannot be seen
        for g, p in problems.items():
            exact = marginals(p.law)
            floor[f"g={g:g}"] = float(mean_deviation(exact, 1000).mean())
        yield ERROR, floor
    for name in ("5 ns, predicted", *LEARNED):

        def excess(g: float, name: str = name) -> float:
            return sk_problems(8, g).distance(answer(sk_problems(8, g), name)) - BOUND

        title = "Strength at which the mean TV reaches 2 %, n = 8"
        yield title, {"method": name, "g": least_root(excess, 0.02, 3.0)}


def fields() -> Titled:
    """Fields and couplings of different strength, and strong fields."""
    names = ("5 ns, predicted", *LEARNED)
    for g in (0.5, 1.0):
        for g_h in (0.5, 1.0, 2.0, 3.0):
            problems = sk_problems(8, g, field_strength=g_h)
            laws = {name: answer(problems, name) for name in ("J = 0", "mean field", *names)}
            for what, of in (("|ΔP|", problems.error), ("TV", problems.distance)):
                yield f"h ~ N(0, g_h), J ~ N(0, g/√n), n = 8, {what}", {
                    "g_h": g_h, "g": g, **{name: of(law) for name, law in laws.items()}
                }  # fmt: skip
    h = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0], dtype=torch.float64)[:, None]
    answers = {name: anneal(**methods()[name][1]).moments(Ising(h)).probability for name in names}
    for name, p in {"exact": torch.sigmoid(2 * h), **answers}.items():
        cells = {f"h={float(x):g}": float(value) for x, value in zip(h, p, strict=True)}
        yield "P(s = +1) of one spin in a field", {"method": name, **cells}
    h = torch.arange(0.01, 6.005, 0.01, dtype=torch.float64)[:, None]
    wide = wide_problems(6.0, (6, 8, 10), 100, seed=0, held_out=True)
    for name in LEARNED:
        alone = anneal(schedule=name).moments(Ising(h)).probability - torch.sigmoid(2 * h)
        rows = error_table(circuits.builtin_plan(name)[0], wide)
        yield "|ΔP| of learned plans, |h| up to 6: largest of one spin, mean of held-out problems at g = 0.5", {
            "plan": name, "one spin": float(alone.abs().max()), **{f"n={r['num_spins']}": r["learned"] for r in rows}
        }  # fmt: skip


def response_of(name: str, protocol: str, time_ns: float) -> Any:
    """Second-order response of an anneal with enough steps that their error is below 1e-4."""
    table = circuits.schedule(name, protocol)
    steps = 10 * circuits.default_steps(table, time_ns)
    return circuits.second_order_response(circuits.trotter_plan(table, time_ns, steps))


def times() -> Titled:
    """Error against annealing time."""
    for time_ns in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0):
        sampler, response = anneal(annealing_time_ns=time_ns), response_of(SOLVER, "fast", time_ns)
        row: Row = {"t_a [ns]": time_ns, "steps": sampler.plan.steps, **sampler.betas._asdict()}
        row |= {"c_hJ": response.c_hJ, "c_JJ": response.c_JJ}
        for g in (0.3, 0.6, 1.0):
            problems = sk_problems(6, g)
            law = law_of(problems.ising, annealing_time_ns=time_ns)
            row |= {f"|ΔP| g={g:g}": problems.error(law), f"TV g={g:g}": problems.distance(law)}
        yield "Error against annealing time, n = 6", row


def schedules() -> Titled:
    """The built-in schedules: inverse temperatures, second-order response and error; n = 6, g = 0.6."""
    problems = sk_problems(6, 0.6)
    for protocol in PROTOCOLS:
        for name in circuits.available_schedules():
            sampler = anneal(schedule=name, protocol=protocol)
            law, place = states_of(sampler, problems.ising), {"schedule": name, "protocol": protocol}
            error = problems.error(law)
            yield "Built-in schedules at 5 ns", place | {
                "steps": sampler.plan.steps, **sampler.betas._asdict(), "|ΔP|": error,
                "capture": 1 - error / problems.error(problems.simple["J = 0"]), "TV": problems.distance(law),
            }  # fmt: skip
            responses = {t: response_of(name, protocol, t) for t in (2.0, 5.0, 10.0, 20.0)}
            cells = {f"{t:g} ns": f"{r.c_hJ:.3f} / {r.c_JJ:.3f}" for t, r in responses.items()}
            yield "c_hJ / c_JJ (Boltzmann: 1 / 1)", place | cells
    for name in LEARNED:
        plan = circuits.builtin_plan(name)[0]
        response, betas = circuits.second_order_response(plan), circuits.plan_betas(plan)._asdict()
        title = "Learned plans to second order (Boltzmann: 1 throughout)"
        yield title, {"plan": name, **betas, "c_hJ": response.c_hJ, "c_JJ": response.c_JJ}


def refine() -> Titled:
    """Sweeps of heat bath after an anneal, after a learned plan, and after no anneal at all; n = 8."""
    for g in (0.6, 1.0, 2.0):
        problems = sk_problems(8, g)
        for base, law in {
            "coin flips": torch.full_like(problems.law, 1 / problems.law.shape[-1]),
            "J = 0": problems.simple["J = 0"], "5 ns anneal": law_of(problems.ising),
            "boltzmann-8": law_of(problems.ising, schedule="boltzmann-8"),
        }.items():  # fmt: skip
            after = {str(k): swept(law, problems.ising, k) for k in SWEEPS}
            place = {"g": g, "base": base}
            yield "TV against sweeps", place | {k: problems.distance(law) for k, law in after.items()}
            yield "Mean |ΔP| against sweeps", place | {k: problems.error(law) for k, law in after.items()}


def noise() -> Titled:
    """Control noise, drawn anew for each problem, at the ends of D-Wave's representative range; n = 6."""
    title, strengths = "Control noise, mean |ΔP|, n = 6", (0.3, 0.6, 1.0)
    for name in (SOLVER, "Advantage_system6"):
        for time_ns in (5.0, 20.0):
            for label, dh, dJ in (("none", 0.0, 0.0), ("low", 0.008, 0.0095), ("high", 0.026, 0.0155)):
                options = Row(schedule=name, annealing_time_ns=time_ns, noise=(dh, dJ))
                betas = anneal(**options).betas
                row: Row = {"schedule": name, "t_a [ns]": time_ns, "noise": label}
                row |= {"beta_h σ(δh)": betas.beta_h * dh, "beta_J σ(δJ)": betas.beta_J * dJ}
                for g in strengths:
                    row[f"|ΔP| g={g:g}"] = sk_problems(6, g).error(law_of(sk_problems(6, g).ising, **options))
                yield title, row
    errors = {f"|ΔP| g={g:g}": sk_problems(6, g).error(sk_problems(6, g).simple["J = 0"]) for g in strengths}
    yield title, {"schedule": "J = 0", **errors}


SECTIONS: dict[str, Callable[[], Titled]] = {
    "boltzmann": without_fields, "strength": strength, "fields": fields, "time": times,
    "schedule": schedules, "refine": refine, "noise": noise,
}  # fmt: skip


def draw(name: str, rows: list[Row], folder: Path) -> None:
    """Draw the first table of ``strength`` or ``refine`` as PNG, a panel for each n or g."""
    panel, label = ("n", "method") if name == "strength" else ("g", "base")
    panels: dict[str, list[Line]] = {}
    for row in rows:
        curves = panels.setdefault(f"{panel} = {row[panel]}", [])
        if name == "refine" or row[label] in SHOWN:
            points = {float(k.removeprefix("g=")): y for k, y in row.items() if k not in (panel, label)}
            style: Row = {"clip_on": True}
            if row[label] == READS:  # what lies below it cannot be seen in so many reads
                style = {"color": "0.75", "linewidth": 4, "marker": ""}
            curves.append(Line([*points], [*points.values()], row[label], len(curves), style=style))
    axes: Row = {"xlabel": "sweeps", "ylabel": "total variation"}
    if name == "strength":
        axes = {"xlabel": "coupling strength g", "ylabel": "mean |ΔP|", "xscale": "log", "ylim": (1e-5, 0.5)}
    settings = axes | {"yscale": "log"}
    drawn = [Panel(curves, settings=settings | {"title": title}) for title, curves in panels.items()]
    folder.mkdir(parents=True, exist_ok=True)
    lines([drawn], folder / f"dqa-{name}.png")


def main() -> None:
    """Run the sections."""
    command, known = parser(__doc__), ", ".join(SECTIONS)
    command.add_argument("sections", nargs="*", metavar="SECTION", help=f"{known}; else all")
    command.add_argument("--figures", type=Path, metavar="FOLDER", help="write the figures into this folder")
    options = command.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        raise SystemExit(f"SECTION: expected {known}, got {', '.join(sorted(unknown))}.")
    warnings.simplefilter("ignore", circuits.OutOfRangeWarning)  # the study goes beyond on purpose
    torch.set_num_threads(1)
    for name in options.sections or SECTIONS:
        tables = print_tables(SECTIONS[name](), as_json=options.json, prefix=f"{name}: ")
        if options.figures is not None and name in ("strength", "refine"):
            draw(name, next(iter(tables.values())), options.figures)


if __name__ == "__main__":
    run_script(main)
