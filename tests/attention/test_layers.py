"""What holds for every layer: seeds, gradients, precision, and that a batch is kept only where it is recorded."""

from __future__ import annotations

import copy
import gc
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from largest_tensor import LargestTensor
from layers import LAYERS, PAPER, answer, arguments, coupled, tokens
from left_behind import left_behind
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cosine_similarity
from torch.utils.checkpoint import checkpoint

import diabat
from diabat.attention.coupled import SELF_MODES, recording
from diabat.lab.models import Model
from diabat.lab.tasks.base import Split
from diabat.lab.training import evaluate
from diabat.samplers.exact import ExactSampler

DRAWING = ("attention", "odds", "own spin", "slots", "multihead", "neurogame")
RECORDING = [kind for kind in LAYERS if kind != "neurogame"]
PADDED = [kind for kind in RECORDING if "hugging face" not in kind]


def built(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return coupled(LAYERS[kind](**options), std=1.0)


def inputs() -> Tensor:
    return tokens(3, 6, dtype=torch.float32)


def tempering(**options: Any) -> diabat.Sampler:
    return diabat.sampler("tempering", num_replicas=2, burn_in=2, sweeps=3, num_chains=3, **options)


@pytest.mark.parametrize("kind", DRAWING)
def test_equal_inputs_have_equal_outputs_in_evaluation(kind: str) -> None:
    layer, x = built(kind, sampler=tempering()), inputs()
    trained = []
    for seed in (5, 5, 6):  # a resumed run relies on torch's generator
        torch.manual_seed(seed)
        trained.append(answer(layer, x))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])
    layer.eval()
    state = torch.get_rng_state()
    first = answer(layer, x)
    assert torch.equal(answer(layer, x), first)
    assert torch.equal(torch.get_rng_state(), state)
    layer.eval_seed = 7
    assert not torch.equal(answer(layer, x), first)
    layer.eval_seed = None
    assert not torch.equal(answer(layer, x), answer(layer, x))


@pytest.mark.parametrize("kind", ["attention", "multihead", "neurogame"])
@pytest.mark.parametrize("gradient", ["straight_through", "covariance"])
def test_checkpointing_computes_reads_again(kind: str, gradient: str) -> None:
    """torch's default form of it, which hands out each saved tensor once; the same seed, so the same gradient."""
    layer, found = built(kind, sampler=tempering(), gradient=gradient), []
    for again in (False, True):
        x = inputs().requires_grad_()
        torch.manual_seed(3)
        y = checkpoint(answer, layer, x, use_reentrant=False) if again else answer(layer, x)
        found.append(torch.autograd.grad(y.square().sum(), x)[0])
    assert torch.equal(*found)


def test_chains_that_continue_draw_in_evaluation() -> None:
    layer, x = built("attention", sampler=tempering(persistent=True)).eval(), inputs()
    answer(layer, x)
    chains = layer.sampler.chains
    different = answer(layer, x)
    layer.sampler.chains = chains
    assert not torch.equal(answer(layer, x), different)


# What has no gradient: scores without fields, a shift of all scores, and J where every spin is even.
IDLE: dict[str, set[str]] = {
    **{kind: {"query", "key"} for kind in ("own spin", "K", "J+K", "J-self")},
    **{kind: {"key.bias"} for kind in ("odds", "softmax")},
    "J": {"query", "key", "couplings"},
}


def is_idle(name: str, kind: str) -> bool:
    return bool({name, name.split(".")[0]} & IDLE.get(kind.split(" of ")[0], set()))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"sampler": name}) for kind in DRAWING for name in ("tempering", "mean_field")),
        *(("attention", {"mode": mode}) for mode in SELF_MODES),
    ],
    ids=str,
)
def test_gradients_reach_every_parameter(kind: str, options: dict[str, Any]) -> None:
    """None of J would be an error for a wrapper, also where it does not matter."""
    drawn = options.get("sampler") == "tempering"
    layer = built(kind, **options | ({"sampler": tempering()} if drawn else {}))
    state = torch.get_rng_state()
    found = answer(layer, inputs())
    assert kind == "neurogame" or torch.equal(torch.get_rng_state(), state) is not drawn
    found.sin().sum().backward()
    copy.deepcopy(layer)  # nothing of the graph is kept
    for name, p in layer.named_parameters():
        if is_idle(name, options.get("mode", kind)):
            assert p.grad is None or p.grad.abs().max() < 1e-5, name
            assert p.grad is not None or "couplings" not in name
        else:
            assert p.grad is not None, name
            assert p.grad.isfinite().all(), name
            assert p.grad.any(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if "hugging face" not in kind])
