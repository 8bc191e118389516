"""The forms of the backend ``exact`` beside its compiled kernel, which small problems on the CPU do without."""

from __future__ import annotations

import pytest
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.exact import ExactSampler, batches, operators, sampler


def by_operators(patch: pytest.MonkeyPatch, *, halves: bool = False, device: bool = False) -> None:
    """Solve all problems by operators from now on; ``device`` is one whose numbers the host does not read."""
    patch.setattr(ExactSampler, "_plan", lambda self, ising: None)
    if halves:
        patch.setattr(operators, "FEW_SPINS", 0)
    if device:
        for module in (batches, operators, sampler):
            patch.setattr(module, "is_readable", lambda ising: False)


def solved_by_operators(
    ising: Ising, *, halves: bool = False, device: bool = False, **options: float
) -> tuple[Tensor, Tensor]:
    """P and log Z of one problem, as ``naive`` gives them."""
    with pytest.MonkeyPatch.context() as patch:
        by_operators(patch, halves=halves, device=device)
        moments = ExactSampler(**options).moments(ising)
    assert moments.log_partition is not None
    return moments.probability, moments.log_partition
