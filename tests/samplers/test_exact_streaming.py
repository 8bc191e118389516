from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from diabat.ising import Ising
from diabat.samplers import UnsupportedError
from diabat.samplers.exact import ExactSampler, half_split, sampler
from diabat.testing.problems import causal_problem, make_problem

# One query after the other under this budget.
FORGETFUL = ExactSampler(memory_budget_mb=1e-6)


@pytest.fixture(autouse=True)
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of few spins, too, are solved by halves."""
    monkeypatch.setattr(sampler, "suits_kernel", lambda *shape: False)


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Set the size of a tile; the list receives the number of tiles of every pass, so that a test can ask."""
    seen: list[int] = []
    original = half_split.Split.blocks

    def spy(self: half_split.Split) -> list[slice]:
        seen.append(len(original(self)))
        return original(self)

    def of_size(size: int) -> list[int]:
        monkeypatch.setattr(half_split, "_TILE_BYTES", size)
        seen.clear()
        return seen

    monkeypatch.setattr(half_split.Split, "blocks", spy)
    return of_size


def problems() -> dict[str, Ising]:
    return {
        "shared": make_problem((5,), 12, seed=1),
        "three_body": make_problem((3,), 11, seed=2, three_body=0.2),
        "heads": make_problem((2, 3), 12, lead="heads", seed=3),
        "causal": causal_problem(11, seed=4),
        "strong": make_problem((4,), 12, seed=5, fields=3.0, couplings=2.0),
        "odd_block": make_problem((2,), 13, seed=6),
    }


# 1 byte makes a tile of every row; 10 kB cut the rows into tiles that do not divide them.
@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("backend", [ExactSampler(), FORGETFUL], ids=["whole", "divided"])
@pytest.mark.parametrize("name", problems())
def test_tiles_equal_the_whole(
    tiles: Callable[[int], list[int]], name: str, backend: ExactSampler, size: int
) -> None:
    ising = problems()[name]
    seen = tiles(1 << 30)
    whole = ExactSampler().moments(ising, correlations=True)
    assert max(seen) == 1
    seen = tiles(size)
    tiled = backend.moments(ising, correlations=True)
    assert max(seen) > 1
    for attribute in ("probability", "correlation", "log_partition"):
        got, want = getattr(tiled, attribute), getattr(whole, attribute)
        assert (got - want).abs().max() < 1e-12 * max(1.0, float(want.abs().max()))


