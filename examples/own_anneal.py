"""A person who studies annealing: a schedule of one's own, the temperature of its reads, control noise, refining.

python examples/own_anneal.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import diabat
from diabat.circuits import from_csv
from diabat.ising import pack_couplings
from diabat.samplers.pseudolikelihood import fit_betas


def write_schedule(path: Path) -> None:
    """A CSV as one measures or downloads it: s, A(s) and B(s) in GHz."""
    s = np.linspace(0, 1, 201)
    table = np.column_stack((s, 9 * (1 - s) ** 3, 12 * s**2))
    np.savetxt(path, table, delimiter=",", header="s,A_GHz,B_GHz", comments="", fmt="%.6f")


def main() -> None:
    with TemporaryDirectory() as folder:
        write_schedule(Path(folder) / "mine.csv")
        schedule = from_csv(Path(folder) / "mine.csv")

    torch.manual_seed(0)
    g, n = 0.3, 6  # the strength of the problems: h ~ N(0, g²), J ~ N(0, g²/n)
    J = pack_couplings(g / n**0.5 * torch.randn(16, n * (n - 1) // 2), n)
    problems = diabat.Ising(g * torch.randn(16, n), J)
    exact = diabat.sampler("exact").moments(problems).probability

    # Programmed as they are, the problems are sampled far too cold: the reads tell their own temperature.
    raw = diabat.sampler("dqa", schedule=schedule, annealing_time_ns=5.0, calibration="none")
    weak = diabat.Ising(problems.fields / 10, J / 10)
    reads = raw.sample(weak, num_reads=2000, seed=1).spins
    found = fit_betas(weak, reads)
    beta_h, beta_J, _ = found.scales
    print(f"beta_h {beta_h:.2f} {found.interval('field')}, beta_J {beta_J:.2f} {found.interval('coupling')}")
    assert found.interval("coupling") is not None

    measured = {"schedule": schedule, "annealing_time_ns": 5.0, "betas": (beta_h, beta_J)}
    errors = {}
    for name, backend, options in (
        ("no couplings", "exact", None),
        ("mine, measured betas", "dqa", measured),
        ("with control noise", "dqa", measured | {"noise": (0.02, 0.01)}),
        (
            "refined, 4 sweeps",
            "refine",
            {"sampler": "dqa", "options": measured, "sweeps": 4, "num_reads": 4000},
        ),
    ):
        target = diabat.Ising(problems.fields) if options is None else problems
        answer = diabat.sampler(backend, **(options or {})).moments(target, seed=2).probability
        errors[name] = (answer - exact).abs().mean().item()
        print(f"{name:>20}: mean |ΔP| {errors[name]:.4f}")
    assert errors["mine, measured betas"] < errors["no couplings"]
    assert errors["refined, 4 sweeps"] < 0.01 < errors["with control noise"]


if __name__ == "__main__":
    main()
