"""A backend of somebody else: what the documents show is complete, short, and stands the suite."""

from __future__ import annotations

import copy
import io
import pickle
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diabat
from diabat.ising import Ising
from diabat.samplers import Capabilities, Sampler, Samples
from diabat.samplers.exact import ExactSampler
from diabat.samplers.state import reset_chains, sampler_parameters
from diabat.testing import ReferenceSampler
from diabat.testing.problems import make_problem

ROOT = Path(__file__).parents[2]


def shown(page: str) -> str:
    """The example of a complete backend."""
    found = re.findall(r"^ *```python\n(.*?)^ *```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (textwrap.dedent(block) for block in found if "class Enumerated" in block)
    return block


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/backends.md"])
def test_the_backend_that_is_shown_is_complete_and_has_under_ten_lines(page: str) -> None:
    block = shown(page)
    lines = block[block.index("class Enumerated") : block.index("check_sampler(Enumerated())")].splitlines()
    assert sum(bool(line.strip()) for line in lines) < 10
    names: dict[str, Any] = {}
    exec(block, names)  # holds it against the suite
    own = names["Enumerated"]()
    assert (own.capabilities.max_spins, own.options, repr(own)) == (12, {}, "Enumerated()")


def test_both_pages_show_the_same_backend() -> None:
    assert shown("CONTRIBUTING.md") == shown("docs/backends.md")


class Biased(Sampler):
    """Learnable numbers, a base and chains; its constructor leaves ``super().__init__()`` out."""

    name = "biased"
    capabilities = Capabilities(max_spins=6)

    def __init__(self, scale: float = 1.0) -> None:
        self.base = ExactSampler()
        self.scale = nn.Parameter(torch.tensor(scale))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    @property
    def remembers(self) -> bool:
        return True

    def reset(self) -> None:
        self.seen = torch.zeros(1, dtype=torch.int64)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        self.seen = self.seen + 1
        scaled = Ising(ising.fields * self.scale.detach(), ising.couplings, ising.visible, check=False)
        return self.base.sample(scaled, num_reads, seed=seed)


class Late(Biased):
    """Calls ``super().__init__()`` after it has set attributes."""

    def __init__(self) -> None:
        self.first = nn.Parameter(torch.zeros(2))
        super().__init__(2.0)


class WithBase(Sampler):
    """Calls ``super().__init__()`` last, which must forget nothing."""

    name = "with_base"
    capabilities = Capabilities()

    def __init__(self, base: Sampler) -> None:
        self.base = base
        super().__init__()


def test_a_constructor_need_not_call_its_parents() -> None:
    assert dict(Biased(3.0).named_parameters()).keys() == {"scale"}
    assert [name for name, _ in Late().named_parameters()] == ["first", "scale"]
    assert isinstance(WithBase(Biased()).base, Biased)
    assert WithBase(Biased()).remembers
    assert not WithBase(ExactSampler()).remembers
    assert list(WithBase(Biased()).state_dict()) == ["base.scale", "base.seen"]


def test_somebody_elses_parameters_are_the_layers_once() -> None:
    own = Biased()
    layer = diabat.BoltzmannAttention(4, 2, 3, sampler=own)
    stack = nn.Sequential(layer, diabat.BoltzmannAttention(4, 2, 3, sampler=own))
    names = [name for name, _ in stack.named_parameters() if "scale" in name]
    assert names == ["0.sampler.scale", "1.sampler.scale"]
    assert (
        len(sampler_parameters(stack)) == 2
    )  # each layer has a copy, the sampler that was given none of them
    assert all(p is not own.scale for p in stack.parameters())
    layer(torch.randn(1, 3, 4))
    assert int(layer.sampler.state_dict()["seen"]) == 1
    assert int(own.state_dict()["seen"]) == 0


def test_somebody_elses_memory_is_taken_away_and_put_back() -> None:
    own = Biased()
    own.sample(make_problem((), 3), 2, seed=1)
    with reset_chains(nn.ModuleList([WithBase(own)])):
        assert int(own.state_dict()["seen"]) == 0
        own.sample(make_problem((), 3), 2, seed=1)
        own.sample(make_problem((), 3), 2, seed=1)
    assert int(own.state_dict()["seen"]) == 1


def test_copies_share_nothing() -> None:
    own = Biased(2.0)
    stored = io.BytesIO()
    pickle.dump(own, stored)
    for other in (copy.deepcopy(own), pickle.loads(stored.getvalue())):
        assert torch.equal(other.scale, own.scale)
        assert other.options == own.options == {"scale": 2.0}
        with torch.no_grad():
            other.scale.zero_()
        assert torch.equal(own.scale, torch.tensor(2.0))
        ising = make_problem((2,), 3)
        assert torch.equal(own.sample(ising, 5, seed=1).spins, Biased(2.0).sample(ising, 5, seed=1).spins)


def test_a_sampler_that_is_compared_by_value_is_refused() -> None:
    @dataclass
    class ByValue(ReferenceSampler):
        level: int = 1

    with pytest.raises(
        TypeError, match=r"ByValue: expected a sampler that is compared by identity.*eq=False"
    ):
        ByValue()


def test_capabilities_are_an_attribute_or_a_property() -> None:
    class Fields(Sampler):
        name = "fields"
        capabilities = Capabilities(max_spins=3)

        def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
            drawn: Tensor = torch.rand(
                num_reads, *ising.fields.shape, generator=torch.Generator().manual_seed(seed)
            )
            p = torch.sigmoid(2 * ising.fields) * ising.visible_mask
            return Samples((2 * (drawn < p) - 1).to(torch.int8), ising.visible_mask)

    with pytest.raises(diabat.UnsupportedError, match="accepts at most 3 visible spins, got 4"):
        Fields().sample(make_problem((3,), 4, lead="per_problem"), 2)

    class Nothing(Sampler):
        name = "nothing"

    with pytest.raises(TypeError, match="capabilities"):
        Nothing()  # type: ignore[abstract]
