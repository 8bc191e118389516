"""Composites hand up what the errors of averages need."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diabat.samplers import Sampler, sampler
from diabat.samplers.tempering import TemperingSampler
from diabat.testing import brute_force
from diabat.testing.problems import make_problem

CHAINS = 8


def parts(base: Sampler) -> Sampler:
    return sampler("distributed", sampler=base, workers=0, chunk=64)


COMPOSITES: dict[str, Callable[[Sampler], Sampler]] = {
    "refine": lambda base: sampler("refine", sampler=base, sweeps=1),
    "distributed": parts,
    "refine distributed": lambda base: sampler("refine", sampler=parts(base), sweeps=1),
    "distributed refine": lambda base: parts(sampler("refine", sampler=base, sweeps=1)),
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", COMPOSITES)
def test_errors_over_thinned_chains_are_those_of_the_chains(name: str, own: bool) -> None:
    """z of 200 problems x 6 spins: the variance of Student's t with 7 degrees is 7/5; as independent reads, above 3.

    1.4 to 0.4: the six z of a problem are one draw at worst, and 200 squares have a standard error of 0.2.
    """
    ising = make_problem((200,), 6, lead="per_problem", seed=10, couplings=0.5)
    base = TemperingSampler(num_replicas=1, num_chains=CHAINS, thin=1, burn_in=256)
    composite = COMPOSITES[name](base)
    if own:
        samples = composite.sample(ising, 4096, seed=3)
        moments, frame = samples.moments(), samples.to_pandas()
        assert frame.index.get_level_values("chain").nunique() == CHAINS
    else:
        moments = composite.moments(ising, num_reads=4096, seed=3)
    off = moments.probability - brute_force(ising).probability
    independent = (moments.probability * (1 - moments.probability) / 4096).sqrt()
    assert float((off / independent).square().mean()) > 3
    assert float((off / moments.standard_error).square().mean()) == pytest.approx(1.4, abs=0.4)
