r"""Statistics of head outputs under a Gaussian: total correlation, free riding, correlation of equal features.

With Σ the covariance of all H d features over tokens, Σ_i its block of head i, and log det of such blocks,

    TC = ½ (Σ_i log det Σ_i - log det Σ)                            total correlation (GAME-LoRA, eq. 3)
    I(Z_i; Z_<i) = ½ (log det Σ_i + log det Σ_<i - log det Σ_≤i)    free riding (definition 2.8); they sum to TC
    I(Z_i; Z_≠i)                                                     what all other heads know about head i

in nats.  The paper conditions on the input, given which head outputs of a trained model are constants; here the
spread is that over tokens.  All of them are invariant under an invertible map inside each head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count

_DEAD = 1e-10  # of the largest variance in a head: directions below it are left out
_SINGULAR = 1e-9  # a conditional variance below this share is taken for 0: outputs are rounded to float32
_JITTER = 1e-12


@dataclass(frozen=True, eq=False)
class HeadInformation:
    """Gaussian information that heads share, in nats.

    Attributes:
        total_correlation: TC; infinite if a feature of a head is a linear function of the other heads.
        free_riding: I(Z_i; Z_<i) in the order of the heads, float64 [H]; ``redundancy`` is I(Z_i; Z_≠i).
        bias: What a sample of this size adds to TC on average; it has been subtracted, also from the others.
    """

    total_correlation: float
    free_riding: Tensor
    redundancy: Tensor
    bias: float


def head_information(covariance: Tensor, heads: int, samples: int | None = None) -> HeadInformation:
    r"""Total correlation and what single heads contribute to it.

    A sample covariance of n + 1 independent Gaussian tokens has, for p features,
    E log det Σ̂ - log det Σ = Σ_{k<p} [ψ((n-k)/2) - log(n/2)], whatever Σ is; its part is subtracted.

    Args:
        covariance: Σ, [H d, H d], head by head; the unbiased estimate, if of a sample.
        heads: H.
        samples: Number of tokens it was estimated from, of which there are more than features; None if it is exact.
    """
    check_count("heads", heads)
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1] or len(covariance) % heads:
        raise ArgumentError(
            "covariance", f"expected [H d, H d] with H = {heads}, got {list(covariance.shape)}."
        )
    R, sizes = _whitened(covariance.double(), heads)
    if samples is not None and samples <= len(R) + 1:
        raise ArgumentError("samples", f"expected more than {len(R) + 1} tokens, got {samples}.")
    # Log det of the covariance of each head given those before it, and given all others, [H].
    values, vectors = torch.linalg.eigh(R)
    # Fewer different tokens than features, rounded, give negative ones.
    values = values.clamp_min(0) + _JITTER
    pivots = torch.linalg.cholesky(vectors * values @ vectors.T).diagonal()
    own = torch.stack([_log_det(part) for part in pivots.square().split(sizes)])
    parts = [part * values.rsqrt() for part in vectors.split(sizes)]
    conditional = torch.stack([_log_det(1 / torch.linalg.eigvalsh(part @ part.T)) for part in parts])
    bias = _log_det_bias(len(R), None if samples is None else samples - 1)  # of p features, p = 0 .. H d
    size, end = torch.tensor(sizes), torch.tensor(sizes).cumsum(0)
    before = 0.5 * (bias[size] + bias[end - size] - bias[end])
    others = 0.5 * (bias[size] + bias[len(R) - size] - bias[-1])
    free_riding = -0.5 * own - before
    return HeadInformation(
        float(free_riding.sum()), free_riding, -0.5 * conditional - others, float(before.sum())
    )


def diagonal_correlation(covariance: Tensor, heads: int) -> Tensor:
    """Mean correlation of equal features of two heads, 1/d Σ_k corr(o_ik, o_jk) of Σ [H d, H d], float64 [H, H].

    This is what an identity target of cross-head Barlow Twins draws to 1.  It depends on the basis inside a head.
    A feature without variance has correlation 0.
    """
    scale = covariance.double().diagonal().clamp_min(0).sqrt()
    unit = torch.where(scale > 0, 1 / torch.where(scale > 0, scale, 1), 0)
    correlation = covariance.double() * unit[:, None] * unit
    blocks = correlation.unflatten(0, (heads, -1)).unflatten(2, (heads, -1))  # [H, d, H, d]
    return blocks.diagonal(dim1=1, dim2=3).mean(-1)


def _whitened(covariance: Tensor, heads: int) -> tuple[Tensor, list[int]]:
    """Covariance with the identity in every block, and the number of features of each head; dead ones are left out."""
    maps, size = [], len(covariance) // heads
    for start in range(0, len(covariance), size):
        values, vectors = torch.linalg.eigh(covariance[start : start + size, start : start + size])
        alive = values > _DEAD * values[-1].clamp_min(0)
        maps.append(vectors[:, alive] / values[alive].sqrt())
    W = torch.block_diag(*maps)
    R = W.T @ covariance @ W
    return (R + R.T) / 2, [m.shape[1] for m in maps]


def _log_det(values: Tensor) -> Tensor:
    """Σ log of eigenvalues or pivots; -inf where one is 0 to rounding."""
    return torch.where(values < _SINGULAR, -torch.inf, values.clamp_min(_SINGULAR).log()).sum()


def _log_det_bias(features: int, freedom: int | None) -> Tensor:
    """E log det Σ̂ - log det Σ of the first p features, p = 0 .. features, float64; 0 for an exact covariance."""
    bias = torch.zeros(features + 1, dtype=torch.float64)
    if freedom is not None:
        half = (freedom - torch.arange(features, dtype=torch.float64)) / 2
        bias[1:] = (torch.digamma(half) - math.log(freedom / 2)).cumsum(0)
    return bias
