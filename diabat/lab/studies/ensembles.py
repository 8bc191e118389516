"""Problems on which backends are compared, random or of trained attention, and the comparison with exact answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from diabat.attention.neurogame import NeuroGameAttention, token_ising
from diabat.checks import ArgumentError, check_count
from diabat.compute.loading import preparing
from diabat.compute.memory import require_memory
from diabat.ising import Ising, pack_couplings
from diabat.progress import new_bar
from diabat.report import Row
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import UnsupportedError

T = TypeVar("T")

DEFAULT_STRENGTHS = (0.1, 0.3, 0.6, 1.0, 1.5)
TOKEN_WEIGHTS = (1.0, 8.0)
_ROWS = 4  # queries of a window of trained attention
_WIDTH = 64  # of random tokens

_REPEATS, _REPEAT_BELOW_S = 3, 0.5


@dataclass(frozen=True, eq=False)
class Ensemble:
    """One batch of problems with the name of its family, which members of different strength share.

    ``strength`` is the g of the family; for tokens and recorded attention sqrt(n · mean J²), the g of an SK model of
    that size.
    """

    name: str
    strength: float
    ising: Ising


def sk(
    strengths: Sequence[float] = DEFAULT_STRENGTHS,
    *,
    num_spins: int = 6,
    instances: int = 12,
    queries: int = 4,
    seed: int = 0,
) -> list[Ensemble]:
    """Sherrington-Kirkpatrick models J ~ N(0, g/√n), h ~ N(0, g), standard deviations, g dimensionless.

    The same random numbers are scaled for every strength g, so that a curve over g is smooth.

    Returns:
        One ensemble for each g, float64: fields [instances, queries, n], J [instances, 1, n, n].

    Raises:
        ValueError: If a size is below 1, or a strength is negative or not finite.
    """
    generator = _checked(strengths, num_spins, instances, queries, seed)
    pairs = num_spins * (num_spins - 1) // 2
    h = torch.randn(instances, queries, num_spins, generator=generator, dtype=torch.float64)
    J = torch.randn(instances, 1, pairs, generator=generator, dtype=torch.float64)
    J = pack_couplings(J, num_spins) / math.sqrt(num_spins)
    return [Ensemble("SK", float(g), Ising(g * h, g * J)) for g in strengths]


def ferromagnet(
    strengths: Sequence[float] = DEFAULT_STRENGTHS, *, num_spins: int = 6, queries: int = 48, seed: int = 0
) -> list[Ensemble]:
    """All-to-all ferromagnet J_jk = g/n in random fields h ~ N(0, g), otherwise as :func:`sk`.

    Returns:
        One ensemble for each g, float64: fields [queries, n], J [n, n].
    """
    generator = _checked(strengths, num_spins, 1, queries, seed)
    h = torch.randn(queries, num_spins, generator=generator, dtype=torch.float64)
    J = (1 - torch.eye(num_spins, dtype=torch.float64)) / num_spins
    return [Ensemble("ferromagnet", float(g), Ising(g * h, g * J)) for g in strengths]


def tokens(
    weights: Sequence[float] = TOKEN_WEIGHTS, *, num_spins: int = 6, instances: int = 48, seed: int = 0
) -> list[Ensemble]:
    """Token games v(C) = ‖Σ_{i ∈ C} V_i‖ of random tokens x ~ N(0, 1), as a new NeuroGame layer makes them.

    Fields and J of :class:`diabat.NeuroGameAttention` with one head of 64 dimensions, in evaluation mode: every problem
    has a J of its own.  The same tokens and value weights W_v, multiplied by each of ``weights``, serve all of them.

    Args:
        weights: Factors of W_v; with 1 the layer is new.
        num_spins: Number n of tokens.
        instances: Number of sequences.
        seed: Of tokens and parameters.

    Returns:
        One ensemble for each factor, float64: fields [instances, n], J [instances, n, n]; strength sqrt(n · mean J²).

    Raises:
        ValueError: If a size is below 1, or a factor is negative or not finite.
    """
    generator = _checked(weights, num_spins, instances, 1, seed, name="weights")
    x = torch.randn(instances, num_spins, _WIDTH, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = NeuroGameAttention(_WIDTH, 1).double().eval()
    ensembles, new = [], layer.value.weight.detach().clone()
    for factor in weights:
        with torch.no_grad():
            layer.value.weight.copy_(factor * new)
        why = layer.explain(x)
        h, J = (term[:, 0] for term in token_ising(why.fields, why.interactions, why.temperature))
        ensembles.append(Ensemble("tokens", coupling_strength(Ising(h, J)), Ising(h, J)))
    return ensembles


def _checked(
    strengths: Sequence[float], n: int, instances: int, queries: int, seed: int, name: str = "strengths"
) -> torch.Generator:
    """Refuse bad numbers and ensembles that do not fit into memory; otherwise the generator of the problems."""
    n, instances = check_count("num_spins", n), check_count("instances", instances)
    queries = check_count("queries", queries)
    for g in strengths:
        if not (math.isfinite(g) and g >= 0):
            raise ArgumentError(name, "finite values >= 0", f"{g!r}")
    needed = 8 * (len(strengths) + 2) * instances * n * (n + queries)
    require_memory(needed, f"{instances} x {queries} problems of {n} spins", "instances")
    return torch.Generator().manual_seed(seed)


def coupling_strength(ising: Ising) -> float:
    """Return sqrt(n · mean_{j<k} J_jk²), the g of an SK model with couplings of this size; 0 without J."""
    if ising.edges is not None:
        values = ising.edges.values
    elif ising.matrix is not None:
        values = ising.matrix.flatten(-2) / 2**0.5  # which has every pair twice
    else:
        return 0.0
    return math.sqrt(2 * float(values.double().square().sum(-1).mean()) / max(1, ising.num_spins - 1))


def from_attention(ising: Ising, name: str = "attention") -> Ensemble:
    """The last four queries of each window of a trained attention layer, fields [windows, ..., 4, T].

    The fields of the layer are [windows, ..., T, T] (else ValueError), rows are queries, e.g. [B, H, T, T].
    """
    if ising.fields.ndim < 3:
        got = list(ising.fields.shape)
        raise ArgumentError("fields", "shape [windows, ..., T, T]", got)

    def last(value: Tensor | None, axes: int) -> Tensor | None:
        """Index the axis of queries, before the last ``axes``, where there is one; an axis of size 1 is kept."""
        if value is None or value.ndim <= axes:
            return value
        return value.movedim(-1 - axes, 0)[-_ROWS:].movedim(0, -1 - axes)

    J, K = last(ising.couplings, 2), last(ising.three_body, 3)
    few = Ising(ising.fields[..., -_ROWS:, :], J, last(ising.visible, 1), K)
    return Ensemble(name, coupling_strength(few), few)


def compare(
    backends: Mapping[str, Sampler],
    ensembles: Iterable[Ensemble],
    solve: Callable[[Ensemble], T],
    score: Callable[[Sampler, Ising, T], Iterable[Row]],
    *,
    progress: bool,
) -> list[Row]:
    """Solve every ensemble exactly (``solve``), before any backend runs; then ``score`` every backend on each.

    In a row, ``refused`` is what a backend says that refuses an ensemble, or None.  ArgumentError if an ensemble has no
    exact answer, or there is nothing to compare.
    """
    cases = list(ensembles)
    if not backends or not cases:
        raise ArgumentError("ensembles" if backends else "backends", "at least one", "none")
    rows: list[Row] = []
    with new_bar(shown=progress) as bar:
        answers = [_solved(case, solve) for case in bar.track(cases, description="exact answers")]
        task = bar.add_task("", total=len(cases) * len(backends))
        for case, answer in zip(cases, answers, strict=True):
            for name, backend in backends.items():
                bar.update(task, description=f"{name} on {case.name}, g = {case.strength:.2g}")
                place: Row = {"ensemble": case.name, "strength": case.strength, "backend": name}
                size = {"num_spins": case.ising.num_spins, "queries": case.ising.num_problems}
                try:
                    rows += [place | {"refused": None} | size | r for r in score(backend, case.ising, answer)]
                except UnsupportedError as refusal:
                    rows.append(place | {"refused": str(refusal)} | size)
                bar.advance(task)
    return rows


def _solved(case: Ensemble, solve: Callable[[Ensemble], T]) -> T:
    try:
        return solve(case)
    except UnsupportedError as refusal:
        what = f"'{case.name}' at strength {case.strength:g} with {case.ising.num_spins} spins"
        reason = f"{what} has no exact answer to compare with ({refusal})"
        raise ArgumentError("ensembles", reason) from refusal


def is_analytic(backend: Sampler) -> bool:
    """Whether a backend computes its moments instead of averaging reads; tests it with one spin."""
    return backend.moments(Ising(torch.full((1,), 0.1)), seed=0).num_reads is None


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Wall time in seconds, compilation left out, and result of a call: the fastest of up to three short ones."""
    best = float("inf")
    for _ in range(_REPEATS):
        start = preparing.clock()
        result = call()
        best = min(best, preparing.clock() - start)
        if best > _REPEAT_BELOW_S:
            break
    return best, result
