from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from run_checks import assert_same_run, metrics, same_weights

from diabat.tasks import Split
from diabat.training import (
    PROTOCOLS,
    TrainingError,
    TrainingInterrupted,
    TrainOptions,
    evaluate,
    load_model,
    train,
)
from diabat.training.batches import epoch_order
from diabat.training.recipe import token_loss
from diabat.training.state import make_optimizer
from fuzz.tiny import OPTIONS, tiny_model, tiny_task, tiny_train


def test_loss_falls_and_the_result_agrees_with_the_metrics_file(tmp_path: Path) -> None:
    result = tiny_train(tmp_path / "run", max_epochs=10)
    epochs = [line for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    steps = [line for line in metrics(tmp_path / "run") if line["event"] == "step"]
    assert [line["epoch"] for line in epochs] == list(range(1, 11))
    assert [line["step"] for line in steps] == list(range(1, 31))
    best = min(epochs, key=lambda line: line["val_loss"])
    assert (result.best_loss, result.best_metric, result.best_step) == (
        best["val_loss"],
        best["accuracy"],
        best["step"],
    )
    assert (result.epochs, result.steps) == (10, 30)
    assert epochs[-1]["train_loss"] < 0.8 * epochs[0]["train_loss"]


def test_epoch_train_loss_is_the_mean_over_its_batches(tmp_path: Path) -> None:
    tiny_train(tmp_path / "run", max_epochs=1)
    *steps, epoch = metrics(tmp_path / "run")
    assert len(steps) == 3
    assert epoch["train_loss"] == pytest.approx(sum(s["train_loss"] for s in steps) / 3, rel=1e-12)


def test_best_checkpoint_holds_the_weights_of_the_best_validation(tmp_path: Path) -> None:
    task = tiny_task()
    model = tiny_model(task)
    result = tiny_train(tmp_path / "run", model=model, task=task, max_epochs=8, learning_rate=0.3)
    assert result.best_step < result.steps, "the test needs a run that gets worse after its best epoch"
    assert same_weights(load_model(tmp_path / "run", "latest"), dict(model.state_dict()))
    model.load_state_dict(load_model(tmp_path / "run"))
    assert evaluate(model, task.validation, seed=OPTIONS.seed)[0] == result.best_loss


def test_same_seed_same_run_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        tiny_train(tmp_path / name, seed=seed)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert metrics(tmp_path / "a") != metrics(tmp_path / "c")


def test_the_callers_random_numbers_are_left_alone(tmp_path: Path) -> None:
    task = tiny_task()
    model = tiny_model(task)
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    tiny_train(tmp_path / "run", model=model, task=task)
    assert torch.equal(torch.rand(3), expected)


def test_couplings_have_a_group_of_their_own() -> None:
    task = tiny_task()
    options = TrainOptions(
        learning_rate=1e-3, coupling_learning_rate=1e-5, weight_decay=0.1, coupling_weight_decay=0.2
    )
    others, couplings = make_optimizer(tiny_model(task, "h+J+K"), options).param_groups
    assert [p.shape for p in couplings["params"]] == [(1, 6), (1, 4)]
    assert (couplings["lr"], couplings["weight_decay"]) == (1e-5, 0.2)
    assert (others["lr"], others["weight_decay"]) == (1e-3, 0.1)
    assert len(others["params"]) + 2 == len(list(tiny_model(task, "h+J+K").parameters()))
    assert len(make_optimizer(tiny_model(task, "softmax"), options).param_groups) == 1


def test_couplings_move_at_their_own_rate(tmp_path: Path) -> None:
    task = tiny_task()
    model = tiny_model(task)
    tiny_train(tmp_path / "run", model=model, task=task, max_steps=1, coupling_learning_rate=1e-4)
    (pairs,) = [p for name, p in model.named_parameters() if name.endswith("coupling_pairs")]
    # The first AdamW step of a weight that starts at zero is lr·sign(gradient); every J has a gradient.
    assert torch.allclose(pairs.detach().abs(), torch.full_like(pairs, 1e-4), rtol=0.1)


def test_published_learning_rates() -> None:
    assert (PROTOCOLS["shakespeare"].learning_rate, PROTOCOLS["shakespeare"].coupling_learning_rate) == (
        1e-3,
        3e-5,
    )
    assert (PROTOCOLS["brackets"].learning_rate, PROTOCOLS["brackets"].coupling_learning_rate) == (3e-4, 1e-4)
    assert all((p.clip, p.batch_size, p.patience) == (1.0, 64, 20) for p in PROTOCOLS.values())


def test_gradients_are_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    update = torch.optim.AdamW.step

    def recording(self: torch.optim.AdamW) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.cat([g.flatten() for g in grads]).norm()))
        update(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", recording)
    tiny_train(tmp_path / "run", clip=1e-3)
    assert norms == pytest.approx([1e-3] * 9, rel=1e-3)


def test_early_stopping_counts_epochs_without_improvement(tmp_path: Path) -> None:
    # Without learning the first validation is the best for ever.
    result = tiny_train(
        tmp_path / "run", learning_rate=0.0, coupling_learning_rate=0.0, patience=4, max_epochs=50
    )
    assert result.epochs == 5
    assert result.best_step == 3


def test_max_steps_ends_within_an_epoch_with_a_validation(tmp_path: Path) -> None:
    result = tiny_train(tmp_path / "run", max_steps=4)
    assert (result.steps, result.epochs) == (4, 1)
    assert [line["step"] for line in metrics(tmp_path / "run") if line["event"] == "epoch"] == [3, 4]


def test_config_is_stored(tmp_path: Path) -> None:
    task = tiny_task()
    metadata = {"sampler": {"backend": "exact"}, "seed": 1}
    train(tiny_model(task), task, OPTIONS, tmp_path / "run", progress=False, extra_metadata=metadata)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == metadata


def test_progress_bar_shows_loss_metric_and_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_train(tmp_path / "run", progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    for word in ("epoch 3", "9/9", "accuracy"):
        assert word in shown.err


def test_progress_off_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_train(tmp_path / "run", progress=False)
    assert capsys.readouterr() == ("", "")


def test_missing_tensorboard_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(TrainingError, match=r"pip install 'diabat\[tensorboard\]'"):
        tiny_train(tmp_path / "run", tensorboard=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside tensorboard's own imports
def test_tensorboard_receives_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    tiny_train(tmp_path / "run", tensorboard=True)
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"epoch/val_loss" in events.read_bytes()


@pytest.mark.parametrize(
    ("mode", "figures"), [("h+J", r"largest \|h\| = nan, largest \|J\| = 2\.5\."), ("softmax", "softmax")]
)
def test_nan_stops_the_run_before_the_weights_change(tmp_path: Path, mode: str, figures: str) -> None:
    task = tiny_task()
    model = tiny_model(task, mode)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("coupling_pairs"):
                parameter[0, 1] = -2.5
            if name.endswith("query.weight"):
                parameter.fill_(math.nan)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    with pytest.raises(TrainingError, match=r"step 0 \(epoch 0, batch 0\): .*got .*nan.*" + figures):
        tiny_train(tmp_path / "run", model=model, task=task)
    after = model.state_dict()
    assert all(torch.equal(before[k].nan_to_num(7), after[k].nan_to_num(7)) for k in before)


def test_nan_in_the_gradient_stops_the_run(tmp_path: Path) -> None:
    task = tiny_task()
    model = tiny_model(task)
    calls = []

    def poison(grad: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return grad * math.inf if len(calls) == 5 else grad

    model.head.weight.register_hook(poison)
    with pytest.raises(
        TrainingError, match=r"step 4 \(epoch 1, batch 1\): gradient: expected a finite number"
    ):
        tiny_train(tmp_path / "run", model=model, task=task)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert load_model(tmp_path / "run", "latest")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_prints_how_to_continue(tmp_path: Path, number: signal.Signals) -> None:
    task = tiny_task()
    tiny_train(tmp_path / "straight")
    model = tiny_model(task)
    calls = []

    def interrupt(*_: object) -> None:
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), number)

    before = signal.signal(
        number, signal.default_int_handler
    )  # shells ignore SIGINT for jobs in the background
    handle = model.head.register_forward_hook(interrupt)
    try:
        with pytest.raises(TrainingInterrupted, match=r"interrupted after step \d+; .*resume=True"):
            tiny_train(tmp_path / "run", model=model, task=task, checkpoint_every=100)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    handle.remove()
    tiny_train(tmp_path / "run", resume=True, checkpoint_every=100)
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    model = tiny_model(tiny_task())
    handle = model.head.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert tiny_train(tmp_path / "run", model=model).epochs == OPTIONS.max_epochs
    finally:
        signal.signal(signal.SIGINT, before)
        handle.remove()


def test_evaluate_is_independent_of_the_batch_size_and_ignores_what_is_ignored() -> None:
    task = tiny_task()
    model = tiny_model(task)
    whole = evaluate(model, task.validation)
    assert evaluate(model, task.validation, batch_size=5) == pytest.approx(whole, rel=1e-6)
    model.eval()
    with torch.no_grad():
        logits = model(task.validation.inputs)
    counted = task.validation.targets != -100
    chance = logits.log_softmax(-1)[counted].gather(1, task.validation.targets[counted][:, None])
    assert whole[0] == pytest.approx(float(-chance.mean()), rel=1e-6)
    assert float(token_loss(logits, task.validation.targets)) == pytest.approx(whole[0], rel=1e-6)
    right = (logits.argmax(-1) == task.validation.targets)[counted].float().mean()
    assert whole[1] == pytest.approx(float(right), rel=1e-6)


def test_evaluate_does_not_change_mode_and_random_state() -> None:
    task = tiny_task()
    model = tiny_model(task).train()
    state = torch.get_rng_state()
    evaluate(model, Split(task.train.inputs, task.train.targets))
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_epoch_orders_are_permutations_that_differ() -> None:
    orders = [epoch_order(seed, epoch, 50) for seed in (0, 1) for epoch in (0, 1)]
    assert all(torch.equal(order.sort().values, torch.arange(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", -1.0),
        ("learning_rate", math.nan),
        ("coupling_learning_rate", -1e-9),
        ("schedule_learning_rate", -1.0),
        ("schedule_learning_rate", math.inf),
        ("schedule_learning_rate", math.nan),
        ("weight_decay", -0.1),
        ("clip", 0.0),
        ("batch_size", 0),
        ("max_epochs", 0),
        ("max_steps", 0),
        ("patience", 0),
        ("checkpoint_every", 0),
        ("seed", -1),
        ("log_every", -1),
    ],
)
def test_options_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name}: expected .* got {value}"):
        TrainOptions(**{name: value})  # type: ignore[arg-type]  # on purpose or by keyword
