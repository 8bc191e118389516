"""Second derivatives of all that is differentiable: right on every way that torch knows, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from layers import F64, PAPER, arguments
from torch import Tensor, nn
from torch.autograd import forward_ad, grad
from torch.nn.attention import SDPBackend, sdpa_kernel

import diabat
from diabat.attention import WindowCouplings, games
from diabat.heads.calibration.mathematics import Calibration, calibrate
from diabat.heads.lora import losses
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.boltzmann.layer import BoltzmannHeads
from diabat.ising import pack_couplings
from diabat.samplers.capabilities import UnsupportedError

# torch compiles some of its own forward derivatives by what it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
Function = Callable[..., Tensor]
Leaves = tuple[Tensor, ...]
Entry = Callable[[], tuple[Function, Leaves]]


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def of_layer(build: Callable[[], nn.Module], tokens: int = 4) -> Entry:
    """A layer as a function of its input and of its couplings, or of its first weights."""

    def made() -> tuple[Function, Leaves]:
        torch.manual_seed(0)
        layer = build().double().eval()
        named = dict(layer.named_parameters())
        moved = [name for name in named if "coupling" in name] or [next(iter(named))]
        for i, name in enumerate(moved):
            named[name].data = random(*named[name].shape, scale=0.4, seed=i + 1)
        fixed = {name: p.detach() for name, p in named.items()}

        def function(x: Tensor, *parameters: Tensor) -> Tensor:
            given = fixed | dict(zip(moved, parameters, strict=True))
            found: Any = torch.func.functional_call(layer, given, arguments(layer, x))
            out: Tensor = found[0] if isinstance(found, tuple) else found
            return out

        return function, (random(1, tokens, 4), *(fixed[name] for name in moved))

    return made


def attention(**options: Any) -> Entry:
    return of_layer(
        lambda: diabat.BoltzmannAttention(4, 2, **(PAPER | {"window": 2, "relative": True} | options))
    )


def of_bridge(sampler: Any, gradient: str = "auto", **options: Any) -> Entry:
    """Probabilities of fields [2, 3] and shared couplings."""

    def made() -> tuple[Function, Leaves]:
        backend = sampler() if callable(sampler) else diabat.sampler(sampler)

        def function(h: Tensor, pairs: Tensor) -> Tensor:
            J = pack_couplings(pairs, 3)
            return diabat.spin_probabilities(h, J, backend, gradient=gradient, check=False, **options)

        return function, (random(1, 3), random(3, scale=0.4))

    return made


def of_sampler(sampler: Any, what: str) -> Entry:
    def made() -> tuple[Function, Leaves]:
        backend = sampler() if callable(sampler) else diabat.sampler(sampler)

        def function(h: Tensor, pairs: Tensor) -> Tensor:
            ising = diabat.Ising(h, pack_couplings(pairs, 3), check=False)
            if what == "odds":
                return backend.differentiable_log_odds(ising)
            moments = backend.differentiable_moments(ising)
            log_z = moments.log_partition
            p: Tensor = moments.probability
            return p if log_z is None else torch.cat((p, log_z[..., None]), -1)

        return function, (random(1, 3), random(3, scale=0.4))

    return made


def of_game(sampled: Any, f: str, weighting: str, **options: Any) -> Entry:
    """A sampled index of vectors and γ."""

    def function(x: Tensor, temperature: Tensor) -> Tensor:
        given: Any = {"weighting": weighting, "seed": 3} | options
        found: Tensor = sampled(games.NormGame(x, f), 6, temperature=temperature, **given).value
        return found

    return lambda: (function, (random(2, 4, 3), torch.tensor([0.6, 1.4], dtype=F64)))


def of_table(index: Any) -> Entry:
    return lambda: (index, (random(2, 8),))


def converged() -> diabat.Sampler:
    return diabat.sampler("mean_field", tolerance=1e-14, max_iterations=5000)


def anneal() -> diabat.Sampler:
    return diabat.sampler("dqa", schedule="boltzmann-4")


def neurogame(**options: Any) -> Entry:
    options = {"sampler": "exact", "num_coalitions": 4, "eval_coalitions": 4} | options
    return of_layer(lambda: diabat.NeuroGameAttention(4, 2, **options), tokens=3)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found = diabat.boltzmann_attention(q, k, v, is_causal=True)
    assert isinstance(found, Tensor)
    return found


def by_math(entry: Entry) -> Entry:
    """With the operators of torch in place of its fused kernels, which have one derivative."""

    def made() -> tuple[Function, Leaves]:
        function, leaves = entry()
        return sdpa_kernel(SDPBackend.MATH)(function), leaves

    return made


def hugging_face(**options: Any) -> Entry:
    return of_layer(lambda: BoltzmannHeads(1, BoltzmannOptions(**options)))


def focused(maps: Tensor) -> Tensor:
    seen = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    return calibrate(maps.masked_fill(~seen, -torch.inf).softmax(-1), seen, Calibration({0: [0]}, alpha=0.3))[
        0
    ]


UNCOUPLED: dict[str, Entry] = {
    "attention softmax of all keys": attention(mode="softmax", window=4, relative=False),
    "function without couplings": lambda: (causal, tuple(random(1, 2, 3, 2, seed=i) for i in range(3))),
}
RIGHT: dict[str, Entry] = {
    **{
        f"{sampled.__name__} {f} {weighting} {options}": of_game(sampled, f, weighting, **options)
        for f in ("identity", "tanh")
        for weighting in ("uniform", "gibbs")
        for sampled, options in (
            (games.sample_shapley, {}),
            (games.sample_banzhaf, {}),
            (games.sample_interaction, {"index": "shapley", "antithetic": True}),
        )
    },
    "mobius": of_table(games.mobius),
    "shapley": of_table(games.shapley),
    "banzhaf_interaction": of_table(games.banzhaf_interaction),
    "k_sii": of_table(lambda t: games.k_sii(t, 2)),
    "gibbs_interaction": of_table(lambda t: games.gibbs_interaction(t, 0.7)),
    **{
        f"NeuroGame {weighting} {f} {output}": neurogame(weighting=weighting, f=f, output=output)
        for weighting in ("uniform", "gibbs")
        for f, output in (("identity", "pooled"), ("tanh", "tokens"))
    },
    "NeuroGame of mean_field": neurogame(sampler=converged()),
    "NeuroGame that learns its temperature": neurogame(learn_temperature=True),
    "NeuroGame h": neurogame(mode="h"),
    **{
        f"attention {mode}": attention(mode=mode, window=3 if mode == "h+J+K" else 2)
        for mode in ("h", "h+J", "J", "h+J+K", "J-self")
    },
    "attention absolute": attention(window=4, relative=False),
    **{name: by_math(entry) for name, entry in UNCOUPLED.items()},
    "attention softmax": attention(mode="softmax"),
    "attention h odds": attention(mode="h", readout="odds"),
    "attention odds": attention(readout="odds"),
    "attention of mean_field": attention(sampler=converged()),
    "attention banded": attention(sampler="banded", bandwidth=1),
    "attention independent": attention(far="independent"),
    "attention independent odds": attention(far="independent", readout="odds"),
    "attention J independent odds": attention(mode="J", far="independent", readout="odds"),
    "multihead": of_layer(
        lambda: diabat.BoltzmannMultiheadAttention(4, 2, window=4, batch_first=True, readout="probability")
    ),
    "hugging face": hugging_face(window=2),
    "hugging face independent": hugging_face(window=2, far="independent"),
    **{f"probabilities {name}": of_bridge(name) for name in ("exact", "banded")},
    "probabilities of mean_field": of_bridge(converged),
    **{
        f"{what} {name}": of_sampler(name, what)
        for name in ("exact", "banded")
        for what in ("moments", "odds")
    },
    **{f"{what} of mean_field": of_sampler(converged, what) for what in ("moments", "odds")},
    "calibrated maps": lambda: (focused, (random(1, 2, 4, 4),)),
    "barrier": lambda: (lambda a: losses.log_det_barrier(a @ a.mT), (random(3, 4),)),
    "barlow": lambda: (losses.cross_head_barlow_twins, (random(1, 6, 2, 3),)),
    "disagreement": lambda: (losses.disagreement, (random(1, 3, 2, 3),)),
    "entropy": lambda: (losses.negative_entropy, (random(1, 3, 4),)),
}
REFUSED: dict[str, Entry] = {
    **{
        f"probabilities {name} {gradient}": of_bridge(name, gradient, **options)
        for name, gradient, options in (
            ("exact", "straight_through", {}),
            ("exact", "linear_response", {}),
            ("exact", "covariance", {"num_reads": 40, "seed": 5}),
            ("tempering", "covariance", {"num_reads": 40, "seed": 5}),
        )
    },
    **{
        f"probabilities of an anneal {gradient}": of_bridge(anneal, gradient)
        for gradient in ("adjoint", "straight_through", "linear_response")
    },
    "attention of reads": attention(sampler="exact", gradient="covariance", num_reads=20),
    "attention of an anneal": attention(sampler=anneal()),
    "attention J-self of reads": attention(mode="J-self", sampler="tempering", num_reads=20),
    "NeuroGame of an anneal": neurogame(sampler=anneal()),
}


def first(function: Function, leaves: Sequence[Tensor], nonlinear: bool) -> Function:
    """A loss, linear or not in the outputs."""
    out = function(*leaves)
    weights = random(*out.shape, seed=7)

    def loss(*given: Tensor) -> Tensor:
        y = function(*given)
        return (y * weights).sum() + nonlinear * (y * y * (1 + weights)).sum()

    return loss


def by_differences(loss: Function, leaves: Leaves, along: Leaves) -> list[Tensor]:
    """The derivative of all gradients along a direction, from the first derivative."""
    step, found = 2e-6, []
    for sign in (1, -1):
        moved = [(t + sign * step * d).requires_grad_() for t, d in zip(leaves, along, strict=True)]
        found.append(grad(loss(*moved), moved, materialize_grads=True))
    return [(a - b) / (2 * step) for a, b in zip(*found, strict=True)]


def by_create_graph(loss: Function, leaves: Leaves, along: Leaves) -> list[Tensor]:
    given = [t.clone().requires_grad_() for t in leaves]
    slopes = grad(loss(*given), given, create_graph=True, materialize_grads=True)
    return list(grad(inner(slopes, along), given, materialize_grads=True))


def by_inputs(loss: Function, leaves: Leaves, along: Leaves) -> list[Tensor]:
    """One pair of leaves at a time, the others not asked for."""
    found = []
    for i in range(len(leaves)):
        total = torch.zeros_like(leaves[i])
        for j in range(len(leaves)):
            given = [t.clone().requires_grad_() for t in leaves]
            slopes = grad(loss(*given), given[j], create_graph=True, materialize_grads=True)
            total += grad(inner(slopes, along[j : j + 1]), given[i], materialize_grads=True)[0]
        found.append(total)
    return found


def by_functional(loss: Function, leaves: Leaves, along: Leaves) -> list[Tensor]:
    return list(torch.autograd.functional.hvp(loss, leaves, along)[1])


def by_reverse_of_reverse(loss: Function, leaves: Leaves, along: Leaves) -> list[Tensor]:
    places = tuple(range(len(leaves)))
    return list(torch.func.grad(lambda *t: inner(torch.func.grad(loss, places)(*t), along), places)(*leaves))


def by_forward_of_reverse(loss: Function, leaves: Leaves, along: Leaves) -> list[Tensor]:
    places = tuple(range(len(leaves)))
    return list(torch.func.jvp(torch.func.grad(loss, places), leaves, along)[1])


def by_func_hessian(loss: Function, leaves: Leaves, along: Leaves) -> list[Tensor]:
    rows: Any = torch.func.hessian(loss, tuple(range(len(leaves))))(*leaves)
    return [contracted(row, along) for row in rows]


def by_duals(loss: Function, leaves: Leaves, along: Leaves) -> list[Tensor]:
    """Forward derivatives of a backward pass."""
    with forward_ad.dual_level():
        given = [
            forward_ad.make_dual(t.clone().requires_grad_(), d) for t, d in zip(leaves, along, strict=True)
        ]
        slopes = grad(loss(*given), given, create_graph=True, materialize_grads=True)
        found = [forward_ad.unpack_dual(slope).tangent for slope in slopes]
    return [torch.zeros_like(t) if d is None else d for t, d in zip(leaves, found, strict=True)]


WAYS = (
    by_create_graph,
    by_inputs,
    by_functional,
    by_reverse_of_reverse,
    by_forward_of_reverse,
    by_func_hessian,
    by_duals,
)


def inner(slopes: Sequence[Tensor], along: Sequence[Tensor]) -> Tensor:
    return sum(((a * b).sum() for a, b in zip(slopes, along, strict=True)), torch.zeros((), dtype=F64))


def contracted(row: Sequence[Tensor], along: Leaves) -> Tensor:
    parts = [
        (block.flatten(block.ndim - d.ndim) @ d.flatten()) if d.ndim else block * d
        for block, d in zip(row, along, strict=True)
    ]
    return sum(parts[1:], parts[0])


# One of each kind on every run; the others, and losses that are linear, take minutes.
USUAL = (
    "mobius", "k_sii", "gibbs_interaction", "NeuroGame gibbs tanh tokens", "attention h+J", "attention J-self",
    "attention odds", "attention independent odds", "attention J independent odds", "attention of mean_field",
    "attention h odds", "function without couplings", "multihead", "hugging face independent", "probabilities exact",
    "odds banded", "moments of mean_field", "entropy",
)  # fmt: skip
EVERY = [
    pytest.param(name, nonlinear, marks=() if nonlinear and name in USUAL else pytest.mark.slow)
    for name in RIGHT
    for nonlinear in (False, True)
]


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented")
@pytest.mark.parametrize(("name", "nonlinear"), EVERY)
def test_every_way_is_right(name: str, nonlinear: bool) -> None:
    """Against central differences of the first derivative, good to about 1e-8 of the largest."""
    function, leaves = RIGHT[name]()
    loss = first(function, leaves, nonlinear)
    along = tuple(random(*t.shape, seed=9 + i) for i, t in enumerate(leaves))
    wanted = by_differences(loss, leaves, along)
    for way in WAYS:
        if way is by_functional and name.endswith("of mean_field"):  # hvp differentiates three times
            with pytest.raises(UnsupportedError, match=r"expected at most second derivatives .* got a third"):
                way(loss, leaves, along)
            continue
        for got, want in zip(way(loss, leaves, along), wanted, strict=True):
            assert (got - want).abs().max() < 1e-6 * (1 + want.abs().max()), way.__name__


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented")
@pytest.mark.parametrize("name", UNCOUPLED)
def test_fused_kernels_of_torch_refuse_a_second_derivative(name: str) -> None:
    """But transforms of torch.func take operators; a graph of the first derivative alone is no matter."""
    function, leaves = UNCOUPLED[name]()
    loss, along = first(function, leaves, nonlinear=True), tuple(random(*t.shape) for t in leaves)
    for way in WAYS:
        if way in (by_create_graph, by_inputs, by_functional):
            with pytest.raises(
                UnsupportedError, match=r"^gradient: .* inside of .*sdpa_kernel.SDPBackend.MATH"
            ):
                way(loss, leaves, along)
    wanted = by_differences(loss, leaves, along)
    for got, want in zip(by_reverse_of_reverse(loss, leaves, along), wanted, strict=True):
        assert (got - want).abs().max() < 1e-6 * (1 + want.abs().max())
    given = [t.clone().requires_grad_() for t in leaves]
    found = [grad(loss(*given), given, create_graph=graph) for graph in (True, False)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "attention h+J",
        "attention odds",
        "attention banded",
        "attention of mean_field",
        "probabilities banded",
    ],
)
def test_parameters_that_are_no_arguments_need_a_gradient_as_well(name: str) -> None:
    """As in a layer that trains: derivatives by its input, beside couplings that require one."""
    function, (x, *others) = RIGHT[name]()
    held = [t.clone().requires_grad_() for t in others]
    loss = first(lambda x: function(x, *held), (x,), nonlinear=True)
    along = (random(*x.shape, seed=9),)
    [want] = by_differences(loss, (x,), along)
    for way in (by_create_graph, by_reverse_of_reverse, by_forward_of_reverse, by_func_hessian):
        [got] = way(loss, (x,), along)
        assert (got - want).abs().max() < 1e-6 * (1 + want.abs().max()), way.__name__


@pytest.mark.parametrize("strength", [1, 40, 300])
def test_a_penalty_on_the_gradient_of_strong_scores(strength: float) -> None:
    """In float32, where fields beyond its range are solved in float64; within 1e-4 of float64."""
    found = []
    for dtype in (torch.float32, F64):
        q, k, v = (random(1, 1, 4, 3, seed=i).to(dtype) for i in range(3))
        couplings = WindowCouplings(1, 3, init=0.4, dtype=dtype)
        x = (strength * q).requires_grad_()
        y = diabat.boltzmann_attention(x, k, v, couplings, is_causal=True, far="none")
        [slope] = grad(y.square().sum(), x, create_graph=True)
        found.append(grad(slope.square().sum(), [x, couplings.pairs]))
    for got, want in zip(*found, strict=True):
        assert (got - want).abs().max() <= 1e-4 * (1e-3 + want.abs().max())


@pytest.mark.filterwarnings("ignore:schedule")  # the anneal is not trained for these fields
@pytest.mark.parametrize("nonlinear", [False, True], ids=["linear", "nonlinear"])
@pytest.mark.parametrize("name", REFUSED)
def test_every_way_is_refused_in_a_sentence(name: str, nonlinear: bool) -> None:
    """By our own code: not by an error of torch, and never answered."""
    function, leaves = REFUSED[name]()
    loss = first(function, leaves, nonlinear)
    along = tuple(random(*t.shape, seed=9 + i) for i, t in enumerate(leaves))
    for way in WAYS:
        with pytest.raises(UnsupportedError, match=r"^gradient: [^\n]* use [^\n]*\.$"):
            way(loss, leaves, along)


def test_the_diagnostics_of_a_game_are_those_of_a_plain_call_under_transforms() -> None:
    x, seen = random(2, 4, 3), []

    def function(x: Tensor) -> Tensor:
        found = games.sample_interaction(games.NormGame(x), 6, weighting="gibbs", seed=3)
        seen.append([t for t in (found.standard_error, found.effective_samples) if t is not None])
        return found.value.sum()

    function(x)
    torch.func.vjp(function, x)
    torch.func.jvp(function, (x,), (x,))
    for plain, *others in zip(*seen, strict=True):
        for other in others:
            assert torch.allclose(torch.func.debug_unwrap(other), plain, atol=1e-12)


@pytest.mark.parametrize("sampled", [games.sample_shapley, games.sample_interaction])
def test_what_reads_values_is_not_mapped(sampled: Any) -> None:
    """In one sentence each: torch.func.vmap, and torch.autograd's batches of cotangents."""
    x = random(2, 3, 4, 3)

    def value(x: Tensor, players: Any = None) -> Tensor:
        found: Tensor = sampled(games.NormGame(x, players=players), 4, seed=0).value
        return found

    players = torch.ones(2, 4, dtype=torch.bool)
    unmapped = "expected a tensor that torch.func.vmap does not"
    for mapped, over in ((torch.func.grad(lambda x: value(x).sum()), x), (lambda p: value(x[0], p), players)):
        with pytest.raises(UnsupportedError, match=f"^vectors: {unmapped} map"):
            torch.func.vmap(mapped)(over)
    with pytest.raises(RuntimeError, match=r"got a batch of them .*; use torch\.func\.jacrev"):
        torch.autograd.functional.jacobian(value, x[0], vectorize=True)
    layer, padding = diabat.NeuroGameAttention(3, 1).double(), ~players[:, None].expand(-1, 3, -1)
    for given, dims, name in (((x, None), (0, None), "x"), ((x[0], padding), (None, 0), "key_padding_mask")):
        with pytest.raises(UnsupportedError, match=f"^{name}: {unmapped}"):
            torch.func.vmap(layer, in_dims=dims, randomness="same")(*given)


