"""Statements of the guide, each beside the code that says whether it is true.

The sentence must stand on its page word for word: who changes one mends the other.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import dimod
import numpy as np
import pytest
import torch
from dwave.samplers import SimulatedAnnealingSampler, TabuSampler
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, stack_module_state, vmap

import diabat
from diabat import Ising, sampler
from diabat.attention.coupling_layout import SELF_MODES
from diabat.circuits import OutOfRangeWarning, schedule
from diabat.ising import from_bqm, pack_couplings
from diabat.samplers.capabilities import Estimator
from diabat.samplers.diagnostics import diagnostics
from diabat.samplers.dimod.options import QPU, call_keywords
from diabat.samplers.dimod.temperature import calibration_error
from diabat.samplers.ocean import OceanSampler
from diabat.samplers.pseudolikelihood import fit_betas
from diabat.strict_qpu import StrictMockQPU

DOCS = Path(__file__).parent.parent / "docs"
F64 = torch.float64
ANALYTIC = ("exact", "banded", "mean_field")
Check = Callable[[], object]
ROWS: list[tuple[str, str, Check]] = []


def says(page: str, *sentences: str) -> Callable[[Check], Check]:
    """Add rows of the table: a page, one of its sentences, and its check."""

    def add(check: Check) -> Check:
        once = functools.cache(check)
        ROWS.extend((page, sentence, once) for sentence in sentences)
        return once

    return add


def on(page: str) -> str:
    """A page as one line."""
    return " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())


@contextmanager
def refused(message: str, kind: type[Exception] = ValueError) -> Iterator[None]:
    """One plain sentence: none of torch's own errors."""
    with pytest.raises(kind, match=message) as caught:
        yield
    assert type(caught.value).__module__.startswith("diabat.")


