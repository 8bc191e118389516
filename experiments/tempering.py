"""What ``tempering`` reports and decides, against enumeration: its errors, its pilot.

    python -m experiments.tempering [errors | pilot ...] [--instances 500] [--json]

``errors``: n = 12, h ~ N(0, 0.3), J ~ N(0, g/√n), and a ferromagnet J = g/n, g = 4, with h ~ N(0, 0.02).  Shares of
probabilities P and of log Z within 1, 2 and 3 reported errors; "off", the share of problems with some P off by more
than 0.1; "unseen", the share of those with an R-hat below 1.05; quantiles of R-hat.

``pilot``: n = 8, 12 and 16; couplings of both signs; ferromagnets, also in a field of 0 to 0.5; two patterns ±ξ,
J = g ξ ξᵀ/n, with a field of 0 to 2.4/n along ξ.  A problem is off if 256 plain chains of 64 + 64 sweeps miss some P by
more than 0.05.  How many of these get plain chains from ``num_replicas="auto"``?
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import diabat
from diabat.ising import Ising, pack_couplings
from diabat.samplers.answers import Moments
from experiments.common import Row, Titled, parser, run_sections

OFF, PILOT_OFF, SMALL_RHAT = 0.1, 0.05, 1.05
CHAINS: dict[str, Row] = {
    "default": {}, "4 chains": {"num_chains": 4}, "1 chain of 1024": {"num_chains": 1, "sweeps": 1024},
    "1 replica": {"num_replicas": 1}, "auto": {"num_replicas": "auto"},
    "256 after 256": {"burn_in": 256, "sweeps": 256},
}  # fmt: skip


def problems(family: str, g: float, n: int, count: int, seed: int = 0) -> Ising:
    """As many problems of a family, with a J each."""
    draw, j, k = torch.Generator().manual_seed(seed), *torch.triu_indices(n, n, 1)
    normal = partial(torch.randn, generator=draw, dtype=torch.float64)
    if family == "both signs":
        pairs = normal(count, len(j)) * g / n**0.5
        h = 0.3 * normal(count, n)
    elif family == "two patterns":
        xi = torch.sign(normal(count, n))
        h, pairs = xi * torch.linspace(0, 2.4, count)[:, None] / n, g / n * xi[:, j] * xi[:, k]
    else:
        h, pairs = 0.02 * normal(count, n), torch.full((count, len(j)), g / n, dtype=torch.float64)
        if family == "ferromagnets in a field":
            h = h + torch.linspace(0, 0.5, count)[:, None]
    return Ising(h, torch.stack([pack_couplings(p, n) for p in pairs]))


def moments(ising: Ising, seed: int = 0, **options: Any) -> Moments:
    """Averages on one thread."""
    sampler = diabat.sampler("tempering", threads=1, **options)
    return sampler.moments(ising, log_partition=sampler.capabilities.log_partition, seed=seed)


def errors(instances: int) -> Titled:
    """Every kind of problem with every choice of chains."""
    kinds = {f"g = {g:g}": problems("both signs", g, 12, instances) for g in (0.5, 1.0, 2.0, 3.0, 5.0)}
    kinds["ferromagnet"] = problems("ferromagnets", 4.0, 12, instances)
    for name, ising in kinds.items():
        exact = diabat.sampler("exact").moments(ising)
        for chains, options in CHAINS.items():
            row = Row(problems=name, chains=chains)
            yield "errors against enumeration", row | covered(moments(ising, 5, **options), exact)


def covered(found: Moments, exact: Moments) -> Row:
    """What the errors and R-hat said, and what was so; of one chain R-hat is NaN and says nothing."""
    assert found.standard_error is not None
    assert exact.log_partition is not None
    deviation, rhat = found.probability - exact.probability, found.info["rhat"]
    row = within("P", deviation / found.standard_error)
    if found.log_partition is not None:
        z = (found.log_partition - exact.log_partition) / found.info["log_partition_error"]
        row |= within("log Z", z)
    off = deviation.abs().amax(-1) > OFF
    row |= {"off": float(off.double().mean()), "unseen": float((~(rhat[off] >= SMALL_RHAT)).double().mean())}
    quantiles = torch.quantile(rhat, torch.tensor([0.05, 0.5, 0.95], dtype=rhat.dtype)).tolist()
    return row | dict(zip(("R-hat 5 %", "50 %", "95 %"), quantiles, strict=True))


def within(name: str, z: Tensor) -> Row:
    """Shares within 1, 2 and 3 errors."""
    return {f"{name}: {k}": float((z.abs() <= k).double().mean()) for k in (1, 2, 3)}


STRENGTHS = {
    "both signs": (0.5, 0.8, 1.0, 1.3, 1.6, 2.0, 3.0),
    "ferromagnets": (1.0, 1.2, 1.5, 2.0, 3.0, 4.0),
    "ferromagnets in a field": (1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 4.0),
    "two patterns": (1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0),
}


def pilot(instances: int) -> Titled:
    """Every family, over sizes and strengths."""
    for name, strengths in STRENGTHS.items():
        found = [decided(problems(name, g, n, instances, 100)) for n in (8, 12, 16) for g in strengths]
        plain, error = (torch.cat(parts) for parts in zip(*found, strict=True))
        off = error > PILOT_OFF
        yield "decisions of the pilot", {
            "problems": name, "number": len(plain), "plain chains": float(plain.double().mean()), "off": int(off.sum()),
            "off with plain chains": int((off & plain).sum()),
            "largest error with plain chains": float(error[plain].max()),
        }  # fmt: skip


def decided(ising: Ising) -> tuple[Tensor, Tensor]:
    """Whether each problem has plain chains, and how far off they are."""
    exact = diabat.sampler("exact").moments(ising).probability
    many = moments(ising, 7, num_replicas=1, num_chains=256)
    auto = diabat.sampler("tempering", num_replicas="auto", burn_in=1, threads=1).sample(ising, 1, seed=3)
    return auto.info["num_replicas"] == 1, (many.probability - exact).abs().amax(-1)


def main() -> None:
    """Print the tables."""
    sections: dict[str, Callable[..., Titled]] = {"errors": errors, "pilot": pilot}
    command = parser(__doc__, sections=sections)
    command.add_argument("--instances", type=int, default=500, help="problems of each kind (500)")
    options = command.parse_args()
    run_sections({name: partial(one, options.instances) for name, one in sections.items()}, options)


if __name__ == "__main__":
    main()
