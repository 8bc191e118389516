r"""Weighted mean interaction of all pairs over K coalitions, in memory of K n + n² instead of K n².

Let ε_i = +1 where player i is not in the coalition C and -1 where it is, S = Σ_{i ∈ C} V_i,

    Q = v(C),    R_i = v(C with i toggled) = f(‖S + ε_i V_i‖),    T_ij = f(‖S + ε_i V_i + ε_j V_j‖).

Of the four coalitions in Δ_ij(C \ {i,j}) one is C, two differ from it by one player and one by two, whatever C is:

    Δ_ij = ε_i ε_j (T_ij - R_i - R_j + Q),
    ‖S + ε_i V_i + ε_j V_j‖² = ‖S‖² + t_i + t_j + 2 ε_i ε_j G_ij,    t_i = 2 ε_i S·V_i + G_ii

so that one root per pair and coalition is all there is to compute.  On the CPU compiled code sums over the coalitions
of a few pairs at a time (``pair_kernel``).  On other devices the sum over k runs in tiles, with a running maximum of
the log-weights.  The backward pass computes the roots again.  Second derivatives, and the transforms of torch.func,
keep all K n² of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from diabat.attention.compiled_passes import CompiledPasses
from diabat.attention.games import estimate
from diabat.attention.games.compiled_pairs import CompiledPairs
from diabat.attention.games.estimate import Estimate, Temperature, inverse_temperature
from diabat.attention.games.pair_tile import TILE, Coalitions, Values, interactions
from diabat.attention.games.value_games import Around, FunctionGame, NormGame
from diabat.compute.memory import require_memory
from diabat.samplers.folding import transformed

# Of the graph of second derivatives, forward and backward, for each pair and coalition.
_NUMBERS_PER_ROOT = 40


def pair_means(values: Values, coalitions: Coalitions) -> tuple[Tensor, Tensor]:
    r"""Σ_k w_k Δ_ij(C_k \ {i,j}) of every pair, and the log of the normaliser of the weights.

    w_k = 1/K, or w_k ∝ exp(v(C_k \ {i,j})/γ)/p with Gibbs weights.  Differentiable in all ``values``.

    Returns:
        [N, n, n], symmetric, zero on the diagonal and where there is no player; and log Σ_k exp(v/γ)/p [N, n, n] of
        pairs j < i, detached, of no meaning for uniform weights.
    """
    if transformed():
        return _smooth_means(values, coalitions)
    passes = _Passes(coalitions)
    [mean] = passes(*values)
    return mean, passes.normaliser


def _smooth_means(values: Values, coalitions: Coalitions) -> tuple[Tensor, Tensor]:
    """The same by operators that autograd differentiates again and again; ValueError if roots do not fit in memory."""
    size = values.change.numel() * values.change.shape[-1] * values.change.itemsize
    require_memory(_NUMBERS_PER_ROOT * size, "second derivatives of sampled interactions", "vectors")
    delta, logits = interactions(values, coalitions)
    if logits is None:
        mean, normaliser = delta.mean(1), torch.zeros_like(values.gram)
    else:
        mean, normaliser = (logits.softmax(1) * delta).sum(1), logits.detach().logsumexp(1)
    return torch.where(_pairs(coalitions), (mean + mean.mT) / 2, 0), normaliser


@torch.no_grad()
def pair_errors(
    values: Values, coalitions: Coalitions, mean: Tensor, normaliser: Tensor, unit: int
) -> tuple[Tensor, Tensor]:
    """Σ_units (Σ_k w_k (Δ_k - mean))² and Σ_k w_k², each [N, n, n] and symmetric: a second pass."""
    if _compiled(values):
        return CompiledPairs(values, coalitions).errors(mean, normaliser, unit)
    squares, weight = torch.zeros_like(mean), torch.zeros_like(mean)
    for at in _tiles(values, unit):
        rows = at[0]
        delta, logits = interactions(values.part(at), coalitions.part(at))
        w = _weights(values, logits, normaliser[rows, None])
        deviation = w * (delta - mean[rows, None])
        squares[rows] += deviation.unflatten(1, (-1, unit)).sum(2).square().sum(1)
        weight[rows] += (w**2).expand(delta.shape).sum(1)
    return (squares + squares.mT) / 2, (weight + weight.mT) / 2


class _Passes(CompiledPasses):
    """The mean of the values of coalitions, compiled or by tiles."""

    def __init__(self, coalitions: Coalitions) -> None:
        self._coalitions = coalitions

    def results(self, *parts: Any) -> tuple[Tensor, ...]:
        """As in the base class; keeps what the backward pass needs."""
        values = Values(*parts)
        if _compiled(values):
            self._pairs = CompiledPairs(values, self._coalitions)
            self.mean, self.normaliser = self._pairs.means()
        else:
            self.mean, self.normaliser = _tiled_means(values, self._coalitions)
        return (self.mean.clone(),)

    def gradient(self, terms: Any, wanted: Any, *cotangents: Any) -> Values:
        """As in the base class."""
        values, coalitions, [cotangent] = Values(*terms), self._coalitions, cotangents
        if _compiled(values):
            return self._pairs.gradient(cotangent, self.mean, self.normaliser)
        gradient = Values(*(torch.zeros_like(part) for part in values))
        u = torch.where(_pairs(coalitions), (cotangent + cotangent.mT) / 2, 0)
        for at in _tiles(values):
            rows = at[0]
            leaves = Values(*(part.detach().requires_grad_() for part in values.part(at)))
            with torch.enable_grad():
                delta, logits = interactions(leaves, coalitions.part(at))
                # dJ = Σ_k w_k (dΔ_k + (Δ_k - J) dℓ_k) with ℓ the log-weights, which uniform weights do not have.
                moved = delta
                if logits is not None:
                    moved = delta + (delta - self.mean[rows, None]).detach() * logits
            w = _weights(values, logits, self.normaliser[rows, None])
            weights = (u[rows, None] * w).expand(moved.shape)
            slopes = torch.autograd.grad(moved, leaves, weights, materialize_grads=True)
            for total, part in zip(gradient.part(at), slopes, strict=True):
                total += part
        return gradient

    def by_operators(self, *parts: Any) -> tuple[Tensor, ...]:
        """As in the base class."""
        return _smooth_means(Values(*parts), self._coalitions)[:1]


def _compiled(values: Values) -> bool:
    return values.gram.device.type == "cpu" and values.gram.numel() > 0 and not transformed()


def _pairs(coalitions: Coalitions) -> Tensor:
    """Where there are two players, bool [N, n, n]."""
    there = coalitions.sign[:, 0] != 0
    diagonal = torch.eye(there.shape[-1], dtype=torch.bool, device=there.device)
    return (there[:, :, None] & there[:, None, :]) & ~diagonal


def _tiled_means(values: Values, coalitions: Coalitions) -> tuple[Tensor, Tensor]:
    mean, normaliser = torch.zeros_like(values.gram), torch.zeros_like(values.gram)
    if coalitions.log_proposal is None:
        for at in _tiles(values):
            mean[at[0]] += interactions(values.part(at), coalitions.part(at))[0].sum(1)
        mean /= values.square.shape[1]
    else:
        _gibbs_mean(values, coalitions, mean, normaliser)
    return torch.where(_pairs(coalitions), (mean + mean.mT) / 2, 0), normaliser


def _gibbs_mean(values: Values, coalitions: Coalitions, mean: Tensor, normaliser: Tensor) -> None:
    """Self-normalised mean with the running maximum of a streamed softmax, written into the last two."""
    largest, total = torch.full_like(mean, -torch.inf), torch.zeros_like(mean)
    for at in _tiles(values):
        rows = at[0]
        delta, logits = interactions(values.part(at), coalitions.part(at))
        assert logits is not None
        before, largest[rows] = largest[rows].clone(), torch.maximum(largest[rows], logits.amax(1))
        w, shrink = (logits - largest[rows, None]).exp(), (before - largest[rows]).exp()
        total[rows] = total[rows] * shrink + w.sum(1)
        mean[rows] = mean[rows] * shrink + (delta * w).sum(1)
    mean /= total
    normaliser.copy_(largest + total.log())


def _weights(values: Values, logits: Tensor | None, normaliser: Tensor) -> Tensor:
    """w_k, of Gibbs weights from their logs and the log of the normaliser."""
    if logits is None:
        return values.gram.new_tensor(1 / values.square.shape[1])
    return (logits.detach() - normaliser).exp()


def _tiles(values: Values, unit: int = 1) -> Iterator[tuple[slice, slice]]:
    """Slices of problems and of coalitions, the latter in multiples of ``unit``."""
    problems, count, n = values.change.shape
    pairs = max(1, n * n)
    few = max(1, TILE // (pairs * unit))  # problems in a tile
    step = unit * max(1, TILE // (pairs * unit * min(few, max(1, problems))))
    for first in range(0, problems, few):
        for k in range(0, count, step):
            yield slice(first, first + few), slice(k, k + step)


def of_norm_pairs(
    game: NormGame, around: Around, beta: Tensor, log_proposal: Tensor | None, unit: int, diagnostics: bool
) -> Estimate:
    """Estimate all pairs from values around K coalitions, 1/γ, and log p [*batch, K, 3] of Gibbs-weighted contexts."""
    if log_proposal is not None:
        log_proposal = log_proposal.to(game.gram)
    values, coalitions = game.pair_values(around, beta, log_proposal)
    count, n = values.change.shape[-2:]
    mean, normaliser = pair_means(values, coalitions)
    value = mean.reshape(*game.batch_shape, n, n)
    if not diagnostics:
        return Estimate(value, None, None, count)
    squares, weight = pair_errors(values, coalitions, mean.detach(), normaliser, unit)
    real = _pairs(coalitions)
    error = torch.where(real, estimate.standard_error(squares, count // unit), 0)
    effective = torch.where(real, 1 / weight, count)
    return Estimate(value, error.reshape(value.shape), effective.reshape(value.shape), count)


def of_function_pairs(
    game: FunctionGame, inside: Tensor, temperature: Temperature, log_proposal: Tensor | None, unit: int,
    diagnostics: bool,
) -> Estimate:  # fmt: skip
    """Estimate all pairs likewise, from about K n²/2 values of the function."""
    n = inside.shape[-1]
    i, j = torch.triu_indices(n, n, offset=1, device=inside.device)
    whole, single = game.toggles(inside)
    double = game.double_toggles(inside, i, j)  # [*batch, K, P]
    sign = 1 - 2 * inside.to(double)
    delta = double - single[..., i] - single[..., j] + whole[..., None]
    delta = delta * sign[:, i] * sign[:, j]
    logits = None
    if log_proposal is not None:
        in_i, in_j = inside[:, i], inside[:, j]
        alone = torch.where(in_i, single[..., i], torch.where(in_j, single[..., j], whole[..., None]))
        context = torch.where(in_i & in_j, double, alone)
        taken = in_i.long() + in_j.long()
        beta = inverse_temperature(temperature, double)[..., None, None]
        logits = beta * context - log_proposal.to(double).gather(-1, taken)
    flat = estimate.weighted_mean(delta, logits, unit=unit, diagnostics=diagnostics)

    def square(pairs: Tensor, diagonal: float = 0.0) -> Tensor:
        full = torch.full((*pairs.shape[:-1], n, n), diagonal, dtype=pairs.dtype, device=pairs.device)
        full[..., i, j] = full[..., j, i] = pairs
        return full

    if flat.standard_error is None or flat.effective_samples is None:
        return Estimate(square(flat.value), None, None, flat.num_samples)
    error, effective = square(flat.standard_error), square(flat.effective_samples, float(flat.num_samples))
    return Estimate(square(flat.value), error, effective, flat.num_samples)
