"""Annealed chains of 32 to 256 spins by matrix product states, against the exact chain, and attention over them.

    python -m experiments.chain_anneals law                # about two minutes
    python -m experiments.chain_anneals training           # three quarters of an hour
    python -m experiments.chain_anneals processor          # seconds

`law`: anneals of random chains, h ~ N(0, .5²) and J ~ N(0, .5²), one problem for each size, by Aer on one thread: bond
dimension and seconds, the largest and the mean error of P(s_j = +1) against `banded`, and the beta of 2,000 reads
(pseudolikelihood; 1 would be the Boltzmann law).
`training`: recall of 16 pairs, 32 keys, by one layer whose query is the key that is asked for: accuracy on 128
sequences, with the sampler that it was trained on and with the others in its place.
`processor`: the same chains, 2,000 reads by dimod: of a simulated annealer held at beta = 1, and of the strict stand-in
of a processor with a Zephyr graph of 576 qubits, anneals of 20 microseconds with fields on the qubits.
"""

from __future__ import annotations

import time
import warnings

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional

import diabat
from diabat.attention import CouplingInit
from diabat.circuits import MatrixProductEngine, OutOfRangeWarning
from diabat.samplers.dimod import DimodSampler
from diabat.samplers.dqa import DQASampler
from diabat.samplers.programming import ControlNoise, to_hardware_units
from diabat.samplers.pseudolikelihood import fit_betas
from experiments.common import Row, Titled, parser, run_sections

SETTINGS: dict[str, Row] = {
    "32 spins": {"n": 32},
    "64 spins": {"n": 64},
    "128 spins": {"n": 128},
    "256 spins": {"n": 256},
    "256 spins, truncated at 1e-8": {"n": 256, "truncation": 1e-8},
    "256 spins, bonds of 4": {"n": 256, "max_bond_dimension": 4},
    "32 spins, learned plan of 16 steps": {"n": 32, "schedule": "boltzmann-16"},
    "256 spins, learned plan of 16 steps": {"n": 256, "schedule": "boltzmann-16"},
}
PAIRS, WIDTH, STEPS, BATCH = 16, 32, 400, 32
PRODUCTS: Row = {"engine": "aer", "method": "matrix_product_state", "max_bond_dimension": 4}


def problem(n: int) -> diabat.Ising:
    """One random chain."""
    generator = torch.Generator().manual_seed(n)
    h, J = 0.5 * torch.randn(2, n, generator=generator, dtype=torch.float64)
    return diabat.Ising(h[None], diabat.Edges([[j, j + 1] for j in range(n - 1)], J[1:]))


def law() -> Titled:
    """One row for each setting."""
    for name, given in SETTINGS.items():
        options = {key: value for key, value in given.items() if key != "n"}
        ising = problem(given["n"])
        sampler = DQASampler(engine="aer", method="matrix_product_state", **options)
        began = time.process_time()
        found = sampler.moments(ising).probability
        seconds = time.process_time() - began
        error = (found - diabat.sampler("banded").moments(ising).probability).abs()
        assert isinstance(sampler.engine, MatrixProductEngine)
        [batch] = to_hardware_units(ising, sampler.betas, ControlNoise(0.0, 0.0), 0).batches
        _, bonds = sampler.engine.state(sampler.anneal.plan, batch.fields[0], batch.couplings)
        reads = sampler.sample(ising, 2000, seed=1).spins
        betas = fit_betas(ising, reads, torch.full(reads.shape[:-1], 1 / len(reads), dtype=torch.float64))
        yield "law", {
            "": name, "largest bond": max(map(len, bonds)), "seconds": seconds,
            "largest error of P": error.max().item(), "mean": error.mean().item(),
            "beta_h": betas.field, "beta_J": betas.coupling,
        }  # fmt: skip