def drawn(*shape: int, n: int = 6, J: float = 0.3, dtype: torch.dtype = torch.float32) -> Ising:
    """Problems of n spins with one J."""
    return Ising(
        torch.randn(*shape, n, dtype=dtype), pack_couplings(J * torch.randn(n * (n - 1) // 2, dtype=dtype), n)
    )


def all_to_all(n: int, J: float) -> Tensor:
    return J * (torch.ones(n, n) - torch.eye(n))


# limitations.md


@says(
    "limitations",
    "**R-hat of `tempering`** is unavailable with one chain (NaN, as is the effective sample size)",
)
@says("tempering", "with one chain it is unavailable (NaN) |", "summed over spins; NaN with one chain |")
def one_chain() -> None:
    modes = Ising(torch.zeros(2, 12), all_to_all(12, 1.0))  # P is 1/2, and a chain stays at 0 or 1
    backend = sampler("tempering", num_chains=1, num_replicas=1)
    for seed in range(3):
        found = backend.moments(modes, seed=seed)
        assert ((found.probability - 0.5).abs() > 0.49).all()
        assert found.info["rhat"].isnan().all()
        assert found.info["effective_sample_size"].isnan().all()
        facts = {fact.key: fact for fact in diagnostics(backend.watched, found.info)}
        assert facts["rhat_max"].ok is False
        assert "more num_chains" in facts["rhat_max"].advice
    two = sampler("tempering", num_chains=2, num_replicas=1).moments(drawn(), seed=0).info
    assert two["rhat_max"] < 1.3
    assert two["effective_sample_size"] > 10


def magnetization(fields: list[float], **options: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        m = sampler("dqa", **options).moments(Ising(torch.tensor(fields, dtype=F64)[:, None])).magnetization
    return m[:, 0]


@says(
    "limitations",
    "The magnetization of a 5 ns anneal peaks near h = 6 (0.9997), decreases to 0.96 at h = 60, and does "
    "not follow "
    "stronger fields. Beyond h = 30 the 150 steps of the default are too few for that (0.94 at 40, 0.71 at "
    "60); "
    "`steps=400` are enough.",
)
def strong_fields() -> None:
    assert magnetization([4, 6, 10, 30, 40, 60]).tolist() == pytest.approx(
        [0.9954, 0.9997, 0.9989, 0.9917, 0.9435, 0.7144], abs=1e-3
    )
    enough, many = (magnetization([6, 40, 60], steps=steps) for steps in (400, 2000))
    assert many.tolist() == pytest.approx([0.9997, 0.983, 0.963], abs=1e-3)
    assert torch.allclose(enough, many, atol=2e-3)


@says(
    "limitations",
    "`native` refuses phases beyond its precision: at 5 ns |h| above about 7·10^11, with "
    '`precision="single"` above '
    '1.3·10^3 (3.8·10^4 with `grid="uniform"`).',
)
def phases() -> None:
    for options, most in (
        ({}, 7e11),
        ({"precision": "single"}, 1.2e3),
        ({"precision": "single", "grid": "uniform"}, 3.7e4),
    ):
        magnetization([most], **options)
        with refused("rotate a spin by at most"):
            magnetization([1.15 * most], **options)


@says("limitations", "Problems beyond `max_seconds` are refused, with the estimated time.")
@says("backends", "refused beyond 38 (an estimated 10 minutes)")
def too_many_states() -> None:
    assert sampler("exact").capabilities.max_spins == 38
    with refused("39 visible spins in 1 problems, which need about .* minutes"):
        sampler("exact").moments(Ising(torch.zeros(39)))
    with refused("max_seconds = 1, .* which need about .* s"):
        sampler("exact", max_seconds=1).moments(Ising(torch.zeros(31)))


@says("limitations", "23 tokens for 32 sequences of 4 heads.")
def states_of_sequences() -> None:
    layer = diabat.NeuroGameAttention(8, 4, sampler="exact")
    layer._check_lengths(torch.empty(32, 23, 8), None)
    with refused("at most 1.1e[+]09 in one call, got 2.1e[+]09"):
        layer(torch.empty(32, 24, 8))


@says(
    "limitations",
    "Where a problem exceeds the range of float32 (Σ|J| beyond 72 up to 22 spins) it is solved again in "
    "float64 "
    '(`info["float64_escalation"]`)',
)
def escalation() -> None:
    for total, again in ((71.0, False), (73.0, True)):
        info = sampler("exact").moments(Ising(torch.zeros(32, 12), all_to_all(12, total / 66))).info
        assert info["float64_escalation"] is again


@says(
    "limitations",
    "**Odds** of `exact`, `banded` and `mean_field` have any size; under `torch.func` those below about "
    "e^-65 in "
    "float32 are cut off. From N reads they are between 1/(2N + 1) and 2N + 1.",
)
def odds() -> None:
    h = torch.tensor([[-40.0, 0.3]])
    for name in ANALYTIC:
        log_odds = sampler(name).differentiable_log_odds
        assert log_odds(Ising(h))[0].tolist() == pytest.approx([-80, 0.6], rel=1e-5)
        assert float(vmap(lambda h, f=log_odds: f(Ising(h, check=False)))(h)[0, 0]) == pytest.approx(
            -65.5, abs=0.1
        )
    certain = sampler("tempering").moments(Ising(30 * torch.tensor([-1.0, 1.0])), num_reads=50, seed=0)
    p = certain.smoothed_probability
    assert (p / (1 - p)).tolist() == pytest.approx([1 / 101, 101], rel=1e-4)


@says(
    "limitations",
    "`exact` and `banded` are differentiable any number of times by `torch.autograd`, `mean_field` twice, "
    "all three "
    "twice under `torch.func`; higher derivatives raise.",
    "**Pair correlations are not differentiable.** Probabilities and log Z are.",
)
@says(
    "pytorch",
    "| `torch.autograd`, twice | yes, and further | yes, of a converged fixed point | first derivatives; a "
    "second raises |",
)
def orders() -> None:
    ising = drawn(n=3, dtype=F64)

    def total(name: str, h: Tensor) -> Tensor:
        return sampler(name).moments(Ising(h, ising.couplings, check=False)).probability.sum()

    def nested(name: str, order: int) -> Tensor:
        y = total(name, h := ising.fields.clone().requires_grad_())
        for _ in range(order):
            (y,) = (g.sum() for g in torch.autograd.grad(y, h, create_graph=True))
        return y

    def under_func(name: str, order: int) -> Tensor:
        f: Any = lambda h: total(name, h)  # noqa: E731
        for _ in range(order):
            f = lambda h, g=f: grad(g)(h).sum()  # noqa: E731
        return f(ising.fields)

    for name in ANALYTIC:
        assert torch.allclose(nested(name, 2), under_func(name, 2), atol=1e-8)
        with refused("at most second derivatives"):
            under_func(name, 3)
    assert torch.allclose(nested("exact", 4), nested("banded", 4))
    with refused("at most second derivatives"):
        nested("mean_field", 3)
    with refused("has first derivatives only, got a second one"):
        h = ising.fields.clone().requires_grad_()
        y = diabat.spin_probabilities(h, ising.couplings, "tempering", seed=0).sum()
        torch.autograd.grad(torch.autograd.grad(y, h, create_graph=True)[0].sum(), h)
    found = sampler("exact").moments(Ising(h, ising.couplings), correlations=True)
    assert found.correlation is not None
    assert found.log_partition is not None
    assert found.probability.requires_grad
    assert found.log_partition.requires_grad
    assert not found.correlation.requires_grad


@says("limitations", "Mode `J-self` with reads refuses `torch.func.vmap` over its couplings")
def own_spin() -> None:
    options: dict[str, Any] = {"relative": True, "mode": "J-self", "sampler": "tempering", "num_reads": 20}
    layer, x = diabat.BoltzmannAttention(8, 1, 4, **options).eval(), torch.randn(2, 1, 4, 8)
    nn.init.normal_(layer.coupling_pairs)
    assert torch.allclose(vmap(layer)(x), torch.stack([layer(one) for one in x]), atol=1e-6)
    two = stack_module_state([layer, layer])[0]
    with refused("mode: expected no vmap over couplings of 'J-self' with reads"):
        vmap(lambda p: functional_call(layer, p, (x[0],)))(two)


@says("limitations", "Without fields the sign of the minimum is arbitrary, but always the same.")
def sign_of_the_minimum() -> None:
    first, *others = (
        sampler("mean_field").moments(Ising(torch.zeros(4), all_to_all(4, 2.0))).probability for _ in range(3)
    )
    assert (first > 0.99).all() or (first < 0.01).all()
    assert all(torch.equal(first, other) for other in others)


@says(
    "limitations",
    'Outside, `dqa` warns once (`OutOfRangeWarning`), and `info["outside_range"]` is the fraction of such '
    "spins. "
    "Circuits that you draw or export yourself are not checked.",
)
def outside() -> None:
    backend, strong = sampler("dqa", schedule="boltzmann-8"), Ising(torch.tensor([[8.0, 0, 0, 0]]))
    backend.circuit(Ising(strong.fields[0]))
    with pytest.warns(OutOfRangeWarning):
        assert backend.moments(strong).info["outside_range"] == 0.25
    assert backend.moments(strong).info["outside_range"] == 0.25  # a warning is an error here


@says(
    "limitations",
    "couplings beyond 1e25 are refused, and no spin points against a local field above about 11.4.",
)
@says("tempering", "A local field above about 11.4 never lets a spin point against it")
def rounded_sweeps() -> None:
    for name in ("refine", "tempering"):
        with refused("expected values up to 1e[+]25, got 1e[+]26"):
            sampler(name).moments(Ising(torch.zeros(2), all_to_all(2, 1e26)), seed=0)
    backend = sampler("tempering", num_replicas=1, burn_in=1)
    against = [
        int((backend.sample(Ising(torch.full((64,), h)), 20_000, seed=0).spins < 0).sum())
        for h in (5.0, 11.5)
    ]
    assert against[0] > 20
    assert against[1] == 0


@says("limitations", "`distributed` does so for any base")
@says(
    "conventions",
    "For all others edges are expanded into a matrix, up to 4,096 spins (`diabat.edges.DENSE_SPINS`, 128 "
    "MiB). Larger "
    "problems are refused.",
)
def many_spins_on_edges() -> None:
    """The advice names backends that take edges, and what they do not take them for."""
    ring = diabat.Edges([(j, (j + 1) % 4097) for j in range(4097)], torch.full((4097,), 0.1))
    problem, advice = (
        Ising(torch.zeros(4097), ring),
        "take edges, except with 'linear_response', with second derivatives",
    )
    with refused(advice):
        problem.dense()
    with refused(advice):
        sampler("distributed", sampler="tempering", workers=0).moments(problem, seed=0)
    h = torch.zeros(4097, requires_grad=True)
    plain = sampler("tempering", num_replicas=1, burn_in=1, sweeps=2, num_chains=2)
    diabat.spin_probabilities(h, ring, plain, seed=0).sum().backward()
    with refused(advice):
        diabat.spin_probabilities(h, ring, plain, gradient="linear_response", seed=0).sum().backward()


@says(
    "limitations", "**`distributed`** does not support a base with learnable parameters or persistent chains"
)
@says("executor", "A base that continues from its last call (`persistent=True` of `tempering`) is refused")
def bases_of_workers() -> None:
    with refused("without learnable parameters"):
        learned = {"schedule": "boltzmann-8", "learn_schedule": True}
        sampler("distributed", sampler="dqa", options=learned, workers=0)
    with refused("without state between calls"):
        sampler("distributed", sampler="tempering", options={"persistent": True}, workers=0)


# pytorch.md


@says(
    "pytorch",
    "A layer that draws reads takes one seed for a mapped call, whatever `randomness` says. The elements "
    "are problems "
    "of one batch, and elements that are equal have different reads.",
)
def seeds_of_mapped_layers() -> None:
    layer = diabat.BoltzmannAttention(8, 1, 4, sampler="tempering")
    nn.init.normal_(layer.coupling_pairs)
    x = torch.randn(1, 4, 8).expand(2, 1, 4, 8)
    found = []
    for randomness in ("error", "same", "different"):
        torch.manual_seed(0)
        found.append(vmap(layer, randomness=randomness)(x))
    assert not torch.equal(*found[0])
    assert all(torch.equal(one, found[0]) for one in found)


@says(
    "pytorch",
    "Call `spin_probabilities` with `check=False` inside `vmap`, where values cannot be checked; else it "
    "raises.",
)
def unchecked_values() -> None:
    problems = drawn(2)
    for of in (problems.fields, problems.fields.double()):

        def alpha(h: Tensor, **options: Any) -> Tensor:
            return diabat.spin_probabilities(h, problems.couplings.to(h), "exact", **options)

        vmap(lambda h: alpha(h, check=False))(of)
        for f in (alpha, lambda h: grad(lambda h: alpha(h).sum())(h)):
            with refused("fields: expected values that can be read, .* use check=False"):
                vmap(f)(of)
    with refused("couplings: expected values that can be read"):
        vmap(lambda J: diabat.spin_probabilities(problems.fields, J, "exact"))(
            problems.couplings.expand(2, 6, 6)
        )


@says(
    "pytorch",
    "`NeuroGameAttention` is refused under all transforms of `torch.func`: its coalitions are drawn by "
    "numpy.",
)
def games_under_transforms() -> None:
    layer, x = diabat.NeuroGameAttention(8, 2), torch.randn(2, 3, 8)
    for f in (grad(lambda x: layer(x).sum()), vmap(lambda x: layer(x[None])), jacrev(layer), jacfwd(layer)):
        with refused("torch.func: cannot transform NeuroGameAttention"):
            f(x)


@says(
    "pytorch",
    "- NaN and infinity; - with `exact`, `banded` and `mean_field` also numbers beyond 10⁹.",
    "Probabilities are in [0, 1], also after rounding.",
)
@says("limitations", "All analytic backends refuse numbers beyond 10⁹")
def large_numbers() -> None:
    for name in ("exact", "banded", "mean_field", "tempering", "dqa", "refine", "dimod"):
        for value in (math.nan, math.inf):
            with refused(r"fields: expected finite values, got .* at index \(0, 1\)"):
                sampler(name).moments(Ising(torch.tensor([[0.0, value]])))
        large = Ising(torch.tensor([[0.0, 2e9]]))
        if name in ANALYTIC:
            with refused(r"fields: expected numbers up to 1e[+]09, .* at index \(0, 1\)"):
                sampler(name).moments(large)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutOfRangeWarning)
            p = sampler(name).moments(large, seed=0).probability
        assert 0.9 < p[0, 1] <= 1


@says(
    "pytorch",
    "| `torch.autograd.functional` with `vectorize=True` | refused; use `torch.func` | yes |",
    "| `torch.func`: `jacfwd`, `hessian` | yes | yes | refused by torch |",
    "| `torch.jit.trace` | refused | refused | refused: a trace would contain the answers as constants |",
)
def parts_of_torch() -> None:
    x = torch.randn(1, 3, 4)
    for name in ("exact", "banded", "mean_field", "tempering"):
        layer = diabat.BoltzmannAttention(4, 1, 3, sampler=name, bandwidth=2).eval()

        def f(x: Tensor, layer: nn.Module = layer) -> Tensor:
            return layer(x).square().sum((0, 1))

        for transform in (hessian, jacfwd):
            if name == "tempering":
                with pytest.raises(NotImplementedError, match="jvp"):
                    transform(f)(x)
            else:
                assert transform(f)(x).isfinite().all()
        if name in ("exact", "banded"):
            with pytest.raises(RuntimeError, match=r"got a batch of them .*; use torch\.func\.jacrev"):
                torch.autograd.functional.jacobian(f, x, vectorize=True)
        else:
            torch.autograd.functional.jacobian(f, x, vectorize=True)
        with warnings.catch_warnings(), refused("torch.jit.trace: cannot be combined with a sampler"):
            warnings.simplefilter("ignore")
            torch.jit.trace(layer, x)


# conventions.md


@says(
    "conventions",
    "- `mode` names the terms of the exponent: `h`, `J`, `h+J` (the default), `h+K`, `J+K`, `h+J+K` or "
    "`K`. Two more "
    "are `softmax`, which uses no sampler, and `J-self`,",
)
def modes() -> None:
    sentence = next(one for page, one, check in ROWS if check is modes)
    assert set(re.findall(r"`([^`]+)`", sentence)) - {"mode"} == set(SELF_MODES)
    for mode in SELF_MODES:
        layer = diabat.BoltzmannAttention(4, 1, 3, mode=mode, relative=mode == "J-self")
        assert layer(torch.randn(1, 3, 4)).shape == (1, 3, 4)
    assert diabat.BoltzmannAttention(4, 1, 3).mode == "h+J"


@says("conventions", "A mix of float32 and float64 tensors is refused.")
@says(
    "conventions",
    "| float64 tensors and arrays | float64 | | nested lists | torch's default dtype | | half precision, "
    "integers, "
    "everything else | float32 | | couplings | the dtype of the fields |",
)
def number_types() -> None:
    single = (
        [0.5, 1.0],
        torch.ones(2).half(),
        torch.ones(2).bfloat16(),
        torch.tensor([1, 2]),
        np.array([1, 2]),
    )
    assert all(Ising(fields).fields.dtype == torch.float32 for fields in single)
    assert all(Ising(fields).fields.dtype == F64 for fields in (torch.ones(2, dtype=F64), np.ones(2)))
    J = [[0.0, 1.0], [1.0, 0.0]]
    for couplings in (J, torch.tensor(J).half(), diabat.Edges([(0, 1)], torch.ones(1))):
        held = Ising(torch.ones(2, dtype=F64), couplings).held_couplings
        assert (held.values if isinstance(held, diabat.Edges) else held).dtype == F64
    with refused("couplings: expected dtype torch.float32"):
        Ising(torch.ones(2), torch.tensor(J, dtype=F64))


@says(
    "conventions",
    "In `Edges` every pair is named once, in either order; a second time is refused.",
    "Repeated entries of an uncoalesced COO tensor are added, as torch defines it.",
)
def repeated_pairs() -> None:
    for again in ((0, 1), (1, 0)):
        with refused("pair"):
            Ising(torch.zeros(2), diabat.Edges([(0, 1), again], torch.ones(2)))
    index = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]])
    coo = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2, 1, 2]), (2, 2), check_invariants=True)
    assert Ising(torch.zeros(2), coo).couplings[0, 1] == 3


