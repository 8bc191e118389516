"""``exact``, ``mean_field`` and ``banded`` against first implementations in torch, and one problem by every backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

import diabat
from benchmarks import peers
from benchmarks.case import Build, Call, Case, Peer, Work
from benchmarks.problems import (
    Solve,
    answered,
    couplings,
    differentiated,
    gradients,
    in_a_band,
    moments,
    problem,
)
from diabat.ising import Ising

QUERIES = 512
Way = Callable[[Solve, Ising], Work]
WAYS: dict[str, Way] = {"forward": answered, "gradients": differentiated}


def cases() -> list[Case]:
    """All of them."""
    parts = (small, exact, few_states, exact_reads, variants, causal, mean_field, few_banded, banded)
    return [case for part in parts for case in part()]


def small() -> list[Case]:
    """One problem of 8 spins by each backend: a problem that is built, and from its tensors."""
    few = {"num_replicas": 1, "num_chains": 16, "burn_in": 16, "sweeps": 16}
    options: dict[str, tuple[str, dict[str, Any]]] = {
        "exact": ("exact", {}),
        "mean_field": ("mean_field", {}),
        "dqa": ("dqa", {}),
        "dqa, boltzmann-8": ("dqa", {"schedule": "boltzmann-8"}),
        "tempering": ("tempering", {}),
        "tempering, 16 chains, 16 + 16 sweeps": ("tempering", few),
        "banded, all pairs": ("banded", {}),
        "refine of dqa, 1000 reads": ("refine", {"sampler": "dqa"}),
        "dimod, annealing, 1000 reads": ("dimod", {}),
    }

    def built(name: str) -> Work:
        backend, chosen = options[name]
        return moments(backend, problem(8, h=1.0), **chosen)

    def from_tensors(name: str) -> Call:
        backend, chosen = options[name]
        sampler, ising = diabat.sampler(backend, **chosen), problem(8, h=1.0)
        return lambda: sampler.moments(Ising(ising.fields, ising.matrix), seed=1)

    targets = {"exact": 40e-6, "mean_field": 150e-6, "dqa, boltzmann-8": 120e-6, "banded, all pairs": 400e-6}
    return [
        Case("one problem/of 8 spins", built, list(options), "backend"),
        Case("one problem/from tensors", from_tensors, list(options)[:7], "backend", target=targets),
    ]


def exact() -> list[Case]:
    """Batches that share one J, against a softmax that keeps its tables of J and against products of matrices."""

    def batch(n: int) -> Ising:
        return problem(n, QUERIES if n <= 16 else 64, h=1.0)

    def large(n: int) -> Work:
        return moments("exact", problem(n, 64 if n < 30 else 8, h=1.0))

    both = {
        "softmax": Peer(lambda n: peers.enumeration(batch(n)), {16: 1 / 100, 20: 1 / 250}),
        "half-split": Peer(lambda n: answered(peers.half_split(n), batch(n))),
    }
    by_autograd = {"half-split": Peer(lambda n: differentiated(peers.half_split(n), batch(n)))}
    sizes = (4, 8, 12, 16, 20)
    alone = {"softmax": Peer(lambda n: peers.enumeration(problem(n)), last=20)}
    return [
        Case("exact/one problem", lambda n: moments("exact", problem(n)), (*sizes, 24), "n", "query", alone),
        Case("exact/batch", lambda n: moments("exact", batch(n)), sizes, "n", "query", both),
        Case("exact/gradients", lambda n: gradients("exact", batch(n)), sizes[:4], "n", "query", by_autograd),
        Case("exact/large", large, (24, 30), "n", "query", fresh=True),
    ]


def few_states() -> list[Case]:
    """The public call from tensors, with all its checks, by number of spins and of problems."""
    pairs, sampler = product((4, 6, 8, 10, 12, 14, 16), (1, 8, 64, 512)), diabat.sampler("exact")
    shapes = {f"{n} x {queries}": (n, queries) for n, queries in pairs}
    few = [name for name, (n, queries) in shapes.items() if (queries <= 64 if n <= 8 else queries >= 64)]

    def ours(h: Tensor, J: Tensor) -> Tensor:
        return sampler.moments(Ising(h, J)).probability

    def build(way: Way, solve: Callable[[int], Solve], size: str) -> Call:
        n, queries = shapes[size]
        return way(solve(n), problem(n, queries, h=1.0)).call

    rows = []
    for (name, way), small in zip(WAYS.items(), (1 / 0.45, 1 / 0.8), strict=True):
        targets = {size: small if shapes[size][0] <= 8 else 1 / 0.9 for size in few}
        known = {"all states": peers.every_state, "half-split": peers.half_split}
        theirs = {peer: Peer(partial(build, way, solve), targets) for peer, solve in known.items()}
        own: Build = partial(build, way, lambda _: ours)
        rows.append(Case(f"exact/few states, {name}", own, few, "n x problems", peers=theirs))
    return rows


def exact_reads() -> list[Case]:
    """1,000 reads of each of 64 problems."""

    def ours(n: int) -> Work:
        return Work(partial(diabat.sampler("exact").sample, problem(n, 64, h=1.0), 1000, seed=1), 64_000)

    compared = {"multinomial": Peer(lambda n: peers.multinomial(problem(n, 64, h=1.0), 1000), 2.0)}
    return [Case("exact/reads", ours, (4, 8, 12, 16), "n", "read of a problem", compared)]


def variants() -> list[Case]:
    """Correlations against marginals alone; a J of their own against a shared one."""
    shared, own = (partial(problem, queries=QUERIES, h=1.0, own=each) for each in (False, True))

    def solved(n: int, way: Callable[[Ising], Work], make: Callable[[int], Ising]) -> Work:
        return way(make(n))

    pairs = partial(moments, "exact", correlations=True)
    ways: dict[str, Callable[[Ising], Work]] = {
        "forward": partial(moments, "exact"), "gradients": partial(gradients, "exact"), "correlations": pairs,
    }  # fmt: skip
    without = {"without": Peer(lambda n: moments("exact", shared(n)), 1.5)}
    rows = [Case("exact/correlations", lambda n: pairs(shared(n)), (4, 8, 12, 16), "n", "query", without)]
    for name, way in ways.items():
        compared = {"shared J": Peer(partial(solved, way=way, make=shared), dict.fromkeys((4, 8, 12), 1.5))}
        build: Build = partial(solved, way=way, make=own)
        rows.append(Case(f"exact/own J, {name}", build, (4, 8, 12, 16), "n", "query", compared))
    return rows


def causal() -> list[Case]:
    """Forward and backward through causal windows of 16 positions, 64 sequences, against two first implementations."""
    T, sequences = 16, 64
    mask = torch.ones(T, T, dtype=torch.bool).tril()

    def windows() -> Ising:
        flat = problem(T, sequences * T, h=1.0)
        return Ising(flat.fields.reshape(sequences, T, T), flat.couplings, mask)

    def prefixes(h: Tensor, J: Tensor) -> Tensor:
        """2^(i+1) states for position i."""
        rows = [peers.softmax_marginals(h[:, i, : i + 1], J[: i + 1, : i + 1]) for i in range(T)]
        return torch.stack([torch.nn.functional.pad(row, (0, T - row.shape[1])) for row in rows], 1)

    def masked(h: Tensor, J: Tensor) -> Tensor:
        """2^T states for every position."""
        visible = mask.to(h)
        rows = [peers.softmax_marginals(h[:, i] * v, J * v[:, None] * v) for i, v in enumerate(visible)]
        return torch.stack(rows, 1) * visible

    def by(probabilities: Solve) -> Build:
        return lambda _: differentiated(probabilities, windows()).call

    compared = {"2^T states": Peer(by(masked), 1 / 30), "2^(i+1) states": Peer(by(prefixes))}
    return [
        Case("exact/causal window", lambda _: gradients("exact", windows()).call, (T,), "T", peers=compared)
    ]


def mean_field() -> list[Case]:
    """The whole public call, from tensors, against a damped iteration with an adjoint in torch; std J √n = .3."""
    sampler = diabat.sampler("mean_field")

    def ours(h: Tensor, J: Tensor) -> Tensor:
        return sampler.moments(Ising(h, J)).probability

    def build(n: int, way: Way, solve: Solve, own: bool) -> Work:
        return way(solve, problem(n, 64, g=0.3, h=1.0, own=own))

    rows, sizes = list[Case](), (8, 16, 32, 64, 128, 256, 1024)
    for own, (end, way) in product((False, True), {"": answered, ", gradients": differentiated}.items()):
        name, taken = f"mean_field/{'own' if own else 'one'} J{end}", sizes[: 6 if own else 7]
        target = {n: 1 / (0.9 if n <= 256 else 0.7) for n in taken}
        theirs: Build = partial(build, way=way, solve=peers.DampedFixedPoint.apply, own=own)
        by: Build = partial(build, way=way, solve=ours, own=own)
        rows.append(Case(name, by, taken, "n", "problem", {"damped iteration": Peer(theirs, target)}))
    return rows


def few_banded() -> list[Case]:
    """The public call from tensors: a chain against messages in torch, wider bands against enumeration."""
    sizes = {
        f"{n}, {w}, {queries}": (n, w, queries) for n, w, queries in ((8, 1, 1), (16, 3, 1), (16, 3, 64))
    }
    chain, *bands = sizes

    def by(backend: str, width: int) -> Solve:
        sampler = diabat.sampler(backend, **({"bandwidth": width} if backend == "banded" else {}))
        return lambda h, J: sampler.moments(Ising(h, J)).probability

    def build(way: Way, solve: Callable[[int], Solve], size: str) -> Call:
        n, width, queries = sizes[size]
        return way(solve(width), in_a_band(queries, n, width)).call

    rows = []
    for name, way in WAYS.items():
        messages = {"messages": Peer(partial(build, way, lambda _: peers.chain_messages), 1 / 0.8)}
        enumeration = {"exact": Peer(partial(build, way, partial(by, "exact")), 1.0)}
        ours: Build = partial(build, way, partial(by, "banded"))
        rows += [
            Case(f"banded/one chain, {name}", ours, [chain], "n, w, problems", peers=messages),
            Case(f"banded/few spins, {name}", ours, bands, "n, w, problems", peers=enumeration),
        ]
    return rows


def banded() -> list[Case]:
    """64 of 512 spins by the width of the band; causal windows; the width at which enumeration is left."""

    def sequences(width: int) -> Ising:
        flat = in_a_band(16 * 128, 128, width)
        return Ising(flat.fields.reshape(16, 128, 128), flat.couplings, torch.ones(128, 128).bool().tril())

    def by_autograd(width: int) -> Call:
        """Twice through log Z, in float64."""
        ising = in_a_band(64, 512, width)
        h, J = (t.double().requires_grad_() for t in (ising.fields, couplings(ising)))
        v = torch.randn(h.shape, generator=torch.Generator().manual_seed(1))

        def run() -> tuple[Tensor, ...]:
            log_z = peers.transfer_matrix_log_z(h, J, width).sum()
            (p,) = torch.autograd.grad(log_z, h, create_graph=True)
            return torch.autograd.grad((v * (1 + p) / 2).sum(), (h, J))

        return run

    def whole(make: Callable[[int], Ising], by: Any) -> Build:
        return lambda width: by("banded", make(width), bandwidth=width).call

    long, few = partial(in_a_band, 64, 512), partial(in_a_band, 64, 16)
    enumeration = {"exact": Peer(lambda w: moments("exact", few(w)).call)}
    autograd = {"autograd in torch": Peer(by_autograd, 1 / 20, last=8)}
    return [
        Case("banded/64 of 512 spins", whole(long, moments), (4, 8, 10), "w"),
        Case("banded/64 of 512 spins, gradients", whole(long, gradients), (4, 8, 10), "w", peers=autograd),
        Case("banded/16 windows of 128", whole(sequences, moments), (8,), "w"),
        Case("banded/16 windows of 128, gradients", whole(sequences, gradients), (8,), "w"),
        Case("banded/64 of 16 spins", whole(few, moments), (2, 4, 8), "w", peers=enumeration),
    ]
