"""The errors that ``tempering`` reports, against enumeration.

    python -m experiments.tempering [--instances 500] [--json]

n = 12, h ~ N(0, 0.3), J ~ N(0, g/√n), and a ferromagnet J = g/n, g = 4, with h ~ N(0, 0.02).  Shares of probabilities P
and of log Z within 1, 2 and 3 reported errors; "off", the share of problems with some P off by more than 0.1; "unseen",
the share of those with an R-hat below 1.05; quantiles of R-hat.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import diabat
from diabat.ising import Ising, pack_couplings
from diabat.samplers.answers import Moments
from experiments.common import Row, Titled, parser, print_tables, run_script

OFF, SMALL_RHAT = 0.1, 1.05
CHAINS: dict[str, Row] = {
    "default": {}, "4 chains": {"num_chains": 4}, "1 chain of 1024": {"num_chains": 1, "sweeps": 1024},
    "1 replica": {"num_replicas": 1}, "256 after 256": {"burn_in": 256, "sweeps": 256},
}  # fmt: skip


def problems(g: float, count: int, *, ferromagnets: bool = False) -> Ising:
    """As many problems of 12 spins, with a J each."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    n = 12
    if ferromagnets:
        h, pairs = 0.02 * normal(count, n), torch.full((count, 66), g / n, dtype=torch.float64)
    else:
        pairs = normal(count, 66) * g / n**0.5
        h = 0.3 * normal(count, n)
    return Ising(h, pack_couplings(pairs, n))


def errors(instances: int) -> Titled:
    """Every kind of problem with every choice of chains."""
    kinds = {f"g = {g:g}": problems(g, instances) for g in (0.5, 1.0, 2.0, 3.0, 5.0)}
    kinds["ferromagnet"] = problems(4.0, instances, ferromagnets=True)
    for name, ising in kinds.items():
        exact = diabat.sampler("exact").moments(ising)
        for chains, options in CHAINS.items():
            sampler = diabat.sampler("tempering", threads=1, **options)
            moments = sampler.moments(ising, log_partition=sampler.capabilities.log_partition, seed=5)
            row = Row(problems=name, chains=chains)
            yield "errors against enumeration", row | covered(moments, exact)


def covered(estimated: Moments, exact: Moments) -> Row:
    """What the errors and R-hat said, and what was so; of one chain R-hat is NaN and says nothing."""
    assert estimated.standard_error is not None
    assert exact.log_partition is not None
    deviation, rhat = estimated.probability - exact.probability, estimated.info["rhat"]
    row = within("P", deviation / estimated.standard_error)
    if estimated.log_partition is not None:
        z = (estimated.log_partition - exact.log_partition) / estimated.info["log_partition_error"]
        row |= within("log Z", z)
    off = deviation.abs().amax(-1) > OFF
    row |= {"off": float(off.double().mean()), "unseen": float((~(rhat[off] >= SMALL_RHAT)).double().mean())}
    quantiles = torch.quantile(rhat, torch.tensor([0.05, 0.5, 0.95], dtype=rhat.dtype)).tolist()
    return row | dict(zip(("R-hat 5 %", "50 %", "95 %"), quantiles, strict=True))


def within(name: str, z: Tensor) -> Row:
    """Shares within 1, 2 and 3 errors."""
    return {f"{name}: {k}": float((z.abs() <= k).double().mean()) for k in (1, 2, 3)}


def main() -> None:
    """Print the table."""
    command = parser(__doc__)
    command.add_argument("--instances", type=int, default=500, help="problems of each kind (500)")
    options = command.parse_args()
    torch.set_num_threads(1)
    print_tables(errors(options.instances), as_json=options.json)


if __name__ == "__main__":
    run_script(main)