@says("conventions", "give edges, unless spins have more than n/8 neighbours on average.")
def forms_of_models() -> None:
    for n, reach, sparse in (
        (16, 1, True),
        (40, 2, True),
        (40, 3, False),
    ):  # 2 reach neighbours, n/8 = 2 and 5
        pairs = {(i, (i + d) % n): 1.0 for i in range(n) for d in range(1, reach + 1)}
        problem, _ = from_bqm(dimod.BinaryQuadraticModel({}, pairs, 0.0, "SPIN"))
        assert (problem.edges is not None) is sparse
        assert (Ising.from_dict({}, pairs)[0].edges is not None) is sparse


@says(
    "conventions",
    "An invisible spin has no field, no coupling and probability 0. Samples report it as -1.",
    "Sampled probabilities are smoothed before they enter attention: (reads·P + ½)/(reads + 1).",
)
def invisible_spins() -> None:
    problem = drawn(3)
    hidden = Ising(problem.fields, problem.couplings, torch.tensor([True] * 5 + [False]))
    without = Ising(problem.fields[:, :5], problem.couplings[:5, :5])
    for name in ("exact", "banded", "mean_field", "dqa"):
        p = sampler(name).moments(hidden).probability
        assert (p[:, 5] == 0).all()
        assert torch.allclose(p[:, :5], sampler(name).moments(without).probability, atol=1e-5)
    found = sampler("tempering").sample(hidden, 10, seed=0)
    assert (found.spins[..., 5] == -1).all()
    moments = found.moments()
    smoothed = (10 * moments.probability + 0.5) / 11
    assert torch.allclose(moments.smoothed_probability[:, :5], smoothed[:, :5])


