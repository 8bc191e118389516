"""What a backend can answer if every sequence and head has a J of its own, so that no work is shared."""

from __future__ import annotations

import math

from torch import Tensor

from diabat.samplers.base import Sampler, UnsupportedError


def always_answerable(sampler: Sampler, problems: int, longest: int) -> bool:
    """Whether so many problems of up to ``longest`` spins are within the limits, however long each of them is."""
    able = sampler.capabilities
    spins, states = (math.inf if limit is None else limit for limit in (able.max_spins, able.max_states))
    return longest <= spins and problems * 2.0 ** min(longest, 1000) <= states


def require_answerable(sampler: Sampler, lengths: Tensor, heads: int, begin: str) -> None:
    """Refuse a batch of sequences that the sampler would not finish.

    Args:
        sampler: The backend.
        lengths: Tokens of each sequence, int64 [B].
        heads: Heads, each with a J of its own for every sequence.
        begin: What the error begins with, before the name of the sampler.

    Raises:
        UnsupportedError: If a sequence has more tokens than the sampler accepts spins, or heads · Σ 2^n is more than
            it enumerates in one call.
    """
    able = sampler.capabilities
    if not len(lengths):
        return
    longest = int(lengths.max())
    if able.max_spins is not None and longest > able.max_spins:
        raise UnsupportedError(
            f"{begin} '{sampler.name}' accepts at most {able.max_spins} tokens, got {longest}; "
            "use 'mean_field' or 'tempering'."
        )
    states = heads * float(lengths.double().exp2().sum())
    if able.max_states is not None and states > able.max_states:
        raise UnsupportedError(
            f"{begin} '{sampler.name}' enumerates 2^n states for every sequence and head, at most "
            f"{able.max_states:.2g} in one call, got {states:.2g} for {len(lengths)} sequences of up to {longest} "
            f"tokens and {heads} heads; use 'mean_field' or 'tempering', or fewer or shorter sequences."
        )