def test_half_precision_and_autocast_compute_marginals_in_full_precision(
    kind: str, dtype: torch.dtype
) -> None:
    """Outputs, and the directions of gradients."""
    options = {"sampler": "mean_field"} if kind in DRAWING else {}
    layer, x = coupled(built(kind, **options), std=0.3).eval(), inputs()
    out = answer(layer, x)
    with torch.autocast("cpu", dtype):
        low = answer(layer, x)
        assert answer(layer, x.to(dtype)).isfinite().all()
    narrow = copy.deepcopy(layer).to(dtype)
    for found, owner in ((low, layer), (answer(narrow, x.to(dtype)), narrow)):
        assert found.dtype == dtype
        assert (found.float() - out).abs().max() < 0.1 * out.abs().max() + 0.02
        slopes = [
            torch.autograd.grad(
                y.float().square().sum(),
                [p for name, p in part.named_parameters() if not is_idle(name, kind)],
                retain_graph=True,
            )
            for y, part in ((out, layer), (found, owner))
        ]
        for want, got in zip(*slopes, strict=True):
            assert got.isfinite().all()
            assert cosine_similarity(got.double().flatten(), want.double().flatten(), 0) > 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in LAYERS),
        *((kind, {"sampler": "mean_field"}) for kind in DRAWING),
        ("far keys", {"softcap": 3.0}),
    ],
    ids=str,
)
def test_derivatives_may_be_taken_under_autocast(
    kind: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    layer, x, found = built(kind, **options).eval(), inputs().requires_grad_(), []
    for inside in (False, True):
        with torch.autocast("cpu", dtype):
            loss = answer(layer, x).float().square().sum()
        with torch.autocast("cpu", dtype, enabled=inside):
            alone = torch.autograd.grad(loss, x, retain_graph=True)
            [first] = torch.autograd.grad(loss, x, create_graph=True)
            found.append((*alone, first, *torch.autograd.grad(first.square().sum(), x)))
    for outer, inner in zip(*found, strict=True):
        assert (inner - outer).abs().max() < 0.02 * outer.abs().max()


@pytest.mark.parametrize("kind", PADDED)
def test_padding_is_the_shorter_sequence(kind: str) -> None:
    options = {"sampler": diabat.sampler("mean_field", tolerance=1e-13)} if kind in DRAWING else {}
    layer = built(kind, **options).double().eval()
    mask = torch.arange(6) >= torch.tensor([[6], [2], [4]])
    x = torch.where(mask[..., None], 30.0, tokens(3, 6))
    out = layer(*arguments(layer, x), key_padding_mask=mask)
    out = out[0] if isinstance(out, tuple) else out
    for row, length in enumerate((6, 2, 4)):
        alone = answer(layer, x[row : row + 1, :length])[0]
        atol = 1e-5 if "mean field" in kind else 1e-10
        torch.testing.assert_close(out[row, :length] if out.ndim == 3 else out[row], alone, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("kind", "options"), [*((kind, {}) for kind in PADDED), ("attention", {"mode": "softmax"})], ids=str
)
def test_vmap_is_a_loop(kind: str, options: dict[str, Any]) -> None:
    layer, x = built(kind, **options).double().eval(), tokens(6, 6).unflatten(0, (3, 2))
    mapped = vmap(partial(answer, layer))(x)
    atol = 1e-5 if "mean field" in kind else 1e-10  # problems of a batch iterate until the last one is done
    torch.testing.assert_close(mapped, torch.stack([answer(layer, part) for part in x]), rtol=0, atol=atol)


def test_representations_show_the_options() -> None:
    shown = "mode='h+J', readout='odds', gradient='auto', "
    sampled = "(sampler): DQASampler(engine='native', schedule='Advantage2_system1', annealing_time_ns=2.0,"
    for kind, options, parts in (
        ("odds", {"bias": False}, [f"embed_dim=8, num_heads=2, {shown}causal=True", "bias=False"]),
        ("attention", {"sampler": diabat.sampler("dqa", annealing_time_ns=2.0, steps=60)}, [sampled]),
        ("odds of far keys", {"rotary": True}, [f"{shown}far='independent', causal=True, rotary=True"]),
        ("slots", {}, ["WindowCouplings(2, 3, bandwidth=2, relative=True)"]),
        ("multihead", {"readout": "odds"}, [f"embed_dim=8, num_heads=2, {shown}batch_first=True"]),
        ("band", {}, ["WindowCouplings(2, 6, bandwidth=1, relative=False)", "BandedSampler(bandwidth=1"]),
    ):
        for part in parts:
            assert part in repr(LAYERS[kind](**options))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in ("slots", "odds of far keys", "hugging face")),
        *((kind, {"dropout": 0.1}) for kind in ("far keys", "odds of far keys")),
    ],
    ids=str,
)
def test_a_training_step_forms_no_matrix_of_scores(kind: str, options: dict[str, Any]) -> None:
    """Of 2 x 2 heads and 900 tokens; a mask of Hugging Face has 900 x 900 numbers."""
    layer, x = built(kind, **options), tokens(2, 900, dtype=torch.float32).requires_grad_()
    with LargestTensor() as largest:
        answer(layer, x).sum().backward()
    assert largest.numel <= (900 * 900 if kind == "hugging face" else 2 * 2 * 128 * 900)


