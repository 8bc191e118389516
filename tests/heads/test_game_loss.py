"""GameLoss in a loop of plain torch: its value, its gradient against a naive form, what each loss moves, its state."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.heads import GameLoss, GameOptions
from diabat.heads.lora.losses import cross_head_barlow_twins, log_det_barrier, nash_weights, pair_weights

from . import game as tiny


def options(**changes: Any) -> GameOptions:
    return tiny.options(**{"warmup": 0.0, "cooldown": 1.0} | changes)


def trained() -> Any:
    """Adapters that are not zero, so that every part of them has a gradient."""
    return tiny.adapted(trained=True)


def gradients(model: Any, game: GameLoss, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of one step; its value is the cross-entropy."""
    with game.capture(batch):
        ce = model(**batch).loss
    loss = game.loss(ce)
    loss.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    game.step()
    assert loss.item() == pytest.approx(ce.item(), abs=1e-6)
    return found


def naive(model: Any, batch: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Gradients of CE, LDB and ABT by one backward pass each, from a plain forward of the parts."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    projection = model.base_model.model.model.layers[tiny.LAYER].self_attn.o_proj
    seen: list[Tensor] = []
    hook = projection.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    ce = model(**batch).loss
    hook.remove()
    (g,) = torch.autograd.grad(ce, seen[0], retain_graph=True)
    # The last padded position predicts the first token, so that it has a gradient.
    g = g * batch["attention_mask"][..., None]
    flat = g.unflatten(-1, (tiny.HEADS, -1)).double().transpose(0, 2).flatten(1)
    rho = flat @ flat.T / flat.norm(dim=1) / flat.norm(dim=1)[:, None]
    weight = projection.base_layer.weight + projection.get_delta_weight("default")
    parts = weight.unflatten(1, (tiny.HEADS, -1)).transpose(0, 1).flatten(1).double()
    coupling = rho * (parts @ parts.T / parts.norm(dim=1) / parts.norm(dim=1)[:, None])
    heads = seen[0].unflatten(-1, (tiny.HEADS, -1))
    mask = batch["attention_mask"].bool()
    losses = {
        "ce": ce,
        "ldb": log_det_barrier(coupling),
        "abt": cross_head_barlow_twins(heads, pair_weights(coupling.detach()), mask),
    }
    found = {}
    for name, loss in losses.items():
        grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        pairs = zip(named.items(), grads, strict=True)
        found[name] = {n: torch.zeros_like(p) if grad is None else grad for (n, p), grad in pairs}
        found[name]["value"] = loss.detach()
    return found


@pytest.mark.parametrize("combination", ["sum", "nash"])
def test_a_step_has_the_naive_gradient(combination: str) -> None:
    """λ and the running mean multiply the Nash weights."""
    model, batch = trained(), tiny.batch(padding=3)
    parts = naive(model, batch)
    values = {task: part.pop("value").item() for task, part in parts.items()}
    ema = 0.1 * values["abt"] + 0.9 * 20
    weights = {"ce": 1, "ldb": 0.352, "abt": 0.179 * 20 / ema}
    if combination == "nash":
        flat = torch.stack([torch.cat([v.flatten() for v in part.values()]) for part in parts.values()])
        alpha = nash_weights(flat.double() @ flat.double().T)[0]
        weights = {t: w * float(a / alpha[0]) for (t, w), a in zip(weights.items(), alpha, strict=True)}
    game = GameLoss(model, options(combination=combination), 10)
    found = gradients(model, game, batch)
    for name, gradient in found.items():
        wanted = sum(w * parts[task][name] for task, w in weights.items())
        torch.testing.assert_close(gradient, wanted, rtol=5e-4, atol=2e-6 if combination == "nash" else 1e-6)
    metrics = game.metrics()
    assert metrics["game/abt"] == pytest.approx(values["abt"], rel=1e-5)
    assert metrics["game/ldb"] == pytest.approx(values["ldb"], rel=1e-5)
    assert metrics["game/weight_abt"] == pytest.approx(weights["abt"], rel=5e-4)
    assert found.keys() == parts["ce"].keys()
    assert not game.metrics()


@pytest.mark.parametrize(("loss", "moved"), [
    ("ldb", [f"layers.{tiny.LAYER}.self_attn.o_proj"]),
    ("abt", ["layers.0.", *(f"layers.{tiny.LAYER}.self_attn.{p}_proj" for p in "qkv")]),
])  # fmt: skip
def test_what_a_loss_moves(loss: str, moved: list[str]) -> None:
    """The barrier moves the output adapter of its layer only, Barlow Twins what is below the heads."""
    model, batch = trained(), tiny.batch()
    with_it, without = (
        gradients(model, GameLoss(model, options(losses=losses, combination="sum"), 10), batch)
        for losses in ([loss], [])
    )
    found = {n for n in with_it if not torch.allclose(with_it[n], without[n], rtol=1e-5, atol=1e-9)}
    assert found
    assert all(any(part in name for part in moved) for name in found)


def test_plain_when_every_weight_is_zero() -> None:
    model, batch = trained(), tiny.batch()
    model(**batch).loss.backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for combination in ("sum", "nash"):
        game = GameLoss(model, options(combination=combination, ldb_weight=0.0, abt_weight=0.0), 10)
        for name, value in gradients(model, game, batch).items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-7)


