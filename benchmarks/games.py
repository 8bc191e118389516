"""Games on tokens: indices of all tokens and pairs, layers of NeuroGame, the Möbius transform."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import diabat
from benchmarks import peers
from benchmarks.case import Build, Call, Case, Peer, Work
from diabat.attention import games

BATCH, PLAYERS, DIMENSION, COALITIONS, TEMPERATURE = 16, 128, 768, 25, 0.25
WEIGHTINGS = ("gibbs", "uniform")


def cases() -> list[Case]:
    """All of them."""
    return [*indices(), *pairs(), *mobius(), *layers()]


def indices() -> list[Case]:
    """φ, β and the interactions of all pairs, against Algorithm 1 of the paper on a few tokens and pairs."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, PLAYERS, DIMENSION, generator=g)
    W = torch.randn(DIMENSION, DIMENSION, generator=g) / 27.7

    def estimate(weighting: Any, x: Tensor, W: Tensor) -> list[Tensor]:
        game = games.NormGame(x @ W.T)
        options: dict[str, Any] = {"temperature": TEMPERATURE, "seed": 0, "diagnostics": False}
        samples = (games.sample_shapley, games.sample_banzhaf, games.sample_interaction)
        return [sample(game, COALITIONS, weighting=weighting, **options).value for sample in samples]

    def forward(weighting: str) -> Call:
        return torch.no_grad()(partial(estimate, weighting, x, W))

    def gradient(weighting: str) -> Call:
        def run() -> None:
            leaves = x.clone().requires_grad_(), W.clone().requires_grad_()
            torch.stack([part.square().sum() for part in estimate(weighting, *leaves)]).sum().backward()

        return run

    compared = {"Algorithm 1": Peer(lambda _: peers.algorithm_1(x @ W.T, COALITIONS, TEMPERATURE), 1 / 100)}
    return [
        Case("games/all pairs", forward, WEIGHTINGS, "", peers=compared),
        Case("games/all pairs, gradients", gradient, WEIGHTINGS, ""),
    ]


def pairs() -> list[Case]:
    """The interactions of all pairs alone: time of a pair and coalition at n = 256, K = 15; memory of one problem."""
    batch, n, count = 32, 256, 15

    def interact(V: Tensor, count: int, weighting: Any = "gibbs") -> None:
        drawn = {"weighting": weighting, "seed": 0, "diagnostics": False}
        interactions = games.sample_interaction(games.NormGame(V), count, **drawn)
        if V.requires_grad:
            interactions.value.square().sum().backward()

    def rate(weighting: str, dtype: torch.dtype, backward: bool) -> Work:
        V = (torch.randn(batch, n, 16, dtype=dtype) / 32).requires_grad_(backward)
        return Work(partial(interact, V, count, weighting), batch * count * n * (n - 1) / 2)

    def large(size: str) -> Call:
        n, count = (int(word) for word in size.split(" x "))
        interact(torch.randn(1, 8, 64).requires_grad_(), 4)  # compiles
        return partial(interact, torch.randn(1, n, 64).requires_grad_(), count)

    rates = []
    for dtype in (torch.float32, torch.float64):
        for backward in (False, True):
            build: Build = partial(rate, dtype=dtype, backward=backward)
            name = f"games/pairs alone, {str(dtype)[6:]}{', gradients' * backward}"
            rates.append(Case(name, build, WEIGHTINGS, "", "pair and coalition"))
    sizes = ("1024 x 32", "1024 x 128", "1024 x 512", "2048 x 32")
    return [*rates, Case("games/memory of n x K", large, sizes, "", fresh=True)]


def layers() -> list[Case]:
    """Forward and backward of NeuroGame attention against softmax attention; pooling with exact marginals."""
    width, heads = 64, 4

    def step(layer: torch.nn.Module, x: Tensor, *others: Any, **options: Any) -> Callable[[], None]:
        def run() -> None:
            y = layer(x, *others, **options)
            (y[0] if isinstance(y, tuple) else y).square().sum().backward()

        return run

    def tokens(size: int | str) -> Tensor:
        """Sequences of T, or of "B x T" tokens."""
        batch, T = (8, size) if isinstance(size, int) else (int(word) for word in size.split(" x "))
        return torch.randn(batch, T, width)

    def neurogame(size: int | str, weighting: Any) -> Call:
        return step(diabat.NeuroGameAttention(width, heads, weighting=weighting), tokens(size))

    def softmax(size: int | str) -> Call:
        x = tokens(size)
        return step(torch.nn.MultiheadAttention(width, heads, batch_first=True), x, x, x, need_weights=False)

    def exact(T: int) -> Call:
        return step(diabat.NeuroGameAttention(32, heads, sampler="exact"), torch.randn(32, T, 32))

    compared, plain = ({"MultiheadAttention": Peer(softmax, target)} for target in ({256: 40.0}, None))
    short, targets = ("1 x 4", "1 x 16", "32 x 4", "32 x 16"), {"1 x 4": 4e-3, "1 x 16": 4e-3}
    rows = [Case("NeuroGame/exact marginals", exact, (4, 8, 12), "T", "step")]
    for name in WEIGHTINGS:
        build: Build = partial(neurogame, weighting=name)
        rows += [
            Case(f"NeuroGame/{name}", build, (32, 64, 128, 256), "T", "step", compared),
            Case(f"NeuroGame/{name}, short", build, short, "B x T", "step", plain, targets),
        ]
    return rows


def mobius() -> list[Case]:
    """The transform of a random table."""

    def table(n: int) -> Tensor:
        return torch.randn(1 << n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)

    compared = {"shapiq": Peer(lambda n: peers.shapiq_mobius(table(n)), 1 / 100, "shapiq", last=12)}

    def build(n: int) -> Call:
        return partial(games.mobius, table(n))

    return [Case("games/Möbius transform", build, (10, 16, 20), "players", peers=compared)]