@pytest.mark.parametrize("kind", ["attention", "odds of far keys", "multihead"])
def test_dropout_acts_in_training_only(kind: str) -> None:
    layer, plain, x = built(kind, dropout=0.5), built(kind).eval(), inputs()
    assert not torch.equal(answer(layer, x), answer(layer, x))
    assert torch.equal(answer(layer.eval(), x), answer(plain, x))


class Chain(Model, nn.Sequential):
    """A model without options."""


def test_an_evaluation_of_a_split_draws_for_every_batch_by_its_seed() -> None:
    layer, symbols = built("attention", sampler=tempering()), torch.tensor([[0, 2, 1, 3]])
    model = Chain(nn.Embedding(4, 8), layer)
    one, twice = Split(symbols, symbols), Split(*(symbols.expand(2, -1) for _ in range(2)))

    def loss(split: Split, seed: int) -> float:
        return evaluate(model, split, batch_size=1, seed=seed)[0]

    assert loss(twice, 1) == loss(twice, 1)
    assert loss(twice, 1) != loss(twice, 2)
    assert loss(twice, 1) != loss(one, 1)
    assert layer.eval_seed == 0


def numbers_alive() -> int:
    """Numbers in all new tensors that Python holds."""
    gc.collect()
    return sum(
        t.numel() for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter) and t.is_floating_point()
    )


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", RECORDING)
def test_nothing_of_a_batch_is_alive_after_it(name: str, gradients: bool) -> None:
    gc.freeze()  # what there is before is not looked through again
    layer = LAYERS[name]()
    with torch.set_grad_enabled(gradients):
        answer(layer, torch.randn(40, 6, 8))  # whatever is computed once
        before = numbers_alive()
        answer(layer, torch.randn(50, 6, 8))
        assert numbers_alive() == before
        with layer.recording():
            answer(layer, torch.randn(50, 6, 8))
            assert numbers_alive() > before
        assert numbers_alive() == before