def test_last_step_takes_the_coupling_of_the_step_before() -> None:
    """The same batch and unchanged weights: both ways agree, also when the gradient of Barlow Twins passes too."""
    model, batch = trained(), tiny.batch()
    fresh, last = (
        GameLoss(model, options(rho=rho, combination="sum", ema_decay=1.0), 10)
        for rho in ("fresh", "last_step")
    )
    for _ in range(3):  # the first measures afresh, and the second uses that
        wanted, found = gradients(model, fresh, batch), gradients(model, last, batch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
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


@pytest.mark.parametrize("changes", [
    {},
    {"combination": "sum"},
    {"rho": "last_step"},
    {"nash_every": 2},
    {"combination": "sum", "losses": ["disagreement", "entropy"], "entropy_weight": 1.0},
], ids=str)  # fmt: skip
def test_two_micro_batches_give_the_gradient_of_the_whole_batch(changes: dict[str, Any]) -> None:
    """The same examples twice, so that the statistics of a half are those of the whole."""
    model, half = trained(), tiny.batch(padding=2)
    whole = {k: torch.cat([v, v]) for k, v in half.items()}
    one, two = (GameLoss(model, options(**changes), 10) for _ in range(2))
    for _ in range(2):
        wanted = gradients(model, one, whole)
        for last in (False, True):
            with two.capture(half):
                ce = model(**half).loss
            two.loss(ce / 2, micro_batches=2, last=last).backward()
        found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        two.step()
        torch.testing.assert_close(found, wanted, rtol=5e-4, atol=2e-6)
    assert one.metrics() == pytest.approx(two.metrics(), rel=1e-4)
    assert one.state_dict()["ema"] == pytest.approx(two.state_dict()["ema"], rel=1e-6)


def test_a_state_goes_on_where_it_was() -> None:
    model = trained()
    whole = GameLoss(model, options(rho="last_step", nash_every=2), 6)
    for step in range(3):
        gradients(model, whole, tiny.batch(seed=step))
    second = GameLoss(model, options(rho="last_step", nash_every=2), 6)
    second.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for step in (3, 4):
        wanted, found = (gradients(model, game, tiny.batch(seed=step)) for game in (whole, second))
        assert tiny.gap(wanted, found) == 0
    assert whole.state_dict() == second.state_dict()


DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"options": "x"}, ""),
    ({"weights": 1}, ""),
    ({"weights": {"ldb": "1"}}, r"weights\.ldb: expected a number in \[0, inf\), got '1'"),
    ({"products": []}, ""),
    ({"products": {"x": [[1.0]]}}, ""),
    ({"products": {"1": [[1, 0], [0]]}}, ""),
    ({"steps": -1}, "steps: expected an integer >= 0, got -1"),
    ({"steps": 1.5}, "steps: expected an integer >= 0, got 1.5"),
    ({"ema": 0}, "ema: expected a positive finite number, got 0"),
    ({"ema": 10**400}, "ema: expected a positive finite number"),
    ({"weights": {"ldb": -1}}, r"weights\.ldb: expected a number in \[0, inf\), got -1"),
    ({"products": {"2": [[1.0] * 4] * 4}}, r"products of other layers than \[1\], or of other numbers of heads"),
    ({"products": {"1": [[1.0]]}}, r"products of other layers than \[1\], or of other numbers of heads"),
    ({"products": {"1": [[float("nan")] * 4] * 4}}, "products that are not finite"),
]  # fmt: skip


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    model = trained()
    game = GameLoss(model, options(), 10)
    gradients(model, game, tiny.batch())
    before = game.state_dict()
    for change, got in DAMAGED:
        sentence = rf"^game_state: expected what state_dict\(\) returned, got {got}.*\.$"
        with pytest.raises(ArgumentError, match=sentence):
            game.load_state_dict(before | change)
        assert game.state_dict() == before