class Recall(nn.Module):
    """One layer over 32 keys without positions."""

    def __init__(self, sampler: diabat.Sampler, gradient: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(2 * PAIRS, WIDTH)
        self.attention = diabat.BoltzmannMultiheadAttention(
            WIDTH, 1, batch_first=True, window=None, sampler=sampler, gradient=gradient,
            coupling_init=CouplingInit(mean=1.0),
        )  # fmt: skip
        self.head = nn.Linear(WIDTH, PAIRS)

    def forward(self, asked: Tensor, tokens: Tensor) -> Tensor:
        """Logits of the value of each key that is asked for, [B, 1, PAIRS]."""
        keys = self.tokens(tokens)
        out: Tensor = self.head(self.attention(self.tokens(asked), keys, keys, need_weights=False)[0])
        return out


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A key that is asked for, [B, 1], pairs of keys and values, [B, 32], and the value, [B, 1]."""
    keys = torch.rand(count, PAIRS, generator=generator).argsort(1)
    values = torch.randint(PAIRS, (count, PAIRS), generator=generator)
    asked = torch.randint(PAIRS, (count, 1), generator=generator)
    return keys.gather(1, asked), torch.stack((keys, PAIRS + values), 2).flatten(1), values.gather(1, asked)


@torch.no_grad()
def right(model: Recall) -> float:
    """Share of right answers."""
    asked, tokens, target = draw(128, torch.Generator().manual_seed(9))
    parts = zip(asked.split(BATCH), tokens.split(BATCH), strict=True)
    found = torch.cat([model(query, keys).argmax(-1) for query, keys in parts])
    return (found == target).double().mean().item()


def training() -> Titled:
    """One row for each sampler and estimator."""
    samplers = {
        "exact": diabat.sampler("banded"),
        "learned plan": DQASampler(schedule="boltzmann-16", **PRODUCTS),
        "5 ns anneal": DQASampler(**PRODUCTS),
        "2 ns anneal": DQASampler(annealing_time_ns=2.0, steps=80, **PRODUCTS),
    }
    trained = [
        ("exact", "exact"),
        *((name, "linear_response") for name in ("exact", "learned plan", "2 ns anneal")),
    ]
    for name, gradient in trained:
        torch.manual_seed(0)
        model, generator = Recall(samplers[name], gradient), torch.Generator().manual_seed(0)
        optimiser = torch.optim.Adam(model.parameters(), 5e-3)
        began = time.process_time()
        for _ in track(range(STEPS), f"{name}, {gradient}"):
            asked, tokens, target = draw(BATCH, generator)
            optimiser.zero_grad()
            functional.cross_entropy(model(asked, tokens).flatten(0, 1), target.flatten()).backward()
            optimiser.step()
        row: Row = {"trained on": name, "gradient": gradient, "CPU s": time.process_time() - began}
        for other, sampler in samplers.items():
            model.attention.use_sampler(sampler)
            row[f"right, {other}"] = right(model)
        yield "training", row


def processor() -> Titled:
    """One row for each size and dimod sampler."""
    chip = {"topology_type": "zephyr", "topology_shape": [4, 4], "beta": 10.0}
    stand_in: Row = {
        "sampler": "diabat.testing.strict_qpu:StrictMockQPU",
        "options": chip,
        "beta": 10.0,
        "qpu": {"fields": "direct", "protocol": "standard", "annealing_time_ns": 20_000.0},
    }
    devices: dict[str, Row] = {"simulated annealer": {}, "strict stand-in": stand_in}
    for name, options in devices.items():
        for n in (32, 128, 256):
            ising, sampler = problem(n), DimodSampler(**options)
            planned = sampler.dry_run(ising, 2000)
            found = (sampler.sample(ising, 2000, seed=1).spins > 0).double().mean(0)
            exact = diabat.sampler("banded").moments(ising).probability
            error, expected = (found - exact).abs(), (exact * (1 - exact) / 2000).sqrt()
            yield "processor", {
                "": f"{name}, {n} spins", "qubits": planned.qubits, "longest chain": planned.longest_chain,
                "access s": planned.access_s, "largest error of P": error.max().item(),
                "in standard errors": (error / expected).max().item(),
            }  # fmt: skip


SECTIONS = {"law": law, "training": training, "processor": processor}


def main() -> None:
    """Run what was asked for, and print its tables."""
    options = parser(__doc__, sections=SECTIONS).parse_args()
    warnings.simplefilter("ignore", OutOfRangeWarning)
    run_sections(SECTIONS, options)


if __name__ == "__main__":
    main()