@says(
    "conventions",
    "| no visible key | The query gets weight 0 everywhere; torch returns NaN. |",
    "| `is_causal=True` | Works without a mask. |",
    '| `mode="softmax"` | torch\'s own attention, up to rounding. |',
    "It changes the odds of a spin by exp(2m), not exp(m). -inf and the lowest number of a dtype hide a "
    "key. |",
    "With one visible position the normalised weight is exactly 1; with none every weight is 0.",
)
def against_torch() -> None:
    ours = diabat.BoltzmannMultiheadAttention(8, 2, batch_first=True, window=5, sampler="exact").eval()
    x, nothing = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    assert (ours(x, x, x, key_padding_mask=nothing)[1] == 0).all()
    causal = ours(x, x, x, is_causal=True)[1]
    assert torch.equal(causal, causal.tril())
    assert (causal[:, 0, 0] == 1).all()
    plain = diabat.BoltzmannMultiheadAttention(8, 2, batch_first=True, window=5, mode="softmax").eval()
    torchs = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    plain.load_state_dict(torchs.state_dict(), strict=False)
    for one, other in zip(plain(x, x, x), torchs(x, x, x), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    # One key beside one query: the mask moves its odds, seen through a second key that stays.
    free = (
        diabat.BoltzmannMultiheadAttention(4, 1, batch_first=True, window=2, mode="h", bias=False)
        .double()
        .eval()
    )
    nn.init.zeros_(free.in_proj_weight)  # fields 0: odds 1
    z, mask = torch.randn(1, 2, 4, dtype=F64), torch.zeros(2, 2, dtype=F64)
    for m, alpha in ((-0.7, 1 / (1 + math.exp(1.4))), (-math.inf, 0.0), (torch.finfo(F64).min, 0.0)):
        mask[:, 0] = m
        weights = free(z, z, z, attn_mask=mask)[1][0, 0]
        assert weights.tolist() == pytest.approx([alpha / (alpha + 0.5), 0.5 / (alpha + 0.5)])


@says("conventions", "| refused | `add_bias_kv`, `add_zero_attn` |")
def refused_options() -> None:
    for name in ("add_bias_kv", "add_zero_attn"):
        with refused(f"{name}: expected False"):
            diabat.BoltzmannMultiheadAttention(8, 2, window=5, **{name: True})


@says(
    "conventions",
    "| training | from torch's global generator; restoring its state repeats a training step |",
    "| evaluation | `layer.eval_seed`, 0 unless you set it: equal inputs have equal outputs; None draws as "
    "in training |",
    "The same seed gives the same tensor on any number of threads.",
)
def seeds() -> None:
    layer, x = diabat.BoltzmannAttention(8, 1, 4, sampler="tempering"), torch.randn(2, 4, 8)
    nn.init.normal_(layer.coupling_pairs)
    state = torch.get_rng_state()
    first, second = layer(x), layer(x)
    torch.set_rng_state(state)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)
    layer.eval()
    assert layer.eval_seed == 0
    assert torch.equal(layer(x), layer(x))
    layer.eval_seed = None
    assert not torch.equal(layer(x), layer(x))
    problem, reads = drawn(3), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        reads.append(sampler("tempering").sample(problem, 20, seed=1).spins)
    assert torch.equal(*reads)


