"""GameLoss in a loop of plain torch: its value, its gradient against a naive form, what each loss moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from diabat.attention.heads.game_lora.bargaining import nash_weights
from diabat.attention.heads.game_lora.losses import cross_head_barlow_twins, log_det_barrier, pair_weights
from diabat.checks import ArgumentError
from diabat.huggingface import GameLoss, GameOptions
from diabat.samplers.base import UnsupportedError

from . import adapted as tiny

pytest.importorskip("peft", reason="the extra 'hf' is not installed")

LAYER = 1


def options(**changes: Any) -> GameOptions:
    defaults: dict[str, Any] = {"layers": [LAYER], "warmup": 0.0, "cooldown": 1.0}
    return GameOptions(**defaults | changes)


def trained(**changes: Any) -> Any:
    """Adapters that are not zero, so that every part of them has a gradient."""
    model = tiny.adapted(**changes)
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(0.1 * torch.randn(p.shape, generator=g))
    return model.train()


def gradients(model: Any, game: GameLoss, batch: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
    """Value and gradients of one step."""
    with game.capture(batch):
        ce = model(**batch).loss
    loss = game.loss(ce)
    loss.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    game.step()
    assert loss.item() == pytest.approx(ce.item(), abs=1e-6)
    return loss.item(), found


def naive(model: Any, batch: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Gradients of CE, LDB and ABT by one backward pass each, from a plain forward of the parts."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    projection = model.base_model.model.model.layers[LAYER].self_attn.o_proj
    seen: list[Tensor] = []
    hook = projection.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    ce = model(**batch).loss
    hook.remove()
    (g,) = torch.autograd.grad(ce, seen[0], retain_graph=True)
    count = tiny.HEADS
    # The last padded position predicts the first token, so that it has a gradient.
    g = g * batch["attention_mask"][..., None]
    flat = g.unflatten(-1, (count, -1)).double().transpose(0, 2).flatten(1)
    rho = flat @ flat.T / flat.norm(dim=1) / flat.norm(dim=1)[:, None]
    weight = projection.base_layer.weight + projection.get_delta_weight("default")
    parts = weight.unflatten(1, (count, -1)).transpose(0, 1).flatten(1).double()
    coupling = rho * (parts @ parts.T / parts.norm(dim=1) / parts.norm(dim=1)[:, None])
    mask = batch["attention_mask"].bool()
    heads = seen[0].unflatten(-1, (count, -1))
    losses = {
        "ce": ce,
        "ldb": log_det_barrier(coupling),
        "abt": cross_head_barlow_twins(heads, pair_weights(coupling.detach()), mask),
    }
    found = {}
    for name, loss in losses.items():
        grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        found[name] = {
            n: torch.zeros_like(p) if grad is None else grad
            for (n, p), grad in zip(named.items(), grads, strict=True)
        }
        found[name]["value"] = loss.detach()
    return found


def combined(parts: dict[str, dict[str, Tensor]], weights: dict[str, float]) -> dict[str, Tensor]:
    names = [n for n in parts["ce"] if n != "value"]
    return {n: sum(w * parts[task][n] for task, w in weights.items()) for n in names}  # type: ignore[misc]


def test_the_weighted_sum_has_the_naive_gradient() -> None:
    model, batch = trained(), tiny.batch(padding=3)
    parts = naive(model, batch)
    game = GameLoss(model, options(combination="sum"), 10)
    _, found = gradients(model, game, batch)
    ema = 0.1 * parts["abt"]["value"].item() + 0.9 * 20
    wanted = combined(parts, {"ce": 1, "ldb": 0.352, "abt": 0.179 * 20 / ema})
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=1e-7)
    metrics = game.metrics()
    assert metrics["game/abt"] == pytest.approx(parts["abt"]["value"].item(), rel=1e-5)
    assert metrics["game/ldb"] == pytest.approx(parts["ldb"]["value"].item(), rel=1e-5)
    assert metrics["game/weight_abt"] == pytest.approx(0.179 * 20 / ema)
    assert not game.metrics()


@pytest.mark.parametrize("multipliers", ["after", "before"])
def test_nash_has_the_naive_gradient(multipliers: str) -> None:
    """λ and the running mean multiply the Nash weights; before them they have no effect."""
    model, batch = trained(), tiny.batch(padding=3)
    parts = naive(model, batch)
    flat = torch.stack(
        [torch.cat([v.flatten() for n, v in part.items() if n != "value"]) for part in parts.values()]
    )
    alpha = nash_weights(flat.double() @ flat.double().T).weights
    ema = 0.1 * parts["abt"]["value"].item() + 0.9 * 20
    factors = (1, 0.352, 0.179 * 20 / ema) if multipliers == "after" else (1, 1, 1)
    weights = {t: f * float(a / alpha[0]) for t, f, a in zip(parts, factors, alpha, strict=True)}
    _, found = gradients(model, GameLoss(model, options(multipliers=multipliers), 10), batch)
    for name, value in combined(parts, weights).items():
        torch.testing.assert_close(found[name], value, rtol=5e-4, atol=1e-6)


def test_the_barrier_moves_the_output_adapter_of_its_layer_only() -> None:
    model, batch = trained(), tiny.batch()
    with_it, without = (
        gradients(model, GameLoss(model, options(losses=losses, combination="sum"), 10), batch)[1]
        for losses in (["ldb"], [])
    )
    moved = {n for n in with_it if not torch.equal(with_it[n], without[n])}
    assert moved
    assert all(f"layers.{LAYER}.self_attn.o_proj" in name for name in moved)


def test_barlow_twins_moves_what_is_below_the_heads() -> None:
    model, batch = trained(), tiny.batch()
    with_it, without = (
        gradients(model, GameLoss(model, options(losses=losses, combination="sum"), 10), batch)[1]
        for losses in (["abt"], [])
    )
    moved = {n for n in with_it if not torch.allclose(with_it[n], without[n], rtol=1e-5, atol=1e-9)}
    below = ("layers.0.", *(f"layers.{LAYER}.self_attn.{p}_proj" for p in "qkv"))
    assert moved
    assert all(any(part in name for part in below) for name in moved)


def test_plain_when_every_weight_is_zero() -> None:
    model, batch = trained(), tiny.batch()
    model(**batch).loss.backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for combination in ("sum", "nash"):
        game = GameLoss(model, options(combination=combination, ldb_weight=0.0, abt_weight=0.0), 10)
        _, found = gradients(model, game, batch)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-8)


def test_last_step_takes_the_coupling_of_the_step_before() -> None:
    """The same batch and unchanged weights: both ways agree, also when the gradient of Barlow Twins passes too."""
    model, batch = trained(), tiny.batch()
    fresh, last = (
        GameLoss(model, options(rho=rho, combination="sum", ema_decay=1.0), 10)
        for rho in ("fresh", "last_step")
    )
    for _ in range(3):  # the first measures afresh, and the second uses that
        wanted, found = gradients(model, fresh, batch)[1], gradients(model, last, batch)[1]
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-7)
    # Another batch: it still has the coupling of the first.
    gradients(model, last, tiny.batch(seed=5))
    gradients(model, fresh, tiny.batch(seed=5))
    a, b = fresh.metrics()["game/gamma"], last.metrics()["game/gamma"]
    assert a != pytest.approx(b, rel=1e-4)


def test_nash_weights_are_kept_between_solutions() -> None:
    model = trained()
    game = GameLoss(model, options(nash_every=3), 10)
    seen = []
    for step in range(4):
        gradients(model, game, tiny.batch(seed=step))
        seen.append(tuple(game.weights.values()))
    assert seen[0] == seen[1] == seen[2] != seen[3]


def test_padding_changes_nothing() -> None:
    """Left padding of one more position, of tokens that no one sees."""
    model, batch = trained(), tiny.batch()
    longer = {
        key: torch.cat([torch.full((4, 2), fill), batch[key]], 1)
        for key, fill in (("input_ids", 0), ("attention_mask", 0), ("labels", -100))
    }
    longer["labels"][:, 2] = -100  # which the padding would predict
    positions = {"position_ids": (longer["attention_mask"].cumsum(1) - 1).clamp(min=0)}
    value, wanted = gradients(model, GameLoss(model, options(), 10), batch)
    other, found = gradients(model, GameLoss(model, options(), 10), longer | positions)
    assert value == pytest.approx(other, abs=1e-5)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=2e-3, atol=2e-6)


def test_two_micro_batches_give_the_gradient_of_the_whole_batch() -> None:
    """The same examples twice, so that the statistics of a half are those of the whole."""
    model, half = trained(), tiny.batch(padding=2)
    whole = {k: torch.cat([v, v]) for k, v in half.items()}
    for changes in ({}, {"combination": "sum"}, {"rho": "last_step"}, {"nash_every": 2}):
        one, two = (GameLoss(model, options(**changes), 10) for _ in range(2))
        for _ in range(2):
            _, wanted = gradients(model, one, whole)
            for last in (False, True):
                with two.capture(half):
                    ce = model(**half).loss
                two.loss(ce / 2, micro_batches=2, last=last).backward()
            found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            model.zero_grad()
            two.step()
            for name, value in wanted.items():
                torch.testing.assert_close(found[name], value, rtol=5e-4, atol=1e-6)
        assert one.metrics() == pytest.approx(two.metrics(), rel=1e-4)
        assert one.state_dict()["ema"] == pytest.approx(two.state_dict()["ema"], rel=1e-6)


def test_a_state_goes_on_where_it_was() -> None:
    model = trained()
    whole = GameLoss(model, options(rho="last_step", nash_every=2), 6)
    for step in range(3):
        gradients(model, whole, tiny.batch(seed=step))
    second = GameLoss(model, options(rho="last_step", nash_every=2), 6)
    second.load_state_dict(whole.state_dict())
    for step in (3, 4):
        wanted, found = (gradients(model, game, tiny.batch(seed=step))[1] for game in (whole, second))
        assert tiny.gap(wanted, found) == 0
    assert whole.state_dict() == second.state_dict()


def test_all_losses_together_and_several_layers() -> None:
    model = trained()
    everything = options(
        layers=[0, 2],
        abt_layers=[1],
        losses=["ldb", "abt", "disagreement", "entropy"],
        target="zero",
        weighting="inverse",
    )
    game = GameLoss(model, everything, 10)
    gradients(model, game, tiny.batch(padding=2))
    names = {"ldb", "abt", "disagreement", "entropy", "gamma", "opposed"}
    weights = {f"weight_{name}" for name in names - {"gamma", "opposed"}}
    assert {name.removeprefix("game/") for name in game.metrics()} == names | weights
    assert everything.measured() == (0, 1, 2)


def test_a_second_forward_without_gradients_is_ignored() -> None:
    model, batch = trained(), tiny.batch()
    plain, twice = (GameLoss(model, options(), 10) for _ in range(2))
    _, wanted = gradients(model, plain, batch)
    with twice.capture(batch):
        with torch.no_grad():
            model(**tiny.batch(seed=9))
        ce = model(**batch).loss
        with torch.no_grad():
            model(**tiny.batch(seed=9))
    twice.loss(ce).backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert tiny.gap(wanted, found) == 0


def one_head() -> GameLoss:
    return GameLoss(tiny.adapted(tiny.decoder(num_attention_heads=1, num_key_value_heads=1)), options(), 5)


def merged() -> GameLoss:
    model = tiny.adapted()
    model.merge_adapter()
    return GameLoss(model, options(), 5)


def only_outputs() -> Tensor:
    """Adapters at the first layer only come after the heads of it."""
    model = tiny.adapted(targets=("o_proj",), layers_to_transform=[0]).train()
    game = GameLoss(model, options(layers=[0]), 5)
    with game.capture(tiny.batch()):
        return model(**tiny.batch()).loss


def without_capture() -> Tensor:
    model = tiny.adapted()
    return GameLoss(model, options(), 5).loss(model(**tiny.batch()).loss)


def without_gradients() -> None:
    model = tiny.adapted()
    with GameLoss(model, options(), 5).capture(tiny.batch()), torch.no_grad():
        model(**tiny.batch())


def not_finite() -> Tensor:
    model, batch = tiny.adapted(), tiny.batch()
    game = GameLoss(model, options(), 5)
    with game.capture(batch):
        ce = model(**batch).loss * float("nan")
    return game.loss(ce)


def no_gradient() -> Tensor:
    model, batch = tiny.adapted(), tiny.batch()
    game = GameLoss(model, options(), 5)
    with game.capture(batch):
        ce = model(**batch).loss * 0
    return game.loss(ce)


def wrong_mask() -> None:
    model, batch = tiny.adapted(), tiny.batch()
    with GameLoss(model, options(), 5).capture(batch | {"attention_mask": torch.ones(4, 1, 12, 12)}):
        pass


def other_options() -> None:
    model = tiny.adapted()
    state = GameLoss(model, options(ldb_weight=0.5), 5).state_dict()
    GameLoss(model, options(), 5).load_state_dict(state)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (one_head, ArgumentError, "model: expected two heads or more that interact, got one in layer 1"),
        (merged, UnsupportedError, "expected adapters beside the weights, got one merged"),
        (lambda: GameLoss(tiny.adapted(use_dora=True), options(), 5), UnsupportedError, "got Dora"),
        (lambda: GameLoss(tiny.adapted(), options(layers=[3]), 5), ArgumentError, "layers: expected a layer"),
        (
            lambda: GameLoss(tiny.adapted(targets=("q_proj", "v_proj")), options(), 5),
            UnsupportedError,
            "expected an adapter at the output projection of layer 1, which the log-det barrier moves, got none",
        ),
        (
            lambda: GameLoss(tiny.decoder().requires_grad_(False), options(), 5),
            UnsupportedError,
            "expected trained",
        ),
        (
            only_outputs,
            UnsupportedError,
            "expected trained parameters below the outputs of the heads of layer 0",
        ),
        (without_capture, ArgumentError, r"expected a forward with gradients inside capture\(\) before each"),
        (without_gradients, ArgumentError, r"expected a forward with gradients inside capture\(\), got none"),
        (not_finite, ArgumentError, "loss: expected finite gradients at the heads of layer 1"),
        (no_gradient, ArgumentError, "cross_entropy: expected a gradient that is not zero"),
        (wrong_mask, ArgumentError, r"attention_mask: expected a tensor \[B, T\], got \[4, 1, 12, 12\]"),
        (
            other_options,
            ArgumentError,
            "game_state: expected the options of the run, ldb_weight 0.352, got 0.5",
        ),
        (lambda: GameLoss(tiny.adapted(), {}, 5), ArgumentError, "options: expected GameOptions, got dict"),  # type: ignore[arg-type]
        (
            lambda: GameLoss(tiny.adapted(), options(), 0),
            ArgumentError,
            "total_steps: expected an integer >= 1",
        ),
    ],
)
def test_refusals(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": []}, r"layers: expected a list of layers, got \[\]"),
        ({"layers": [1, 1]}, r"layers: expected different integers >= 0, got \[1, 1\]"),
        ({"abt_layers": "19"}, "abt_layers: expected a list of layers, got '19'"),
        ({"losses": ["lbd"]}, "losses: expected one of .* Did you mean 'ldb'"),
        ({"losses": ["ldb", "ldb"]}, "losses: expected different losses"),
        ({"losses": "ldb"}, "losses: expected a list of losses, got 'ldb'"),
        ({"ldb_weight": -1.0}, "ldb_weight: expected a finite number >= 0, got -1.0"),
        ({"abt_weight": float("inf")}, "abt_weight: expected a finite number >= 0, got inf"),
        ({"threshold": float("nan")}, "threshold: expected a finite number, got nan"),
        ({"floor": 1.5}, "floor: expected a number in 0 .. 1, got 1.5"),
        ({"warmup": 0.9}, "warmup: expected at most cooldown = 0.879, got 0.9"),
        ({"ema_decay": 0.0}, r"ema_decay: expected a number in \(0, 1\], got 0.0"),
        ({"epsilon": 0.0}, "epsilon: expected a positive finite number, got 0.0"),
        ({"nash_every": 0}, "nash_every: expected an integer >= 1, got 0"),
        ({"combination": "mean"}, "combination: expected one of nash, sum, got 'mean'"),
        ({"rho": "last"}, "rho: expected one of fresh, last_step, got 'last'"),
        ({"multipliers": "none"}, "multipliers: expected one of after, before"),
        ({"target": "one"}, "target: expected one of identity, zero"),
        ({"weighting": "flat"}, "weighting: expected one of adaptive, inverse, uniform"),
    ],
)
def test_options_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        GameOptions(**changes)
