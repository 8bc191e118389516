"""What ``tempering`` reports and decides, against enumeration: its errors, its pilot, deep modes.

    python -m experiments.tempering [errors | pilot | modes ...] [--instances 500] [--json]

``errors``: n = 12, h ~ N(0, 0.3), J ~ N(0, g/√n), and a ferromagnet J = g/n, g = 4, with h ~ N(0, 0.02).  Shares of
probabilities P and of log Z within 1, 2 and 3 reported errors; "off", the share of problems with some P off by more
than 0.1; "unseen", the share of those with an R-hat below 1.05; quantiles of R-hat.

``pilot``: n = 8, 12 and 16; couplings of both signs; ferromagnets, also in a field of 0 to 0.5; two patterns ±ξ,
J = g ξ ξᵀ/n, with a field of 0 to 2.4/n along ξ.  A problem is off if 256 plain chains of 64 + 64 sweeps miss some P by
more than 0.05.  How many of these get plain chains from ``num_replicas="auto"``?

``modes``: n = 16 at beta = 3, instances that plain chains fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import diabat
from diabat.ising import Ising, pack_couplings
from diabat.samplers.answers import Moments
from experiments.common import Row, parser, report

OFF, PILOT_OFF, SMALL_RHAT = 0.1, 0.05, 1.05
CHAINS: dict[str, dict[str, Any]] = {
    "default": {},
    "4 chains": {"num_chains": 4},
    "1 chain of 1024": {"num_chains": 1, "sweeps": 1024},
    "1 replica": {"num_replicas": 1},
    "auto": {"num_replicas": "auto"},
    "256 after 256": {"burn_in": 256, "sweeps": 256},
}
Family = Callable[[float, int, int, torch.Generator], tuple[Tensor, Tensor]]
"""(g, n, count, draw) -> fields [count, n] and packed couplings [count, n (n - 1)/2]."""


def both_signs(g: float, n: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Frustrated problems."""
    pairs = torch.randn(count, n * (n - 1) // 2, generator=draw, dtype=torch.float64) * g / n**0.5
    return 0.3 * torch.randn(count, n, generator=draw, dtype=torch.float64), pairs


def ferromagnet(g: float, n: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two modes of nearly the same weight."""
    h = 0.02 * torch.randn(count, n, generator=draw, dtype=torch.float64)
    return h, torch.full((count, n * (n - 1) // 2), g / n, dtype=torch.float64)


def in_a_field(g: float, n: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two modes of more and more different weight."""
    h, pairs = ferromagnet(g, n, count, draw)
    return h + torch.linspace(0, 0.5, count)[:, None], pairs


def patterns(g: float, n: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two modes ±ξ of random signs."""
    xi = torch.sign(torch.randn(count, n, generator=draw, dtype=torch.float64))
    j, k = torch.triu_indices(n, n, 1)
    return xi * torch.linspace(0, 2.4, count)[:, None] / n, g / n * xi[:, j] * xi[:, k]


def problems(family: Family, g: float, n: int, count: int, seed: int = 0) -> Ising:
    """As many problems with a J each."""
    h, pairs = family(g, n, count, torch.Generator().manual_seed(seed))
    return Ising(h, torch.stack([pack_couplings(p, n) for p in pairs]))


def moments(ising: Ising, seed: int = 0, **options: Any) -> Moments:
    """Averages on one thread."""
    return diabat.sampler("tempering", threads=1, **options).moments(ising, seed=seed)


def errors(instances: int) -> list[Row]:
    """Every kind of problem with every choice of chains."""
    kinds = {f"g = {g:g}": problems(both_signs, g, 12, instances) for g in (0.5, 1.0, 2.0, 3.0, 5.0)}
    kinds["ferromagnet"] = problems(ferromagnet, 4.0, 12, instances)
    rows = []
    for name, ising in kinds.items():
        exact = diabat.sampler("exact").moments(ising)
        for chains, options in CHAINS.items():
            rows.append({"problems": name, "chains": chains, **covered(moments(ising, 5, **options), exact)})
    return rows


def covered(found: Moments, exact: Moments) -> Row:
    """What the errors and R-hat said, and what was so; None where the question does not arise."""
    assert found.standard_error is not None
    assert exact.log_partition is not None
    deviation, rhat = found.probability - exact.probability, found.info["rhat"]
    row: Row = within("P", deviation / found.standard_error)
    row |= dict.fromkeys(within("log Z", torch.zeros(1)))
    if found.log_partition is not None:
        row |= within(
            "log Z", (found.log_partition - exact.log_partition) / found.info["log_partition_error"]
        )
    off = deviation.abs().amax(-1) > OFF
    row |= {"off": float(off.double().mean()), "unseen": float((rhat[off] < SMALL_RHAT).double().mean())}
    quantiles = torch.quantile(rhat, torch.tensor([0.05, 0.5, 0.95], dtype=rhat.dtype)).tolist()
    return row | dict(zip(("R-hat 5 %", "50 %", "95 %"), quantiles, strict=True))


def within(name: str, z: Tensor) -> dict[str, Any]:
    """Shares within 1, 2 and 3 errors."""
    return {f"{name}: {k}": float((z.abs() <= k).double().mean()) for k in (1, 2, 3)}


FAMILIES: dict[str, tuple[Family, tuple[float, ...]]] = {
    "both signs": (both_signs, (0.5, 0.8, 1.0, 1.3, 1.6, 2.0, 3.0)),
    "ferromagnets": (ferromagnet, (1.0, 1.2, 1.5, 2.0, 3.0, 4.0)),
    "ferromagnets in a field": (in_a_field, (1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 4.0)),
    "two patterns": (patterns, (1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0)),
}


def pilot(instances: int) -> list[Row]:
    """Every family, over sizes and strengths."""
    rows = []
    for name, (family, strengths) in FAMILIES.items():
        found = [decided(problems(family, g, n, instances, 100)) for n in (8, 12, 16) for g in strengths]
        plain, error = (torch.cat(parts) for parts in zip(*found, strict=True))
        off = error > PILOT_OFF
        rows.append({
            "problems": name, "number": len(plain), "plain chains": float(plain.double().mean()), "off": int(off.sum()),
            "off with plain chains": int((off & plain).sum()),
            "largest error with plain chains": float(error[plain].max()),
        })  # fmt: skip
    return rows


def decided(ising: Ising) -> tuple[Tensor, Tensor]:
    """Whether each problem has plain chains, and how far off they are."""
    exact = diabat.sampler("exact").moments(ising).probability
    many = moments(ising, 7, num_replicas=1, num_chains=256)
    auto = diabat.sampler("tempering", num_replicas="auto", burn_in=1, threads=1).sample(ising, 1, seed=3)
    return auto.info["num_replicas"] == 1, (many.probability - exact).abs().amax(-1)


def modes(_: int) -> list[Row]:
    """Plain chains and 8 replicas: errors of the marginals, in standard errors, R-hat and log Z."""
    rows = []
    for seed in (5, 30, 44, 45):
        draw = torch.Generator().manual_seed(seed)
        J = pack_couplings(3.0 * torch.randn(120, generator=draw) / 4, 16)
        ising = Ising(0.9 * torch.randn(1, 16, generator=draw), J)
        exact = diabat.sampler("exact").moments(ising)
        for replicas in (1, 8):
            found = moments(ising, 1, num_replicas=replicas, num_chains=64, burn_in=512, sweeps=1024)
            assert found.standard_error is not None
            error = (found.probability - exact.probability).abs()
            row = {
                "seed": seed, "replicas": replicas, "largest error": float(error.max()),
                "in standard errors": float((error / found.standard_error).max()), "R-hat": found.info["rhat_max"],
                "effective reads": float(found.info["effective_sample_size"].mean()), "log Z off by": None, "±": None,
            }  # fmt: skip
            if found.log_partition is not None and exact.log_partition is not None:
                row["log Z off by"] = float(found.log_partition - exact.log_partition)
                row["±"] = float(found.info["log_partition_error"])
            rows.append(row)
    return rows


SECTIONS = {"errors": errors, "pilot": pilot, "modes": modes}


def main() -> None:
    """Print the tables."""
    command = parser(__doc__)
    command.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; else all")
    command.add_argument("--instances", type=int, default=500, help="problems of each kind (500)")
    options = command.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        command.error(f"SECTION: expected {', '.join(SECTIONS)}, got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    for name in options.sections or SECTIONS:
        report(name, SECTIONS[name](options.instances), as_json=options.json)


if __name__ == "__main__":
    main()
