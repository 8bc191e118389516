"""Schedule, moving average, smoothing, mixup, accumulation and precision: each against torch or by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_checks import metrics
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing import assert_close

from diabat.models import Transformer, TransformerOptions
from diabat.tasks import BracketOptions, PairTask, brackets
from diabat.training import TrainOptions, load_model, train
from diabat.training.batches import bucketed_order
from diabat.training.checkpoint import find_checkpoints, read_checkpoint
from diabat.training.options import PAIR_PROTOCOL
from diabat.training.recipe import Average, Rates, rate_factor, token_loss, training_loss
from diabat.training.state import make_optimizer

from .tiny_pairs import OPTIONS, furthest, tiny_model, tiny_train


def test_the_published_recipe() -> None:
    p = PAIR_PROTOCOL
    assert (p.learning_rate, p.weight_decay, p.batch_size, p.accumulation, p.max_epochs) == (
        3e-5,
        0.02,
        32,
        2,
        5,
    )
    assert (p.warmup, p.decay_epochs, p.decay, p.clip) == (0.1, (3, 4), 0.1, 1.0)
    assert (p.label_smoothing, p.mixup, p.ema_decay) == (0.1, 0.2, 0.999)


def test_decay_is_that_of_torch_after_the_same_epochs() -> None:
    options = TrainOptions(learning_rate=0.5, decay_epochs=(3, 4), decay=0.1)
    weight = nn.Parameter(torch.zeros(1))
    theirs = torch.optim.SGD([weight], lr=0.5)
    schedule = torch.optim.lr_scheduler.MultiStepLR(theirs, milestones=[3, 4], gamma=0.1)
    ours = torch.optim.SGD([weight], lr=0.5)
    rates = Rates(ours, options, batches=7)
    for epoch in range(6):
        for batch in range(7):
            rates.set(epoch * 7 + batch, epoch)
            assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
        theirs.step()
        schedule.step()


def test_warmup_rises_to_the_full_rate_over_its_share_of_the_steps() -> None:
    options = TrainOptions(warmup=0.1, max_epochs=5)
    factors = [rate_factor(options, step, step // 10, batches=10) for step in range(50)]
    assert factors[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert set(factors[5:]) == {1.0}
    # A limit of steps cuts the run short and leaves its schedule alone.
    assert rate_factor(replace(options, max_steps=3), 1, 0, batches=10) == factors[1]


def test_without_a_schedule_the_rate_is_untouched() -> None:
    assert [rate_factor(TrainOptions(), step, epoch, 3) for step, epoch in ((0, 0), (999, 50))] == [1.0, 1.0]


def test_average_against_its_formula() -> None:
    layer = nn.Linear(2, 1, bias=False)
    average = Average(layer, 0.9)
    expected = layer.weight.detach().clone()
    for value in (1.0, -3.0, 0.5):
        with torch.no_grad():
            layer.weight.fill_(value)
        average.update()
        expected = 0.9 * expected + 0.1 * value
    assert_close(average.tensors()["weight"], expected)
    with average.applied():
        assert_close(layer.weight.detach(), expected)
    assert bool((layer.weight == 0.5).all())
    assert Average(layer, 0.0).tensors() == {}


def test_average_against_that_of_torch_bit_by_bit() -> None:
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7))
    average = Average(layer, 0.97)
    theirs = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.97))
    theirs.n_averaged += 1  # the initial weights count as one
    for _ in range(5):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update()
        theirs.update_parameters(layer)
    for name, mean in average.tensors().items():
        assert torch.equal(mean, theirs.module.state_dict()[name])


def test_the_best_checkpoint_holds_the_average_and_its_validation(
    tmp_path: Path, encoder: Path, task: PairTask
) -> None:
    tiny_train(tmp_path / "run", encoder, task, replace(OPTIONS, ema_decay=0.8, max_epochs=1), pooling="mean")
    best, last = load_model(tmp_path / "run"), load_model(tmp_path / "run", "latest")
    names = [n for n in best if not torch.equal(best[n], last[n])]
    assert any(n.startswith("classifier.") for n in names)
    # One epoch of three steps: the average of the weights after each, from the initial ones on.
    model = tiny_model(encoder, task, pooling="mean")
    average = Average(model, 0.8)
    seen = []
    original = torch.optim.AdamW.step

    def recording(self: torch.optim.AdamW) -> None:
        original(self)
        average.update()
        seen.append(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", recording)
        train(model, task, replace(OPTIONS, max_epochs=1), tmp_path / "plain", progress=False)
    assert len(seen) == 3
    for name, mean in average.tensors().items():
        assert_close(best[name], mean, rtol=1e-5, atol=1e-7)


def test_smoothed_loss_is_that_of_smoothed_targets() -> None:
    logits, targets = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    soft = torch.full((5, 3), 0.1 / 3).scatter(1, targets[:, None], 1 - 0.1 + 0.1 / 3)
    assert_close(
        token_loss(logits, targets, label_smoothing=0.1), -(soft * logits.log_softmax(1)).sum(1).mean()
    )


def test_mixup_is_the_cross_entropy_to_mixed_labels(
    encoder: Path, task: PairTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(encoder, task, pooling="mean", dropout=0.0).eval()
    options = replace(OPTIONS, mixup=0.4, label_smoothing=0.1)
    batch, labels = task.train.batch(torch.arange(6))
    told: list[Any] = []
    forward = model.forward

    def recording(batch: Any, mixed: Any) -> torch.Tensor:
        told.append(mixed)
        return forward(batch, mixed)

    monkeypatch.setattr(model, "forward", recording)
    loss = training_loss(model, batch, labels, options)
    ((share, partners),) = told
    assert 0 < share < 1
    hard = torch.eye(3)[labels]
    soft = 0.9 * (share * hard + (1 - share) * hard[partners]) + 0.1 / 3
    chances = forward(batch, (share, partners)).log_softmax(1)
    assert_close(loss, -(soft * chances).sum(1).mean())
    shares = {float(torch.distributions.Beta(0.4, 0.4).sample()) for _ in range(3)}
    assert len(shares) == 3


def test_mixup_is_for_classifiers_of_pairs(tmp_path: Path) -> None:
    task = brackets(BracketOptions(window=4, num_train=8, num_validation=4))
    model = Transformer(TransformerOptions(embed_dim=8, ffn_dim=0), task.vocab_size, task.num_classes, 4)
    with pytest.raises(ValueError, match=r"mixup: expected 0 for a model of sequences, got 0\.2"):
        train(model, task, TrainOptions(mixup=0.2), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("pieces", [3, 20])
def test_pieces_add_up_to_the_whole_batch(tmp_path: Path, encoder: Path, task: PairTask, pieces: int) -> None:
    """With dropout off nothing but rounding tells them apart, also if there are more pieces than pairs."""
    encoded: dict[str, Any] = {"pooling": "softmax", "dropout": 0.0, "freeze_encoder": True}
    for name, accumulation in (("whole", 1), ("pieces", pieces)):
        options = replace(OPTIONS, accumulation=accumulation, label_smoothing=0.1)
        tiny_train(tmp_path / name, encoder, task, options, **encoded)
    whole, parts = load_model(tmp_path / "whole", "latest"), load_model(tmp_path / "pieces", "latest")
    assert furthest(whole, parts) < 1e-4
    for a, b in zip(metrics(tmp_path / "whole"), metrics(tmp_path / "pieces"), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-5)


def test_pieces_of_sequences_are_weighted_by_what_counts(tmp_path: Path) -> None:
    task = brackets(BracketOptions(window=6, num_train=24, num_validation=8))
    losses = []
    for accumulation in (1, 3):
        torch.manual_seed(0)
        small = TransformerOptions(embed_dim=8, ffn_dim=0, dropout=0.0)
        model = Transformer(small, task.vocab_size, task.num_classes, task.window)
        options = TrainOptions(batch_size=8, max_epochs=1, accumulation=accumulation, log_every=1)
        train(model, task, options, tmp_path / str(accumulation), progress=False)
        losses.append([line["train_loss"] for line in metrics(tmp_path / str(accumulation))])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_batches_have_pairs_of_similar_length_and_every_pair_once() -> None:
    lengths = torch.randint(5, 60, (1000,), generator=torch.Generator().manual_seed(1))
    orders = [bucketed_order(seed, epoch, lengths, 32) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert torch.equal(orders[0], orders[1])
    assert not any(torch.equal(orders[0], other) for other in orders[2:])
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(1000))
        longest = sum(int(lengths[batch].max()) * len(batch) for batch in order.split(32))
        assert longest < 1.1 * int(lengths.sum())
    first = [float(lengths[order[:32]].float().mean()) for order in orders]
    assert len(set(first)) > 1, "the shortest pairs must not come first"


def test_the_head_has_its_own_learning_rate(encoder: Path, task: PairTask) -> None:
    model = tiny_model(encoder, task, pooling="boltzmann")
    options = TrainOptions(learning_rate=1e-5, head_learning_rate=1e-3, coupling_learning_rate=1e-2)
    groups = make_optimizer(model, options).param_groups
    assert [group["lr"] for group in groups] == [1e-5, 1e-3, 1e-2]
    names = {id(p): n for n, p in model.named_parameters()}
    parts = [{names[id(p)].partition(".")[0] for p in group["params"]} for group in groups]
    assert parts == [{"encoder"}, {"pooling", "classifier"}, {"pooling"}]
    together = make_optimizer(model, replace(options, head_learning_rate=None)).param_groups
    assert [group["lr"] for group in together] == [1e-5, 1e-2]
    frozen = make_optimizer(tiny_model(encoder, task, freeze_encoder=True), options).param_groups
    assert [group["lr"] for group in frozen] == [1e-3]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_trains(tmp_path: Path, encoder: Path, task: PairTask, precision: Any) -> None:
    options = replace(OPTIONS, precision=precision, max_epochs=6)
    result = tiny_train(tmp_path / "run", encoder, task, options)
    losses = [line["train_loss"] for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    assert losses[-1] < 0.9 * losses[0]
    assert math.isfinite(result.best_loss)
    assert {t.dtype for t in load_model(tmp_path / "run").values() if t.is_floating_point()} == {
        torch.float32
    }


def test_a_half_precision_step_that_overflows_is_left_out(
    tmp_path: Path, encoder: Path, task: PairTask
) -> None:
    model = tiny_model(encoder, task, pooling="mean")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    model.classifier[-1].weight.register_hook(lambda grad: grad * math.inf)  # type: ignore[operator]  # a Linear
    train(model, task, replace(OPTIONS, precision="float16", max_steps=3), tmp_path / "run", progress=False)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    # Each of them halves the scale, which a resumed run goes on with.
    assert _scale(tmp_path / "run") == 65536 / 2**3
    options = replace(OPTIONS, precision="float16", max_steps=4)
    tiny_train(tmp_path / "run", encoder, task, options, resume=True, pooling="mean")
    assert _scale(tmp_path / "run") == 65536 / 2**3


def _scale(run_dir: Path) -> float:
    tensors, _ = read_checkpoint(find_checkpoints(run_dir, "step")[0])
    return float(tensors["training"]["scaler.scale"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("warmup", 1.5, r"warmup: expected a number in 0 \.\. 1, got 1\.5"),
        ("decay", -0.1, r"decay: expected a number in 0 \.\. 1, got -0\.1"),
        ("label_smoothing", 1.0, r"label_smoothing: expected a number in \[0, 1\), got 1\.0"),
        ("ema_decay", 1.0, r"ema_decay: expected a number in \[0, 1\), got 1\.0"),
        ("mixup", -1.0, r"mixup: expected a finite number >= 0, got -1\.0"),
        ("mixup", math.nan, "mixup: expected a finite number >= 0, got nan"),
        ("decay_epochs", (0,), r"decay_epochs: expected integers >= 1, got \[0\]"),
        ("accumulation", 0, "accumulation: expected an integer >= 1, got 0"),
        ("precision", "int8", "precision: expected one of float32, bfloat16, float16, got 'int8'"),
        ("head_learning_rate", -1.0, "head_learning_rate: expected a finite number >= 0 or None"),
    ],
)
def test_options_out_of_range_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainOptions(**{name: value})
