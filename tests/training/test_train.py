"""The loop: what a step does, what is logged and kept, when it stops, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_checks import assert_same_run, metrics, same_weights
from torch import Tensor
from torch.testing import assert_close

from diabat.lab.models import Transformer, TransformerOptions
from diabat.lab.tasks import IGNORED, BracketOptions, Split
from diabat.lab.training import PROTOCOLS, TrainingError, TrainOptions, evaluate, load_model, train
from diabat.lab.training.evaluate import epoch_order, token_loss
from fuzz.tiny import OPTIONS, tiny_model, tiny_task, tiny_train


def test_loss_falls_and_the_result_agrees_with_the_metrics_file(tmp_path: Path) -> None:
    result = tiny_train(tmp_path / "run", max_epochs=10)
    epochs = [line for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    steps = [line for line in metrics(tmp_path / "run") if line["event"] == "step"]
    assert [line["epoch"] for line in epochs] == list(range(1, 11))
    assert [line["step"] for line in steps] == list(range(1, 31))
    best = min(epochs, key=lambda line: line["val_loss"])
    told = (result.best_loss, result.best_metric, result.best_step, result.epochs, result.steps)
    assert told == (best["val_loss"], best["accuracy"], best["step"], 10, 30)
    assert epochs[-1]["train_loss"] < 0.8 * epochs[0]["train_loss"]
    for epoch in (0, 9):
        mean = sum(line["train_loss"] for line in steps[3 * epoch : 3 * epoch + 3]) / 3
        assert epochs[epoch]["train_loss"] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("accumulation", [1, 3, 100])
def test_a_step_takes_the_gradient_of_the_mean_loss_of_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulation: int
) -> None:
    """Of all targets that count, in however many pieces it is computed."""
    task = BracketOptions(window=6, num_train=24, num_validation=8).build()
    torch.manual_seed(0)
    options = TransformerOptions(embed_dim=8, ffn_dim=0, dropout=0.0)
    model = Transformer(options, task.vocab_size, task.num_classes, task.window)
    inputs, targets = task.train.batch(epoch_order(len(task.train), 3, 0)[:10])
    counts = [int((row != IGNORED).sum()) for row in targets]
    assert len(set(counts)) > 1, "the pieces must differ"
    loss = token_loss(model(inputs), targets)
    expected = dict(zip((n for n, _ in model.named_parameters()), _gradient(loss, model), strict=True))
    found: dict[str, Tensor] = {}

    def recording(self: torch.optim.AdamW) -> None:
        found.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})

    monkeypatch.setattr(torch.optim.AdamW, "step", recording)
    once = TrainOptions(batch_size=10, max_steps=1, accumulation=accumulation, log_every=1, seed=3, clip=1e9)
    train(model, task, once, tmp_path / "run", progress=False)
    assert metrics(tmp_path / "run")[0]["train_loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(found[name], gradient, rtol=1e-5, atol=1e-8)


def _gradient(loss: Tensor, model: Transformer) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, list(model.parameters()))


def test_a_batch_without_targets_changes_nothing(tmp_path: Path) -> None:
    inputs = torch.zeros(4, 4, dtype=torch.int64)
    targets = torch.full((4, 4), IGNORED)
    targets[epoch_order(4, 3, 0)[2:], 0] = 1  # of the second batch
    task = replace(tiny_task(), train=Split(inputs, targets))
    model = tiny_model(task)
    before = {name: p.clone() for name, p in model.named_parameters()}
    tiny_train(tmp_path / "run", model=model, task=task, batch_size=2, max_steps=1)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


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


def test_best_weights_are_those_of_the_best_validation(tmp_path: Path) -> None:
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
    state = torch.get_rng_state()
    tiny_train(tmp_path / "run", model=model, task=task)
    assert torch.equal(torch.get_rng_state(), state)


def test_early_stopping_counts_epochs_without_improvement(tmp_path: Path) -> None:
    # Without learning the first validation is the best for ever.
    still: dict[str, Any] = {"learning_rate": 0.0, "coupling_learning_rate": 0.0}
    result = tiny_train(tmp_path / "run", **still, patience=4, max_epochs=50)
    assert (result.epochs, result.best_step) == (5, 3)


def test_max_steps_ends_within_an_epoch_with_a_validation(tmp_path: Path) -> None:
    result = tiny_train(tmp_path / "run", max_steps=4)
    assert (result.steps, result.epochs) == (4, 1)
    assert [line["step"] for line in metrics(tmp_path / "run") if line["event"] == "epoch"] == [3, 4]


def test_config_is_stored(tmp_path: Path) -> None:
    task, metadata = tiny_task(), {"sampler": {"backend": "exact"}, "seed": 1}
    train(tiny_model(task), task, OPTIONS, tmp_path / "run", progress=False, extra_metadata=metadata)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == metadata


@pytest.mark.parametrize("progress", [True, False])
def test_a_progress_bar_shows_loss_metric_and_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], progress: bool
) -> None:
    tiny_train(tmp_path / "run", progress=progress)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all((word in shown.err) == progress for word in ("epoch 3", "best accuracy", "9/9"))


@pytest.mark.parametrize(
    ("mode", "figures"), [("h+J", r"largest \|h\| = nan, largest \|J\| = 2\.5\."), ("softmax", "softmax")]
)
def test_nan_stops_the_run_before_the_weights_change(tmp_path: Path, mode: str, figures: str) -> None:
    task = tiny_task()
    model = tiny_model(task, mode)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("couplings.pairs"):
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

    def poison(grad: Tensor) -> Tensor:
        calls.append(1)
        return grad * math.inf if len(calls) == 5 else grad

    model.head.weight.register_hook(poison)
    with pytest.raises(
        TrainingError, match=r"step 4 \(epoch 1, batch 1\): gradient: expected a finite number"
    ):
        tiny_train(tmp_path / "run", model=model, task=task)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    tiny_train(tmp_path / "run", resume=True)  # without the fault, from the last checkpoint
    tiny_train(tmp_path / "straight")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_evaluate_counts_targets_whatever_the_batch_size() -> None:
    task = tiny_task()
    model = tiny_model(task).train()
    state = torch.get_rng_state()
    loss, accuracy = evaluate(model, task.validation)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert evaluate(model, task.validation, batch_size=5) == pytest.approx((loss, accuracy), rel=1e-6)
    with torch.no_grad():
        logits = model.eval()(task.validation.inputs)
    counted = task.validation.targets != IGNORED
    chance = logits.log_softmax(-1)[counted].gather(1, task.validation.targets[counted][:, None])
    assert loss == pytest.approx(float(-chance.mean()), rel=1e-6)
    right = (logits.argmax(-1) == task.validation.targets)[counted].float().mean()
    assert accuracy == pytest.approx(float(right), rel=1e-6)


def test_the_published_protocols() -> None:
    names = ("learning_rate", "coupling_learning_rate", "clip", "batch_size", "patience")
    sequences = {
        name: tuple(getattr(PROTOCOLS[name], key) for key in names) for name in ("shakespeare", "brackets")
    }
    assert sequences == {"shakespeare": (1e-3, 3e-5, 1.0, 64, 20), "brackets": (3e-4, 1e-4, 1.0, 64, 20)}


def test_options_at_their_limits_are_taken() -> None:
    TrainOptions(clip=math.inf, learning_rate=0.0, seed=2**31 - 1, precision="bfloat16")
