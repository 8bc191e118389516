"""The NeuroGame attention layer."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from layers import F64, tokens
from torch import Tensor, nn

import diabat
from diabat.attention import NeuroGameAttention, NeuroGameExplanation, games
from diabat.attention.games import draws
from diabat.attention.neurogame import PAPER_MEAN_FIELD
from diabat.ising import IsingError
from diabat.samplers import UnsupportedError
from diabat.testing import ReferenceSampler


def layer(dim: int = 8, heads: int = 2, *, strength: float = 4.0, **options: Any) -> NeuroGameAttention:
    """A layer in float64, with couplings that are felt."""
    torch.manual_seed(1)
    built = NeuroGameAttention(dim, heads, **options).double()
    with torch.no_grad():
        built.value.weight *= strength
    return built


def padding(batch: int = 3, length: int = 6) -> Tensor:
    mask = torch.zeros(batch, length, dtype=torch.bool)
    mask[0, 4:] = True
    mask[1, 1:] = True
    return mask


@pytest.mark.parametrize("f", ["identity", "tanh"])
@pytest.mark.parametrize("weighting", ["gibbs", "uniform"])
@pytest.mark.parametrize("normalisation", ["l1", "sum", "none"])
def test_algorithm_1_written_out(weighting: str, f: str, normalisation: str) -> None:
    """From the drawn coalitions to z, sequence by sequence and head by head, with norms from scratch."""
    built = layer(weighting=weighting, f=f, normalisation=normalisation, sampler="exact").eval()
    x, pad = tokens(3, 6), padding()
    z, explanation = built(x, pad, need_explanation=True, seed=5)
    gamma, heads = float(built.temperature[0]), []
    for h in range(2):
        W = built.value.weight[4 * h : 4 * h + 4]
        rows = []
        for b in range(3):
            seen = x[b, ~pad[b]]
            V, n = seen @ W.T, len(seen)

            def value(masks: Tensor, V: Tensor = V) -> Tensor:
                norms = (masks.to(F64) @ V).norm(dim=-1)
                return norms.tanh() if f == "tanh" else norms

            # The stream of coalitions belongs to (sequence, head): the function game is explanation them.
            phi, beta, J = (
                recorded_indices(value, n, b * 2 + h, s, weighting, gamma)
                for s in (games.sample_shapley, games.sample_banzhaf, games.sample_interaction)
            )
            gate = torch.sigmoid(seen @ built.gate.weight[h] + built.gate.bias[h])
            size = {"l1": lambda t: t.abs().sum(), "sum": lambda t: t.sum(), "none": lambda t: 1}[
                normalisation
            ]
            fields = gate * phi / size(phi) + (1 - gate) * beta / size(beta)
            assert (explanation.fields[b, h, :n] - fields).abs().max() < 1e-11
            assert (explanation.interactions[b, h, :n, :n] - J).abs().max() < 1e-12
            problem = diabat.Ising(fields / gamma, J / gamma)
            alpha = diabat.sampler("exact").moments(problem).probability
            assert (explanation.alpha[b, h, :n] - alpha).abs().max() < 1e-10
            rows.append(alpha @ V)
        heads.append(torch.stack(rows))
    expected = torch.cat(heads, -1) @ built.output_projection.weight.T
    assert (z - expected).abs().max() < 1e-10


def recorded_indices(value: Any, n: int, problem: int, sampled: Any, weighting: str, gamma: float) -> Tensor:
    """The index of one problem of a batch, from the coalitions of that place in the batch."""
    every = torch.ones(problem + 1, n, dtype=torch.bool)
    original = {name: getattr(draws, name) for name in ("half_coalitions", "permutations")}

    def of_last(name: str) -> Any:
        return lambda players, *args, **options: original[name](every, *args, **options)[-1]

    with pytest.MonkeyPatch.context() as patch:
        for name in original:
            patch.setattr(draws, name, of_last(name))
        game = games.FunctionGame(value, n)
        return sampled(game, 25, weighting=weighting, temperature=gamma, seed=5, diagnostics=False).value


def test_shapes_of_both_outputs_and_their_relation() -> None:
    pooled, single = layer(), layer(output="tokens")
    x, pad = tokens(3, 6), padding()
    z, each = pooled(x, pad, seed=3), single(x, pad, seed=3)
    assert z.shape == (3, 8)
    assert each.shape == (3, 6, 8)
    assert (each.sum(1) - z).abs().max() < 1e-13
    assert not each[pad].any()


def test_explanation() -> None:
    built = layer(sampler="mean_field").eval()
    x, pad = tokens(3, 6), padding()
    found = built.explain(x, pad, seed=4)
    assert isinstance(found, NeuroGameExplanation)
    _, again = built(x, pad, need_explanation=True, seed=4)
    assert torch.equal(found.alpha, again.alpha)
    assert not found.alpha.requires_grad
    assert again.alpha.requires_grad
    for tensor in (found.alpha, found.fields, found.gate, found.shapley.value, found.banzhaf.value):
        assert tensor.shape == (3, 2, 6)
        assert not tensor.transpose(1, 2)[pad].any()
    assert found.interactions.shape == (3, 2, 6, 6)
    assert torch.equal(found.interactions, found.interactions.mT)
    assert (found.expected_active - found.alpha.sum(-1)).abs().max() < 1e-13
    assert found.temperature.tolist() == pytest.approx([0.25, 0.25])
    assert (found.num_coalitions, found.seed, found.info["backend"]) == (25, 4, "mean_field")
    assert found.info["converged"] == (float(found.residual.max()) < 1e-4)
    for estimate in (found.shapley, found.banzhaf, found.pairs):
        assert estimate.standard_error is not None
        assert float(estimate.effective_samples.max()) <= 25 + 1e-9


class Never(ReferenceSampler):
    """A backend that must not be asked."""

    def _moments(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("a control asked the sampler")


def test_controls_leave_terms_out_of_the_law() -> None:
    """Mode h is σ(2 J_i/γ) with the fields of the whole layer, uniform is half the sum of the values."""
    x, pad = tokens(3, 6), padding()
    whole = layer(sampler="exact").explain(x, pad, seed=4)
    fields_only, uniform = (layer(mode=mode, sampler=Never()) for mode in ("h", "uniform"))
    explanation = fields_only.explain(x, pad, seed=4)
    expected = torch.where(~pad[:, None], torch.sigmoid(8 * whole.fields), 0)  # γ = 1/4
    assert (explanation.alpha - expected).abs().max() < 1e-8  # log γ is stored in float32
    assert torch.equal(explanation.fields, whole.fields)
    assert torch.equal(explanation.pairs.value, whole.pairs.value)
    assert not explanation.interactions.any()
    assert (explanation.alpha - whole.alpha).abs().max() > 1e-3
    z = uniform(x, pad, seed=4)
    half = (uniform.value(x) * ~pad[..., None]).sum(1) / 2
    assert (z - uniform.output_projection(half)).abs().max() < 1e-12
    explanation = uniform.explain(x, pad, seed=4)
    assert torch.equal(explanation.alpha, (~pad[:, None]).expand(3, 2, 6).to(F64) / 2)
    assert not explanation.fields.any()
    assert torch.equal(explanation.shapley.value, whole.shapley.value)
    assert torch.equal(fields_only(x, pad, seed=4), fields_only(x, pad, need_explanation=True, seed=4)[0])


def test_estimates_are_those_of_the_explanation() -> None:
    built, x, pad = layer(sampler=Never()).eval(), tokens(3, 6), padding()
    explanation = layer(sampler="exact").eval().explain(x, pad, seed=4)
    expected = explanation.shapley, explanation.banzhaf, explanation.pairs
    for mine, theirs in zip(built.estimates(x, pad, seed=4), expected, strict=True):
        assert torch.equal(mine.value, theirs.value)
        assert torch.equal(mine.effective_samples, theirs.effective_samples)


def test_default_sampler_has_the_settings_of_the_paper() -> None:
    assert NeuroGameAttention(4, 1).sampler.options == PAPER_MEAN_FIELD
    by_name, built = (
        NeuroGameAttention(4, 1, sampler=s).sampler for s in ("mean_field", diabat.sampler("mean_field"))
    )
    assert by_name.options == built.options != PAPER_MEAN_FIELD  # a name means the same everywhere
    own = diabat.sampler("mean_field", max_iterations=3)
    assert NeuroGameAttention(4, 1, sampler=own).sampler is own
    parameters = inspect.signature(NeuroGameAttention).parameters
    assert (parameters["num_coalitions"].default, parameters["eval_coalitions"].default) == (15, 25)


def test_mean_field_converges_at_the_start() -> None:
    """Inputs of unit variance, n = 32 and 128: couplings start below the strength of several fixed points.

    Measured 3e-5 and 0.017; with weights as torch draws them, some eighteen times larger, 0.06 and 0.4.
    """
    for heads, length, bound in ((4, 32, 1e-3), (1, 128, 5e-2)):
        torch.manual_seed(0)
        explanation = NeuroGameAttention(64, heads).explain(torch.randn(4, length, 64))
        assert float(explanation.residual.max()) < bound


@pytest.mark.parametrize(("sampler", "weighting"), [("mean_field", "gibbs"), ("exact", "uniform")])
def test_gradcheck(sampler: str, weighting: str) -> None:
    """Float64, exact and implicit derivatives, coalitions fixed by the seed; all parameters, γ included."""
    backends: dict[str, Any] = {
        "mean_field": diabat.sampler("mean_field", tolerance=1e-14, max_iterations=1000),
        "exact": "exact",
    }
    built = layer(
        4, 2, sampler=backends[sampler], weighting=weighting, learn_temperature=True, temperature=0.8
    )
    names = [name for name, _ in built.named_parameters()]
    assert sorted(names) == [
        "gate.bias", "gate.weight", "log_temperature", "output_projection.weight", "value.weight",
    ]  # fmt: skip
    pad = torch.tensor([[False, True, False, False]])

    def function(x: Tensor, *values: Tensor) -> Tensor:
        bound = dict(zip(names, values, strict=True))
        return torch.func.functional_call(built, bound, (x, pad), {"seed": 6})

    arguments = [tokens(1, 4, 4), *(p.detach() for p in built.parameters())]
    assert torch.autograd.gradcheck(function, [a.requires_grad_() for a in arguments], eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("output", ["pooled", "tokens"])
def test_padding_changes_nothing(output: str) -> None:
    built = layer(output=output)
    x = tokens(1, 5)
    alone = built(x, seed=7)
    for places in ([0, 1, 2, 3, 4], [2, 3, 4, 6, 7]):
        for junk in (9.0, float("nan")):
            padded, mask = torch.full((1, 8, 8), junk, dtype=F64), torch.ones(1, 8, dtype=torch.bool)
            padded[:, places], mask[:, places] = x, False
            got = built(padded, mask, seed=7)
            assert (got[:, places] if output == "tokens" else got).sub(alone).abs().max() < 1e-12
            built.zero_grad()
            got.sum().backward()
            assert all(bool(torch.isfinite(p.grad).all()) for p in built.parameters() if p.grad is not None)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sampler", ["mean_field", "exact"])
def test_degenerate_sequences(sampler: str, bias: bool) -> None:
    """One token, padding only, zero embeddings, tokens that cancel: finite values and gradients."""
    built = layer(sampler=sampler, bias=bias)
    empty = built.output_projection.bias if bias else torch.zeros(8, dtype=F64)
    x = tokens(4, 2)
    x[1] = 0
    x[2, 1] = -x[2, 0]
    pad = torch.tensor([[False, True], [False, False], [False, False], [True, True]])
    x.requires_grad_()
    z, explanation = built(x, pad, need_explanation=True, seed=8)
    z.square().sum().backward()
    assert torch.isfinite(z).all()
    assert torch.isfinite(x.grad).all()
    assert torch.equal(z[3], empty)
    assert not x.grad[pad].any()
    one = torch.sigmoid(torch.tensor(8.0, dtype=F64))  # J_1 = 1, α = σ(2/γ)
    assert (explanation.alpha[0, :, 0] - one).abs().max() < 1e-7
    assert (explanation.alpha[1] - 0.5).abs().max() < 1e-12
    assert not explanation.alpha[3].any()
    assert built(x[3:], pad[3:], seed=8).sub(empty).abs().max() == 0  # nothing at all


def test_seeds_in_evaluation() -> None:
    x = tokens(3, 6)
    free, fixed = layer(eval_seed=None).eval(), layer(eval_seed=11).eval()
    assert not torch.equal(free(x), free(x))
    assert torch.equal(free(x, seed=11), free(x, seed=11))
    assert torch.equal(fixed(x), fixed(x))
    assert torch.equal(fixed(x), free(x, seed=11))
    assert not torch.equal(fixed(x, seed=12), fixed(x))
    fixed.train()
    assert not torch.equal(fixed(x), fixed(x))


def test_training_and_evaluation_take_their_own_number_of_coalitions() -> None:
    built = layer(num_coalitions=3, eval_coalitions=7)
    assert built.explain(tokens(3, 6)).num_coalitions == 3
    assert built.eval().explain(tokens(3, 6)).num_coalitions == 7


def test_temperatures() -> None:
    built = layer(temperature=0.5)
    assert "log_temperature" not in dict(built.named_parameters())
    assert built.temperature.tolist() == pytest.approx([0.5, 0.5])
    with torch.no_grad():
        built.log_temperature.fill_(20.0)
    assert (built.explain(tokens(3, 6)).alpha - 0.5).abs().max() < 1e-7  # γ → ∞: every token 1/2
    restored = layer(temperature=2.0)
    restored.load_state_dict(built.state_dict())
    assert torch.equal(restored.temperature, built.temperature)
    trained = layer(temperature=0.5, learn_temperature=True)
    trained(tokens(3, 6)).square().sum().backward()
    assert bool((trained.log_temperature.grad != 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("mode", ["h+J", "uniform"])
def test_tokens_that_are_not_finite_are_refused(dtype: torch.dtype, value: float, mode: str) -> None:
    built = layer(mode=mode).to(dtype)
    x = tokens(3, 6).to(dtype)
    x[1, 2, 5] = x[2, 0, 0] = value
    with pytest.raises(ValueError, match=rf"^x: expected finite values, got {value} at index \(1, 2, 5\)\.$"):
        built(x)
    assert built(x, torch.arange(6).expand(3, 6) % 2 == 0).isfinite().all()  # padding may hold anything


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sampler", ["mean_field", "exact"])
def test_large_tokens_are_answered_or_refused(dtype: torch.dtype, sampler: str) -> None:
    """Whatever the size: a finite answer with finite gradients, or a sentence; never NaN."""
    answered = []
    for exponent in range(-45, 39, 3):
        x = (tokens(3, 6).clamp(-3, 3) * 10.0**exponent).to(dtype)
        if not bool(x.isfinite().all()):
            continue
        built = layer(sampler=sampler).to(dtype)
        x.requires_grad_()
        message = ""
        try:
            z = built(x, seed=2)
        except (UnsupportedError, IsingError) as error:
            message = str(error)
        if message:
            reasons = (
                "x: expected vectors V_i small enough to be squared",
                "couplings: expected numbers up to 1e+09",
            )
            assert message.startswith(reasons), exponent
            continue
        z.float().sum().backward()
        answered.append(exponent)
        for found in (z, x.grad, *(p.grad for p in built.parameters())):
            assert bool(found.isfinite().all()), exponent
    assert answered == list(range(-45, 4 if dtype == torch.float16 else 10, 3))


def test_autocast_of_tokens_beyond_half_precision_is_refused() -> None:
    built = layer().float()
    with (
        torch.autocast("cpu", dtype=torch.float16),
        pytest.raises(UnsupportedError, match=r"^x: expected vec"),
    ):
        built(tokens(3, 6).float() * 1e30)


def test_enumeration_of_long_sequences_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sequence and head has a J of its own: 32 x 4 x 2^26 states would take minutes."""
    built = NeuroGameAttention(8, 4, sampler="exact")

    def computed(*arguments: Any) -> Any:
        raise AssertionError("something was computed")

    monkeypatch.setattr(nn.Linear, "forward", computed)
    message = (
        r"x: sampler 'exact' enumerates 2\^n states for every sequence and head, at most 1.1e\+09 in one call, got "
        r"8.6e\+09 for 32 sequences of up to 26 tokens and 4 heads; use 'mean_field' or 'tempering', or fewer"
    )
    x = torch.zeros(32, 30, 8)
    pad = torch.arange(30).expand(32, 30) >= 26
    with pytest.raises(UnsupportedError, match=message):
        built(x, pad)
    with pytest.raises(UnsupportedError, match="accepts at most 38 tokens, got 47; use 'mean_field'"):
        built(torch.zeros(1, 47, 8))
    with pytest.raises(AssertionError, match="something was computed"):  # padding is not counted
        built(x, torch.arange(30).expand(32, 30) >= 22)
    with pytest.raises(AssertionError, match="something was computed"):  # four heads of 28
        built(torch.zeros(1, 28, 8))
    roomy = NeuroGameAttention(8, 4, sampler=diabat.sampler("exact", memory_budget_mb=1024))
    with pytest.raises(UnsupportedError, match=r"at most 4.3e\+09 in one call"):
        roomy(x, pad)
    for other in ("mean_field", "tempering"):
        with pytest.raises(AssertionError, match="something was computed"):
            NeuroGameAttention(8, 4, sampler=other)(x, pad)