@pytest.mark.parametrize("name", RECORDING)
def test_copies_and_files_are_those_of_a_new_layer(name: str) -> None:
    layer = LAYERS[name]().eval()
    size = len(pickle.dumps(layer))
    with torch.no_grad(), layer.recording():
        answer(layer, torch.randn(40, 6, 8))
        layer.last_problem()
        assert len(pickle.dumps(layer)) == size
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            with pytest.raises(RuntimeError, match="not recorded"):
                other.last_problem()
        layer.last_problem()
    assert len(pickle.dumps(layer)) == size


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in RECORDING),
        ("attention", {"sampler": "mean_field"}),
        ("attention", {"sampler": "dqa"}),
    ],
    ids=str,
)
def test_ensembles_are_layers_one_by_one(kind: str, options: dict[str, Any]) -> None:
    """stack_module_state, functional_call and vmap of gradients; layers are copied as before afterwards."""
    if options.get("sampler") == "mean_field":  # all problems of a batch iterate until the last one is done
        options = {"sampler": diabat.sampler("mean_field", tolerance=1e-13)}
    layers = [coupled(LAYERS[kind](**options), std=0.3).double() for _ in range(3)]
    parameters, buffers = stack_module_state(layers)
    x = tokens(2, 6)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        found = functional_call(layers[0], (p, b), arguments(layers[0], x))
        return (found[0] if isinstance(found, tuple) else found).square().mean()

    # A layer over an anneal draws a seed, one for all, although this one has no use for it.
    randomness = "same" if "sampler" in options else "error"
    with torch.no_grad():
        losses = vmap(loss, randomness=randomness)(parameters, buffers)
    slopes = vmap(grad(loss), randomness=randomness)(parameters, buffers)
    for i, layer in enumerate(layers):
        own = dict(layer.named_parameters())
        mean = answer(layer, x).square().mean()
        assert torch.allclose(losses[i], mean, atol=1e-9)
        alone = torch.autograd.grad(mean, list(own.values()), materialize_grads=True)
        for name, slope in zip(own, alone, strict=True):
            assert torch.allclose(slopes[name][i], slope, atol=1e-9), name
    for other in (pickle.loads(pickle.dumps(layers[0])), copy.deepcopy(layers[0])):
        assert torch.equal(answer(other, x), answer(layers[0], x))


def test_fields_are_asked_for_inside_of_a_recording() -> None:
    layer, x = LAYERS["attention"](), torch.randn(2, 6, 8)
    layer(x)
    outside = r"not recorded; call the layer.* inside of 'with layer\.recording\(\):'\.$"
    with pytest.raises(RuntimeError, match=outside):
        layer.last_problem()
    with layer.recording():
        for asked in (layer.last_problem, layer.last_path):
            with pytest.raises(RuntimeError, match="no forward pass has been recorded yet; call the layer"):
                asked()
        layer(x)
        problem = layer.last_problem()
        with layer.recording():  # one in another is the same
            assert torch.equal(layer.last_problem().fields, problem.fields)
            layer(2 * x)
        assert not torch.equal(layer.last_problem().fields, problem.fields)
        assert not problem.fields.requires_grad
        assert not problem.couplings.requires_grad
    with pytest.raises(RuntimeError, match="not recorded"):
        layer.last_problem()


def test_a_recording_ends_with_an_error() -> None:
    layers = [LAYERS["attention"](), LAYERS["far keys"]()]

    def call() -> None:
        with recording(layers):
            for layer in layers:
                answer(layer, torch.randn(2, 6, 8))
            layers[0](torch.randn(2, 6, 7))

    with pytest.raises(ValueError, match="x: expected"):
        call()
    for layer in layers:
        with pytest.raises(RuntimeError, match="not recorded"):
            layer.last_problem()


STEPS: list[dict[str, Any]] = [
    *({}, {"mode": "h+J+K"}, {"mode": "J-self"}, {"sampler": "mean_field"}, {"sampler": "dqa"}),
    {"sampler": "banded", "bandwidth": 2},
    {"relative": True, "readout": "odds"},
    {"relative": True, "readout": "odds", "far": "independent"},
]


@pytest.mark.parametrize("options", STEPS, ids=str)
def test_a_step_of_a_layer_leaves_nothing(options: dict[str, Any]) -> None:
    layer: Any = diabat.BoltzmannAttention(16, 2, 8, **PAPER | options)
    x = torch.randn(4, 8, 16)
    assert left_behind(lambda: layer(x).square().sum().backward()) == 0


@pytest.mark.parametrize("problems", [1, 3_000])
def test_log_odds_of_exact_leave_nothing(problems: int) -> None:
    h, J = torch.randn(problems, 6, requires_grad=True), torch.zeros(6, 6, requires_grad=True)

    def step() -> None:
        ExactSampler().differentiable_log_odds(diabat.Ising(h, J)).square().sum().backward()

    assert left_behind(step) == 0
