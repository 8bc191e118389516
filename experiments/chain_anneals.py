"""Annealed chains of 32 to 256 spins by matrix product states, against the exact chain.

    python -m experiments.chain_anneals                    # about two minutes

A 5 ns anneal of random chains, h ~ N(0, .5²) and J ~ N(0, .5²), one problem for each size, by Aer on one thread: bond
dimension and seconds, the largest and the mean error of P(s_j = +1) against `banded`, and the beta of 2,000 reads
(pseudolikelihood; 1 would be the Boltzmann law).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import torch

import diabat
from diabat.circuits import MatrixProductEngine, OutOfRangeWarning
from diabat.samplers.dqa import DQASampler
from diabat.samplers.programming import ControlNoise, program
from diabat.samplers.pseudolikelihood import fit_betas
from experiments.common import Row, parser, report

SETTINGS: dict[str, Row] = {
    "32 spins": {"n": 32},
    "64 spins": {"n": 64},
    "128 spins": {"n": 128},
    "256 spins": {"n": 256},
    "256 spins, truncated at 1e-8": {"n": 256, "truncation": 1e-8},
    "256 spins, bonds of 4": {"n": 256, "max_bond_dimension": 4},
}


def problem(n: int) -> diabat.Ising:
    """One random chain."""
    generator = torch.Generator().manual_seed(n)
    h, J = 0.5 * torch.randn(2, n, generator=generator, dtype=torch.float64)
    upper = torch.diag(J[1:], 1)
    return diabat.Ising(h[None], upper + upper.T)


def rows() -> Iterator[Row]:
    """One row for each setting."""
    for name, given in SETTINGS.items():
        options = {key: value for key, value in given.items() if key != "n"}
        ising, sampler = (
            problem(given["n"]),
            DQASampler(engine="aer", method="matrix_product_state", **options),
        )
        began = time.process_time()
        found = sampler.moments(ising).probability
        seconds = time.process_time() - began
        error = (found - diabat.sampler("banded").moments(ising).probability).abs()
        assert isinstance(sampler.engine, MatrixProductEngine)
        [batch] = program(ising, sampler.betas, ControlNoise(0.0, 0.0), 0).batches
        _, bonds = sampler.engine.state(sampler.anneal.plan, batch.fields[0], batch.couplings)
        reads = sampler.sample(ising, 2000, seed=1).spins
        betas = fit_betas(ising, reads, torch.full(reads.shape[:-1], 1 / len(reads), dtype=torch.float64))
        yield {
            "": name,
            "largest bond": max(map(len, bonds)),
            "seconds": seconds,
            "largest error of P": error.max().item(),
            "mean": error.mean().item(),
            "beta_h": betas.field,
            "beta_J": betas.coupling,
        }


def main() -> None:
    """Print the table."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", OutOfRangeWarning)
    report("annealed chains", list(rows()), as_json=options.json)


if __name__ == "__main__":
    main()