@says("conventions", "They belong to the energy written as ½ Σ_{j≠k} J_jk s_j s_k.")
def gradients_of_couplings() -> None:
    problem = drawn(dtype=F64)
    J = problem.couplings.clone().requires_grad_()
    log_z = sampler("exact").moments(Ising(problem.fields, J)).log_partition
    correlation = sampler("exact").moments(problem, correlations=True).correlation
    assert log_z is not None
    assert correlation is not None
    (dJ,) = torch.autograd.grad(log_z, J)
    assert torch.allclose(dJ, correlation.fill_diagonal_(0) / 2)


# dqa.md


@says(
    "dqa",
    "- A strong field turns a spin with P(s = +1) above .97, <s> above .94, up to |h| = 41 (5 ns, the 150 "
    "adaptive "
    "steps of the default) or 58 (200 equal steps).",
)
def saturation() -> None:
    for grid, most in (("adaptive", 41), ("uniform", 58)):
        assert (magnetization([float(h) for h in range(3, most + 1)], grid=grid) > 0.94).all()
        backend = sampler("dqa", grid=grid)
        backend.moments(Ising(torch.tensor([most - 0.1])))
        with pytest.warns(OutOfRangeWarning):
            backend.moments(Ising(torch.tensor([most + 2.0])))


@says(
    "dqa",
    "- The default is 150 adaptive Strang steps at 5 ns, whose error is below a hundredth of the anneal's "
    'own distance to Boltzmann. `grid="uniform"` takes 200 equal steps',
)
@says(
    "dqa",
    "the fast schedule at 5 ns in 150 steps",
    "with 4 to 16 layers in place of 150.",
    "8 layers instead of 150.",
)
@says("backends", "have eight layers in place of 150 steps")
def default_steps() -> None:
    assert sampler("dqa", grid="uniform").plan.steps == 200
    assert sampler("dqa", schedule="boltzmann-8").plan.steps == 8
    default, problem = sampler("dqa"), drawn(16, dtype=F64)
    assert default.plan.steps == 150
    info = default.moments(problem).info
    assert (info["annealing_time_ns"], info["calibration"]) == (5.0, "predicted")
    law, many, boltzmann = (
        one.state_probabilities(problem) for one in (default, sampler("dqa", steps=1000), sampler("exact"))
    )
    assert (law - many).abs().sum() < 0.01 * (law - boltzmann).abs().sum()


@says(
    "dqa",
    "with equal steps up to 2·A(0)·t_a (at least 114 at 5 ns), with adaptive ones where one turns the "
    "mixer by π (at least 57).",
)
def fewest_steps() -> None:
    assert 113 < 2 * float(schedule("Advantage2_system1", "fast").A_GHz[0]) * 5 < 114
    for grid, least in (("uniform", 114), ("adaptive", 57)):
        assert sampler("dqa", grid=grid, steps=least).plan.steps == least
        with refused(f"steps: expected at least {least} "):
            sampler("dqa", grid=grid, steps=least - 1)


@says("dqa", "single for float32, with errors of P below 1e-6 at 8 spins and up to 1e-4 at 16.")
@says("backends", "probabilities to 1e-6 at 8 spins and 1e-4 at 16)")
def single_precision() -> None:
    for n, error in ((8, 1e-6), (16, 1e-4)):
        problem = drawn(4, n=n, J=1 / n**0.5)
        assert sampler("dqa").moments(problem).info["precision"] == "single"
        double = sampler("dqa").moments(problem.to(dtype=F64)).probability
        assert (sampler("dqa").moments(problem).probability - double).abs().max() < error