def test_all_losses_together_and_several_layers() -> None:
    losses = ["ldb", "abt", "disagreement", "entropy"]
    everything = options(layers=[0, 2], abt_layers=[1], losses=losses, target="zero", weighting="inverse")
    model = trained()
    game = GameLoss(model, everything, 10)
    gradients(model, game, tiny.batch(padding=2))
    names = {"ldb", "abt", "disagreement", "entropy", "gamma", "opposed"}
    weights = {f"weight_{name}" for name in names - {"gamma", "opposed"}}
    assert {name.removeprefix("game/") for name in game.metrics()} == names | weights
    assert everything.measured() == (0, 1, 2)


def test_the_schedule_by_hand() -> None:
    """From 0 to 1 until ``warmup``, 1 until ``cooldown``, from 1 to 0 until the end."""
    game = GameOptions(ldb_weight=1.0)
    found = [game.factors(x)["ldb"] for x in (0.0, 0.01, 0.02, 0.5, 0.879, 0.9395, 1.0)]
    assert found == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0])
    assert GameOptions(ldb_weight=1.0, warmup=0.0).factors(0.0)["ldb"] == 1.0


def test_the_ends_of_the_schedule() -> None:
    """Neither end is divided by, and steps beyond the planned ones keep the factor of the last."""
    flat = options(warmup=0.0, cooldown=1.0)
    assert [flat.factors(progress)["ldb"] for progress in (0.0, 1.0)] == [0.352, 0.352]
    assert options(warmup=0.5, cooldown=0.5).factors(0.5)["ldb"] == 0.352
    model = trained()
    game, found = GameLoss(model, options(combination="sum", cooldown=0.5), 1), []
    for _ in range(3):
        gradients(model, game, tiny.batch())
        found.append(game.metrics()["game/weight_ldb"])
    assert found == [0.352, 0, 0]


def test_the_running_mean_by_hand() -> None:
    """ema_t = 0.1 L_t + 0.9 ema_{t-1} from 20, L_t the mean of the micro-batches; without one it stays."""
    model, means = trained(), list[float]()
    game = GameLoss(model, options(losses=["abt"], combination="sum", warmup=0.0), 10)
    for micro_batches in (1, 2):
        for k in range(micro_batches):
            with game.capture(tiny.batch(seed=k)):
                ce = model(**tiny.batch(seed=k)).loss
            game.loss(ce / micro_batches, micro_batches=micro_batches, last=k == micro_batches - 1)
        before = game.ema
        game.step()
        logged = game.metrics()
        means.append(0.1 * logged["game/abt"] + 0.9 * before)
        assert game.ema == pytest.approx(means[-1], rel=1e-6)
        assert logged["game/weight_abt"] == pytest.approx(0.179 * 20 / game.ema, rel=1e-6)
    game.step()
    assert game.ema == pytest.approx(means[-1], rel=1e-6)