def test_mobius_is_mapped() -> None:
    tables = random(3, 2, 8)
    assert torch.equal(torch.func.vmap(games.mobius, in_dims=1, out_dims=1)(tables), games.mobius(tables))


def test_a_slope_of_func_grad_is_differentiated_by_tensors_behind_it() -> None:
    """A gradient penalty without couplings, by keys that train: autograd outside of the transform."""
    q, k, v = (random(1, 1, 4, 3, seed=i) for i in range(3))
    k.requires_grad_()
    (found,) = grad(torch.func.grad(lambda q: causal(q, k, v).square().sum())(q).square().sum(), k)
    again = q.clone().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        (slope,) = grad(causal(again, k, v).square().sum(), again, create_graph=True)
    torch.testing.assert_close(found, grad(slope.square().sum(), k)[0])


def test_roots_of_second_derivatives_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 numbers for each pair and coalition: 4 x 512² x 16 x 8 x 40 bytes are 5 GiB."""
    monkeypatch.setattr("diabat.compute.memory.available_bytes", lambda: 1 << 30)
    x = torch.randn(4, 512, 2, dtype=F64, requires_grad=True)
    value = games.sample_interaction(games.NormGame(x), 16, seed=0, diagnostics=False).value
    with pytest.raises(ValueError, match=r"^vectors: second derivatives of sampled interactions need 5 GiB"):
        grad(value.sum(), x, create_graph=True)
