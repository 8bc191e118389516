"""Ensembles: sizes, scales, seeds, and the choice of recorded queries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from layers import PAPER
from scipy.stats import binom

import diabat
from diabat import BoltzmannAttention, NeuroGameAttention
from diabat.ising import Ising, pack_couplings
from diabat.lab.studies import states
from diabat.lab.studies.ensembles import coupling_strength, ferromagnet, from_attention, sk, tokens
from diabat.samplers.answers import Samples
from diabat.samplers.dqa import DQASampler
from diabat.samplers.exact import ExactSampler
from diabat.testing import ReferenceSampler, brute_force_states
from diabat.testing.problems import causal_problem, make_problem


def test_sk_scales_and_seeds() -> None:
    # Standard deviations of N normal numbers: relative error 1/sqrt(2N), held to 5 of them (alpha 6e-7).
    weak, strong = sk([0.2, 0.8], num_spins=16, instances=50, queries=10)
    J, K = weak.ising.couplings, strong.ising.couplings
    assert J is not None
    assert K is not None
    assert (weak.ising.fields.shape, J.shape) == ((50, 10, 16), (50, 1, 16, 16))
    assert float(weak.ising.fields.std()) == pytest.approx(0.2, rel=5 / math.sqrt(2 * 8000))
    assert coupling_strength(weak.ising) == pytest.approx(0.2, rel=5 / math.sqrt(2 * 6000))
    assert torch.allclose(K, 4 * J)
    (again,), (other,) = (sk([0.2], num_spins=16, instances=50, queries=10, seed=seed) for seed in (0, 1))
    assert torch.equal(weak.ising.fields, again.ising.fields)
    assert not torch.equal(weak.ising.fields, other.ising.fields)


def test_ferromagnet_couplings_are_g_over_n() -> None:
    (one,) = ferromagnet([0.6], num_spins=3, queries=2)
    assert one.ising.couplings is not None
    expected = torch.tensor([[0, 0.2, 0.2], [0.2, 0, 0.2], [0.2, 0.2, 0]], dtype=torch.float64)
    assert torch.allclose(one.ising.couplings, expected)


def test_tokens_are_the_problems_of_a_neurogame_layer() -> None:
    """The layer that is drawn by the same seed has the marginals of the problems, each of which has a J of its own."""
    before = torch.random.get_rng_state()
    weak, strong = tokens(num_spins=5, instances=3, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    x = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    torch.manual_seed(4)
    layer = NeuroGameAttention(64, 1, "exact").double().eval()
    for ensemble, factor in ((weak, 1), (strong, 8)):
        h, J = ensemble.ising.fields, ensemble.ising.couplings
        assert J is not None
        assert (ensemble.name, h.shape, J.shape) == ("tokens", (3, 5), (3, 5, 5))
        assert ensemble.strength == coupling_strength(ensemble.ising)
        with torch.no_grad():
            layer.value.weight *= factor
        torch.testing.assert_close(
            diabat.sampler("exact").moments(ensemble.ising).probability, layer.explain(x).alpha[:, 0]
        )
    assert strong.strength > 4 * weak.strength


def test_from_attention_takes_the_last_rows() -> None:
    h = torch.arange(7 * 2 * 6 * 6, dtype=torch.float32).reshape(7, 2, 6, 6)
    J = pack_couplings(torch.randn(2, 1, 15, generator=torch.Generator().manual_seed(0)), 6)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    ensemble = from_attention(Ising(h, J, mask))
    assert torch.equal(ensemble.ising.fields, h[:, :, 2:])
    assert ensemble.ising.visible is not None
    assert ensemble.ising.visible.tolist() == mask[2:].tolist()
    torch.testing.assert_close(ensemble.ising.couplings, J, rtol=0, atol=0)
    assert ensemble.strength == pytest.approx(float(J.square().sum() / 60 * 6) ** 0.5)
    own = J[:1].expand(7, 6, 6, 6) * torch.arange(42).view(7, 6, 1, 1)  # couplings of each window and query
    found = from_attention(Ising(h[:, 0], own, three_body=torch.zeros(6, 6, 6))).ising
    torch.testing.assert_close(found.couplings, own[:, 2:], rtol=0, atol=0)
    assert found.three_body is not None
    assert from_attention(Ising(h)).strength == 0


@pytest.mark.parametrize(("call", "message"), [
    (lambda: tokens([1.0, -1.0]), "weights: expected finite values >= 0, got -1.0"),
    (lambda: sk([math.nan]), "strengths: expected finite values >= 0, got nan"),
    (lambda: from_attention(Ising(torch.zeros(4, 4))), r"fields: expected shape .* got \[4, 4\]"),
])  # fmt: skip
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("num_spins", "count"), [(6, 10**9), (10**6, 1)])
def test_ensembles_that_fit_into_no_memory_are_refused(
    num_spins: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diabat.compute.memory.available_bytes", lambda: 1 << 33)
    families: list[tuple[Any, str]] = [(sk, "queries"), (ferromagnet, "queries"), (tokens, "instances")]
    for family, name in families:
        with pytest.raises(ValueError, match=r"^instances: .* spins need .* GiB of memory, got 8 GiB"):
            family(num_spins=num_spins, **{name: count})


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("mode", ["h+J", "J-self"])
def test_the_problems_of_a_layer_give_its_weights(mode: str, relative: bool) -> None:
    """Also where the own spin of a query is held at +1: with it free, every P would be 1/2."""
    torch.manual_seed(0)
    layer = BoltzmannAttention(8, 2, 5, mode=mode, relative=relative, **PAPER).double()
    assert layer.couplings.pairs is not None
    torch.nn.init.normal_(layer.couplings.pairs, std=0.7)
    with layer.recording():
        _, weights = layer(torch.randn(3, 5, 8, dtype=torch.float64), None, True)
        ensemble = from_attention(layer.last_problem().to(torch.float64))
    p = diabat.sampler("exact").moments(ensemble.ising).probability  # of the last four queries, [3, 2, 4, 5]
    if mode == "J-self":
        own = torch.full((4,), 4) if relative else torch.arange(1, 5)
        p = p.scatter(-1, own[:, None].expand(*p.shape[:-1], 1), 1.0)
    want = p / p.sum(-1, keepdim=True)
    got = weights[:, :, 1:]
    if relative:  # keys into the slots of their query
        got = torch.stack([got[:, :, i].roll(3 - i, -1) for i in range(4)], 2)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


def test_total_variation_by_hand() -> None:
    q, p = torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor([0.25, 0.5, 0.25]).double()
    assert float(states.total_variation(q, p)) == pytest.approx(0.25)


def test_states_of_samples_and_of_marginals() -> None:
    spins = torch.tensor([[1, -1], [1, 1], [1, -1], [-1, 1]], dtype=torch.int8)
    table = states.states_of_samples(Samples(spins, torch.ones(2, dtype=torch.bool)))
    assert table.tolist() == [0, 0.5, 0.25, 0.25]
    product = states.states_of_marginals(torch.tensor([0.2, 0.7]))
    assert product.tolist() == pytest.approx([0.8 * 0.3, 0.2 * 0.3, 0.8 * 0.7, 0.2 * 0.7])


def test_states_under_a_mask_are_those_of_the_visible_spins() -> None:
    class Plain(ReferenceSampler):
        def state_probabilities(self, ising: Ising) -> torch.Tensor:
            assert ising.visible is None
            return super().state_probabilities(ising)

    problem = causal_problem(4, seed=3)
    assert torch.allclose(states.states_of(Plain(), problem), brute_force_states(problem), atol=1e-14)


def test_the_law_of_exact_is_that_of_boltzmann() -> None:
    masked, cubic = causal_problem(4, seed=4), make_problem((2,), 3, seed=5, three_body=0.5)
    for problem in (make_problem((3, 2), 4, lead="heads", seed=1), masked, cubic):
        law = states.states_of(ExactSampler(), problem.to(torch.float64))
        assert torch.allclose(law, brute_force_states(problem), atol=1e-6)


def test_there_is_no_law_of_too_many_states_or_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem((2,), 3, seed=2)
    assert states.law_of(ReferenceSampler(), problem) is not None
    assert states.law_of(DQASampler(engine="primitive", annealing_time_ns=2.0), problem) is None
    monkeypatch.setattr(states, "_MAX_CELLS", 15)  # 2 problems of 8 states
    assert states.law_of(ReferenceSampler(), problem) is None


@pytest.mark.parametrize("num_reads", [1, 10, 1000])
def test_the_mean_deviation_of_a_frequency_is_exact(num_reads: int) -> None:
    p = torch.tensor([0.0, 1e-6, 0.01, 0.3, 0.5, 0.999, 1.0], dtype=torch.float64)
    expected = [
        sum(abs(k / num_reads - q) * binom.pmf(k, num_reads, q) for k in range(num_reads + 1))
        for q in p.tolist()
    ]
    assert states.mean_deviation(p, num_reads).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-15)