def test_the_memory_budget_divides_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of one query have 1.3 kB at n = 10; both passes form W for every part."""
    formed: list[int] = []
    original = half_split.Split.tiles

    def spy(self: half_split.Split) -> Iterator[tuple[slice, Tensor]]:
        formed.append(1)
        return original(self)

    monkeypatch.setattr(half_split.Split, "tiles", spy)
    ising = make_problem((3,), 10, seed=8)
    for budget, passes in ((1.0, 2), (1e-9, 6)):
        formed.clear()
        fields = ising.fields.clone().requires_grad_()
        found = ExactSampler(memory_budget_mb=budget).moments(Ising(fields, ising.couplings))
        found.probability.pow(2).sum().backward()
        assert len(formed) == passes


def test_tiles_in_float32_keep_the_precision(tiles: Callable[[int], list[int]]) -> None:
    ising = make_problem((4,), 12, seed=5, fields=3.0, couplings=2.0, dtype=torch.float32)
    double = ExactSampler().moments(Ising(ising.fields.double(), ising.couplings.double()))
    seen = tiles(1000)
    tiled = FORGETFUL.moments(ising)
    assert max(seen) > 4
    assert float((tiled.probability / double.probability - 1).abs().max()) < 1e-5


def test_samples_of_tiles_are_the_same_draw(tiles: Callable[[int], list[int]]) -> None:
    ising = make_problem((3,), 12, seed=7)
    whole = ExactSampler().sample(ising, 300, seed=5)
    seen = tiles(1000)
    # The scratch memory of sampling is the budget, too: one read at a time.
    tiled = FORGETFUL.sample(ising, 300, seed=5)
    assert max(seen) > 4
    assert torch.equal(whole.spins, tiled.spins)


def test_a_large_problem_without_couplings(tiles: Callable[[int], list[int]]) -> None:
    """n = 20 in tiles of 512 kB: the marginals are the sigmoids of the fields."""
    fields = torch.randn(2, 20, generator=torch.Generator().manual_seed(1))
    seen = tiles(1 << 19)
    moments = FORGETFUL.moments(Ising(fields, torch.zeros(20, 20)))
    assert max(seen) > 4
    # The promise for float32 is 1e-5 relative in every probability.
    assert float((moments.probability.double() / torch.sigmoid(2 * fields.double()) - 1).abs().max()) < 1e-5
    log_z = (2 * fields.double().cosh()).log().sum(-1)
    assert moments.log_partition.double().tolist() == pytest.approx(log_z.tolist(), rel=1e-6)


@pytest.mark.parametrize("call", ["moments", "sample"])
@pytest.mark.parametrize(
    ("n", "message"),
    [
        (
            60,
            r"sampler 'exact' expects .* max_seconds = 600, got 60 visible spins in 3 problems, which need "
            r"about \d.* years and \d+ MB; use a sampling backend or raise max_seconds\.",
        ),
        (40, r"got 40 visible spins .* need about [\d.]+ (hours|minutes) and \d+ MB"),
    ],
)
def test_too_many_spins_are_refused_with_time_and_memory(call: str, n: int, message: str) -> None:
    ising, sampler = Ising(torch.zeros(3, n)), ExactSampler()
    with pytest.raises(UnsupportedError, match=message):
        _ = sampler.moments(ising) if call == "moments" else sampler.sample(ising, 2)


def test_the_limit_is_the_time_allowed() -> None:
    ising = Ising(torch.zeros(2, 18))
    with pytest.raises(UnsupportedError, match=r"max_seconds = 1e-06"):
        ExactSampler(max_seconds=1e-6).moments(ising)
    assert ExactSampler(max_seconds=60).moments(ising).probability.shape == (2, 18)


def test_invisible_spins_do_not_count() -> None:
    visible = torch.arange(60) < 3
    p = ExactSampler().moments(Ising(torch.zeros(60), visible=visible)).probability
    assert p.tolist() == [0.5] * 3 + [0.0] * 57


def test_state_probabilities_have_their_own_limit() -> None:
    with pytest.raises(UnsupportedError, match="state probabilities need at most 20 spins, got 21"):
        ExactSampler().state_probabilities(Ising(torch.zeros(21)))
    hidden = Ising(torch.zeros(2), visible=torch.tensor([True, False]))
    with pytest.raises(UnsupportedError, match="visible: state probabilities need every spin visible"):
        ExactSampler().state_probabilities(hidden)


@pytest.mark.parametrize("option", ["memory_budget_mb", "max_seconds"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_options_must_be_positive(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option}: expected a positive finite number, got {value}"):
        ExactSampler(**{option: value})


class Products(TorchDispatchMode):
    """Counts the products of one shape, and the places taken for them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.count, self.places = shape, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and tuple(out.shape) == self.shape:
            name = str(func)
            self.count += "bmm" in name
            self.places += name in ("aten.bmm.default", "aten.empty_like.default")
        return out


def test_the_backward_pass_takes_no_memory_anew_for_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is freed is not found again by malloc: a process grew by the size of W, batch x heads x 2^n."""
    monkeypatch.setattr(half_split, "_TILE_BYTES", 1 << 14)
    ising = make_problem((4,), 12, lead="per_problem", seed=7, dtype=torch.float32)  # W is [4, 64, 64]
    h, J = ising.fields.requires_grad_(), ising.couplings.requires_grad_()
    p = FORGETFUL.moments(Ising(h, J)).probability
    with Products((4, 16, 64)) as seen:
        p.square().sum().backward()
    assert (seen.count, seen.places) == (4, 1)
