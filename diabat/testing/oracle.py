r"""Plain enumeration in float64: the oracle that shares no code with any backend.

Every pair and every triple is added in a loop, so that a mistake in a backend's matrix products, or in
:meth:`diabat.Ising.energy`, cannot occur here as well.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Capabilities, UnsupportedError

MAX_SPINS = 14


def state_table(n: int) -> Tensor:
    """All states of n spins, float64 ±1 [2^n, n]; bit j of the row index is spin j, and a set bit is +1."""
    index = torch.arange(2**n)[:, None]
    return ((index >> torch.arange(n)) & 1).double() * 2 - 1


def brute_force_exponents(ising: Ising) -> Tensor:
    """Exponent c + Σ h s + Σ_{j<k} J s s + Σ_{j<k<l} K s s s of every state, float64 [*batch, 2^n].

    States in which an invisible spin is +1, or a clamped one not at its value, have exponent -inf; they contribute
    nothing else.

    Raises:
        UnsupportedError: If n is above 14.
    """
    n = ising.num_spins
    if n > MAX_SPINS:
        reason = f"the brute-force oracle accepts at most {MAX_SPINS} spins, got {n}."
        raise UnsupportedError("fields", reason)
    s, v = state_table(n), ising.visible_mask.cpu()
    exponent = torch.zeros(*ising.batch_shape, 2**n, dtype=torch.float64)
    for order, terms in ((1, ising.fields), (2, ising.couplings), (3, ising.three_body)):
        if terms is None:
            continue
        values = terms.detach().cpu().double()
        for spins in combinations(range(n), order):
            strength = values[(..., *spins, None)]  # [*lead, 1]
            shown = v[..., list(spins)].all(-1, keepdim=True)
            exponent = exponent + torch.where(shown, strength * s[:, list(spins)].prod(1), 0.0)
    if ising.offset is not None:
        exponent = exponent + ising.offset.detach().cpu().double()[..., None]
    value = torch.full(v.shape, -1) if ising.clamped is None else ising.clamped.cpu().where(_shown(ising), -1)
    wrong = (~v[..., None, :] & (s != value[..., None, :])).any(-1)
    return exponent.masked_fill(wrong, -torch.inf)


def _shown(ising: Ising) -> Tensor:
    """Spins that answers show, bool [*batch, n]: visible and clamped ones."""
    v = ising.visible_mask.cpu()
    return v if ising.clamped is None else v | (ising.clamped.cpu() != 0)


def brute_force_states(ising: Ising) -> Tensor:
    """Probability of every state, float64 [*batch, 2^n]; invisible spins are -1, clamped ones at their values."""
    return torch.softmax(brute_force_exponents(ising), dim=-1)


def brute_force(ising: Ising) -> Moments:
    """Exact moments by enumeration, float64: probabilities, pair correlations and log Z.

    Raises:
        UnsupportedError: If n is above 14.
    """
    exponent = brute_force_exponents(ising)
    p, s, v = torch.softmax(exponent, dim=-1), state_table(ising.num_spins), _shown(ising)
    pairs = torch.einsum("...x,xj,xk->...jk", p, s, s)
    return Moments(
        probability=torch.where(v, p @ (s > 0).double(), 0.0),
        visible=v,
        correlation=torch.where(v[..., :, None] & v[..., None, :], pairs, 0.0),
        log_partition=torch.logsumexp(exponent, dim=-1),
        info={"backend": "brute_force"},
    )


class ReferenceSampler(Sampler):
    """Inverse-CDF sampler over the enumerated states: slow, simple and correct.

    Args:
        analytic: Report moments by enumeration instead of averages over reads.
        num_reads: Reads behind ``moments`` when they are averages.
    """

    name = "reference"

    def __init__(self, *, analytic: bool = False, num_reads: int = 1000) -> None:
        self.analytic, self.num_reads = analytic, num_reads

    @property
    def capabilities(self) -> Capabilities:
        """Boltzmann, up to 14 spins, with three-body terms."""
        exact = self.analytic
        return Capabilities(exact=exact, max_spins=MAX_SPINS, three_body=True, log_partition=exact)

    def state_probabilities(self, ising: Ising) -> Tensor:
        """Probability of every state, float64 [*batch, 2^n]."""
        return brute_force_states(ising)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        cdf = brute_force_states(ising).cumsum(-1)
        generator = torch.Generator().manual_seed(seed)
        u = torch.rand(*ising.batch_shape, num_reads, generator=generator, dtype=torch.float64)
        # right=True finds the first state whose cdf exceeds u: never a state of probability zero.
        index = torch.searchsorted(cdf, u * cdf[..., -1:], right=True)
        spins = state_table(ising.num_spins).to(torch.int8)[index]  # [*batch, reads, n]
        return Samples(spins.movedim(-2, 0).contiguous().to(ising.fields.device), ising.visible_mask)

    def _moments(self, ising: Ising, correlations: bool, seed: int, log_partition: bool = False) -> Moments:
        if not self.analytic:
            return super()._moments(ising, correlations, seed)
        names = ("probability", "log_partition", *["correlation"] * correlations)
        exact = brute_force(ising)
        answers = {name: getattr(exact, name).to(ising.fields) for name in names}
        return Moments(visible=ising.visible_mask, **answers)