@says(
    "dqa",
    "without fields the total variation between a plain anneal and the Boltzmann distribution is below 2 % "
    "on average "
    "if Σ_k |J_jk|, averaged over the spins j, is below 0.35. With fields h ~ N(0, g) beside J ~ N(0, "
    "g/√n) it is if "
    "that sum is below 0.23.",
)
def rule_of_thumb() -> None:
    for n in (6, 8):
        J = pack_couplings(torch.randn(64, n * (n - 1) // 2), n)
        J = J / J.abs().sum(-1).mean(-1)[:, None, None]
        g = (J.square().sum((-1, -2)) / (n - 1)).sqrt()
        h = g[:, None] * torch.randn(64, n)
        for fields, total, within in (
            (0 * h, 0.35, True),
            (0 * h, 0.7, False),
            (h, 0.23, True),
            (h, 0.46, False),
        ):
            problem = Ising(total * fields, total * J)
            anneal, law = (sampler(name).state_probabilities(problem) for name in ("dqa", "exact"))
            assert (float((anneal - law).abs().sum(-1).mean()) / 2 < 0.02) is within


@says("dqa", "If several layers are given the same sampler, each learns separate angles.")
def separate_angles() -> None:
    shared = sampler("dqa", schedule="boltzmann-4", learn_schedule=True)
    one, other = (diabat.BoltzmannAttention(8, 1, 4, sampler=shared, gradient="adjoint") for _ in range(2))
    assert one.sampler.schedule_angles is not other.sampler.schedule_angles


@says(
    "dqa",
    "- `per_batch`: 64 extra reads of each problem.",
    "the programmed values of a problem depend on its batch.",
)
@says(
    "limitations",
    '**`calibration="per_batch"`** makes the answer to one problem depend on the others of its batch.',
)
def calibration_of_a_batch() -> None:
    problems = drawn(4)
    backend = sampler("dqa", calibration="per_batch")
    assert not torch.equal(
        backend.moments(problems, seed=0).probability[:2],
        backend.moments(Ising(problems.fields[:2], problems.couplings), seed=0).probability,
    )
    plain = sampler("dqa")
    assert torch.equal(
        plain.moments(problems).probability[:2],
        plain.moments(Ising(problems.fields[:2], problems.couplings)).probability,
    )


# tempering.md


@says(
    "tempering",
    'Where `info["num_replicas"]` is 1, probabilities and reads of a problem are bit for bit those of a '
    "call with `num_replicas=1` and the same seed; where it is 8, those of a call with `num_replicas=8`.",
)
@says(
    "tempering",
    "There is no log Z, and `persistent` is refused.",
    "of a plain problem is NaN on the rungs that it lacks, and its swap rates are 1.",
)
def fewer_replicas() -> None:
    J = torch.stack([all_to_all(12, 0.02), all_to_all(12, 0.5)])
    problems = Ising(0.1 * torch.randn(2, 12), J)
    auto, one, eight = (sampler("tempering", num_replicas=r) for r in ("auto", 1, 8))
    found = auto.moments(problems, seed=3)
    assert found.info["num_replicas"].tolist() == [1, 8]
    assert found.log_partition is None
    assert found.info["betas"][0, :-1].isnan().all()
    assert (found.info["swap_rates"][0] == 1).all()
    for j, backend in enumerate((one, eight)):
        assert torch.equal(found.probability[j], backend.moments(problems, seed=3).probability[j])
        reads = [each.sample(problems, 4, seed=3).spins[:, j] for each in (auto, backend)]
        assert torch.equal(*reads)
    with refused("expected an integer with persistent=True, got 'auto'"):
        sampler("tempering", num_replicas="auto", persistent=True)


@says(
    "tempering",
    "They are not reported below two thirds of the error of `num_reads` independent reads",
    "`Moments.num_reads` is `num_chains · sweeps`",
)
def errors_have_a_floor() -> None:
    found = sampler("tempering", num_chains=4, sweeps=32).moments(Ising(torch.linspace(-2, 2, 9)), seed=0)
    assert found.num_reads == 128
    p = found.smoothed_probability
    assert found.standard_error is not None
    assert torch.allclose(found.standard_error, 2 / 3 * (p * (1 - p) / 128).sqrt())  # no couplings, no spread
    assert (found.info["measured_error"] < 1e-7).all()


@says(
    "tempering",
    "A call with another batch shape, number of chains or of couplings starts at random "
    '(`info["continued"]` is false).',
)
def continued_chains() -> None:
    backend, problems = sampler("tempering", num_replicas=1, persistent=True), drawn(3)
    fewer = Ising(problems.fields[:2], problems.couplings)
    found = [
        backend.moments(one, seed=k).info["continued"] for k, one in enumerate((problems, problems, fewer))
    ]
    assert found == [False, True, False]


@says(
    "tempering",
    "With `track_lowest=True` it is the lowest of all states after a sweep, of every chain and every "
    "replica. The reads are the same as without.",
)
def lowest_states() -> None:
    problems = drawn(3, n=12, J=1.0)
    plain, tracking = (
        sampler("tempering", burn_in=8, track_lowest=track).sample(problems, 2, seed=0)
        for track in (False, True)
    )
    assert torch.equal(plain.spins, tracking.spins)
    assert (tracking.lowest().energy <= plain.lowest().energy).all()


def of_table(page: str) -> dict[str, str]:
    """Defaults by option in the table of options of a page."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8").split("\n## Options\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", text, re.MULTILINE):
        options, values = re.findall(r"`(\w+)`", names), defaults.replace("`", "").strip().split(", ")
        found |= dict(zip(options, values if len(values) > 1 else values * len(options), strict=True))
    return found


@says("tempering", "| `num_replicas` | 8 | replicas R of each chain")
@says("hardware", "| `together` | 1 | problems of a submission, without `qpu` |")
def tables_of_options() -> None:
    for page, name in (("tempering", "tempering"), ("hardware", "dimod")):
        told, parameters = of_table(page), inspect.signature(type(sampler(name)).__init__).parameters
        given = {
            key: str(p.default).replace("False", "false") for key, p in parameters.items() if key != "self"
        }
        assert told == (given | {"num_replicas": "8"} if name == "tempering" else given)
    assert sampler("tempering").num_replicas == 8


# hardware.md


@says("hardware", "By default 5 with `fast`, 20,000 with `standard` |")
def annealing_times() -> None:
    chip = StrictMockQPU(topology_type="zephyr", topology_shape=[2, 4], beta=10.0, sweeps=2)
    for qpu, time in (({}, 0.005), ({"protocol": "standard", "fields": "direct"}, 20.0)):
        assert QPU(**qpu).parameters["annealing_time"] == time
        found = sampler("dimod", sampler=chip, beta=10.0, qpu=qpu).sample(Ising(torch.ones(2, 3)), 5, seed=1)
        assert found.spins.shape == (5, 2, 3)
    assert QPU(protocol="standard", annealing_time_ns=500).parameters == {"annealing_time": 0.5}


@says(
    "hardware",
    "Boltzmann reads of any temperature leave about √(10/(4 · reads · spins)), .009 with 4,000 reads of 8 "
    "spins. Much "
    "more than that means that the reads follow no Boltzmann distribution of the problem.",
)
def calibration_errors() -> None:
    problem, weights = drawn(n=8, J=0.5, dtype=F64), torch.full((4000,), 1 / 4000, dtype=F64)

    def error(**reads_of: Any) -> float:
        samples = reads_of["backend"].sample(reads_of["problem"], 4000, seed=0)
        return calibration_error(problem, samples, fit_betas(problem, samples.spins, weights).scales)

    assert math.sqrt(10 / (4 * 4000 * 8)) == pytest.approx(0.009, abs=5e-4)
    for beta in (0.5, 1.0, 2.0):
        at_beta = Ising(beta * problem.fields, beta * problem.couplings)
        assert error(backend=sampler("exact"), problem=at_beta) < 0.015
    other = Ising(-problem.fields, 2 * problem.couplings.roll((1, 1), (0, 1)))  # another problem's reads
    assert error(backend=sampler("exact"), problem=other) > 0.05


@says(
    "hardware",
    "**`beta` must be given** for your own sampler",
    "If beta is declared, a simulated annealer that chooses its own final temperature is refused, since it "
    "would solve another problem. So is a schedule that ends at another beta.",
)
@says(
    "hardware",
    '`law="boltzmann"` is refused for optimisers, such as tabu search and steepest descent',
    "`auto_scale=False` is always sent, and True is refused.",
    "options named like a token are refused",
)
def declared_temperatures() -> None:
    annealer, at_two = (
        SimulatedAnnealingSampler(),
        {"beta_schedule_type": "custom", "beta_schedule": [2.0] * 3},
    )
    chip = StrictMockQPU(topology_type="zephyr", topology_shape=[2, 4], beta=10.0, sweeps=2)
    for options, message in (
        ({"sampler": annealer}, "beta: expected the inverse temperature"),
        ({"sampler": annealer, "beta": 1.0}, "parameters: expected beta_schedule or beta_range"),
        (
            {"sampler": annealer, "beta": 1.0, "parameters": at_two},
            "beta: expected the last inverse temperature",
        ),
        (
            {"sampler": TabuSampler(), "beta": 1.0, "law": "boltzmann"},
            "law: expected None, got 'boltzmann' for Tabu",
        ),
        ({"sampler": chip, "beta": 10.0, "parameters": {"auto_scale": True}}, "auto_scale: expected False"),
        ({"sampler": "m:S", "beta": 1.0, "options": {"token": "x"}}, "options: expected no 'token'"),
    ):
        with refused(message):
            sampler("dimod", **options)
    assert call_keywords(chip, {}, None)["auto_scale"] is False


# backends.md


@says("backends", "| three-body terms | yes | no | yes |", "| three-body terms | yes | no | no |")
@says(
    "backends",
    "| gradients | exact, straight-through, linear response, covariance | exact, straight-through, linear "
    "response, covariance | exact (implicit), straight-through, linear response |",
)
@says(
    "backends",
    "| gradients | straight-through, linear response, covariance | straight-through, linear response, "
    "covariance, adjoint | straight-through, linear response, covariance |",
)
@says(
    "backends",
    "26 (`native`), 24 (`torch`), 20 (`aer`), 1,024 with short couplings (`aer` by matrix product states)",
)
@says("backends", "`refine` supports reads only: no log Z and no `adjoint`.")
def capabilities() -> None:
    able = {name: sampler(name).capabilities for name in diabat.available_backends()}
    three_body = {name for name in able if able[name].three_body} - {"distributed"}
    assert three_body == {"exact", "mean_field", "tempering"}
    drawn_ones = ("straight_through", "linear_response", "covariance")
    assert able["exact"].gradients == able["banded"].gradients == ("exact", *drawn_ones)
    assert able["mean_field"].gradients == ("exact", *drawn_ones[:2])
    assert able["tempering"].gradients == able["dimod"].gradients == able["refine"].gradients == drawn_ones
    assert able["dqa"].gradients == (*drawn_ones, "adjoint")
    assert {"refine", "mean_field", "dqa", "dimod"}.isdisjoint(n for n in able if able[n].log_partition)
    for engine, most in (("native", 26), ("torch", 24), ("aer", 20)):
        assert sampler("dqa", engine=engine).capabilities.max_spins == most
    assert sampler("dqa", engine="aer", method="matrix_product_state").capabilities.max_spins == 1024


@says(
    "long-sequences",
    "`exact` sums P(s_j = -1) and P(s_j = +1) in one enumeration, up to 22 spins on the CPU.",
)
@says("limitations", "`exact` up to 22 spins on the CPU.")
def odds_of_one_enumeration() -> None:
    for n, one in ((22, True), (23, False)):
        small, others = sampler("exact")._divided(Ising(torch.zeros(1, n), torch.zeros(n, n)))
        assert (bool(small.tiers), bool(others.tiers)) == (one, not one)
    assert sampler("exact").solution(drawn(2, n=4), odds=True) is not None


# gradients.md


def table_of_bias() -> dict[tuple[str, str], list[tuple[float, float]]]:
    """∂L/∂h and ∂L/∂J by strength, for every backend and estimator."""
    text = (DOCS / "gradients.md").read_text(encoding="utf-8").split("Relative bias, |mean - exact|")[1]
    found = {}
    for row in text.split("\n\n")[1].splitlines()[2:]:
        backend, estimator, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        pairs = [tuple(map(float, cell.split(" / "))) for cell in cells]
        found[backend.strip("`"), estimator.strip("`")] = [(h, J) for h, J in pairs]
    return found


@says(
    "gradients",
    "With exact marginals its bias is less than a quarter of `straight_through`'s up to g = 0.6, and less "
    "than a third at g = 1.",
)
@says("gradients", "it gains less (0.080 for 0.114).")
def gain_of_linear_response() -> None:
    bias = table_of_bias()
    better, worse = bias["exact", "linear_response"], bias["exact", "straight_through"]
    for g, most in enumerate((1 / 4, 1 / 4, 1 / 4, 1 / 3)):
        assert all(b < most * w for b, w in zip(better[g], worse[g], strict=True))
    drawn_ones = (bias["tempering", name][0][1] for name in ("linear_response", "straight_through"))
    assert tuple(drawn_ones) == (0.080, 0.114)


@says("gradients", "This page says which of the five estimators to choose")
def five_estimators() -> None:
    names = get_args(Estimator)
    assert len(names) == 5
    assert all(f"| `{name}` |" in on("gradients") for name in names)


# statistics.md


@says(
    "statistics",
    "Reads of `distributed` and `refine` count as one chain, because `info` does not have the number of "
    "chains of the base. If the base has `thin`, give it yourself: `to_xarray(chains=8)`.",
)
def chains_of_composites() -> None:
    base, problem = {"num_chains": 8, "thin": 1}, drawn(2)
    for name in ("distributed", "refine"):
        options = {"workers": 0} if name == "distributed" else {}
        reads = sampler(name, sampler="tempering", options=base, **options).sample(problem, 16, seed=0)
        assert dict(reads.to_xarray().sizes) == {"chain": 1, "draw": 16, "batch": 2, "spin": 6}
        assert reads.to_xarray(chains=8).sizes["chain"] == 8
    assert sampler("tempering", **base).sample(problem, 16, seed=0).to_xarray().sizes["chain"] == 8


@says(
    "statistics",
    "- A spin that is invisible or fixed by `clamp` has the same value in every read.",
    "`data.where(data.visible)` does so for invisible ones.",
)
def still_spins() -> None:
    problem = drawn()
    hidden = Ising(problem.fields, problem.couplings, torch.tensor([True] * 5 + [False]))
    data = sampler("exact").sample(hidden, 50, seed=0).to_xarray()
    assert (data.spins[..., 5] == -1).all()
    assert data.where(data.visible).spins[..., 5].isnull().all()
    held = sampler("exact").sample(problem.clamp(torch.tensor([1, 0, 0, 0, 0, -1])), 50, seed=0).spins
    assert (held[:, 0] == 1).all()
    assert (held[:, 5] == -1).all()


@says(
    "statistics",
    "A state that contradicts a fixed variable has `log_prob` -inf.",
    "| `mean_field`, `dqa`, `dimod`, `refine` | none: `log_prob` refuses None |",
    "Where h, J or K need a gradient, a log Z without one is refused",
)
@says("statistics", "The last line is a marginal: log P(s_c) = log Z of the clamped problem - log Z.")
def likelihoods() -> None:
    problem, exact = drawn(dtype=F64), sampler("exact")
    held = torch.tensor([1, 0, 0, -1, 0, 0])
    given, log_z = problem.clamp(held), exact.moments(problem).log_partition
    index = torch.arange(64)
    chosen = (index & 1 == 1) & (index >> 3 & 1 == 0)
    assert log_z is not None
    marginal = exact.moments(given).log_partition - log_z
    assert float(marginal) == pytest.approx(float(exact.state_probabilities(problem)[chosen].sum().log()))
    assert given.log_prob(-torch.ones(6, dtype=F64), torch.zeros((), dtype=F64)) == -math.inf
    for name in ("mean_field", "dqa", "dimod", "refine"):
        none = sampler(name).moments(problem, seed=0).log_partition
        with refused("log_partition: expected log Z, .* got None"):
            problem.log_prob(torch.ones(6), none)
    with refused("log_partition: expected a gradient as in fields, got none"):
        Ising(problem.fields.requires_grad_(), problem.couplings).log_prob(torch.ones(6), log_z)


# ocean.md


@says(
    "ocean",
    '`OceanSampler("dqa", schedule="boltzmann-8")`; the default is `tempering`. `mean_field` only computes '
    "moments and is refused.",
    "`num_reads` (1, as everywhere in Ocean), `seed`, `beta`.",
    "Unknown keywords are ignored with a `SamplerUnknownArgWarning`",
    "Rows.** int8, one per read",
)
@says(
    "ocean",
    "Energies are those of the model, offset included, for SPIN and BINARY.",
    "The same seed gives the same sample set",
)
def ocean() -> None:
    spin = dimod.BinaryQuadraticModel({"a": 0.5}, {("a", "b"): 1.0}, 0.7, "SPIN")
    assert OceanSampler().sampler.name == "tempering"
    assert len(OceanSampler().sample(spin).record) == 1
    with refused("sampler: expected a backend that draws samples, got 'mean_field'"):
        OceanSampler("mean_field")
    with pytest.warns(dimod.exceptions.SamplerUnknownArgWarning):
        OceanSampler("exact").sample(spin, betta=2.0)
    for model in (spin, spin.change_vartype("BINARY", inplace=False)):
        one, other = (OceanSampler("exact").sample(model, num_reads=20, seed=3) for _ in range(2))
        assert one.record.sample.dtype == np.int8
        assert np.array_equal(one.record.sample, other.record.sample)
        assert np.allclose(one.record.energy, model.energies(one))


# executor.md


@says(
    "executor",
    "No process, one process and a hundred give the same tensors.",
    "`chunk_seeds`, the seed of every job; and `busy_s`",
    "`exact` does not, because autograd cannot cross the boundary of a process.",
)
def jobs() -> None:
    backend = sampler("distributed", sampler="exact", workers=0, chunk=2)
    assert "exact" not in backend.capabilities.gradients
    info = backend.moments(drawn(5), seed=7).info
    assert (info["chunks"], len(info["chunk_seeds"])) == (3, 3)
    assert info["base"]["backend"] == "exact"
    assert info["busy_s"] > 0


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # by torch.func.jacfwd
@pytest.mark.parametrize(
    ("page", "statement", "check"), ROWS, ids=[f"{page}-{check.__name__}" for page, _, check in ROWS]
)
def test_statement(page: str, statement: str, check: Check) -> None:
    assert statement in on(page), f"docs/{page}.md no longer says this; mend the row with the page"
    check()
