"""Trainings of pair classifiers: the recipe of the paper, resumed bit by bit, shared by processes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_checks import assert_same_run, metrics
from torch.testing import assert_close

import diabat
from diabat.models import POOLINGS
from diabat.samplers import UnsupportedError
from diabat.tasks import PairSplit
from diabat.training import TrainingError, TrainOptions, evaluate, load_model, train
from diabat.training.checkpoint import read_checkpoint
from diabat.training.evaluate import epoch_order, predict
from diabat.training.folder import LATEST
from diabat.training.optimizer import make_optimizer, training_loss
from diabat.training.train import Trainer
from fuzz.faults.session import saved_step

from .tiny_pairs import OPTIONS, PairTask, furthest, tiny_model, tiny_train

RECIPE = replace(
    OPTIONS, accumulation=2, warmup=0.2, decay_epochs=(1,), label_smoothing=0.1, mixup=0.2, ema_decay=0.9
)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling_learns(tmp_path: Path, encoder: Path, task: PairTask, pooling: str) -> None:
    result = tiny_train(tmp_path / "run", encoder, task, replace(OPTIONS, max_epochs=12), pooling=pooling)
    losses = [line["train_loss"] for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    assert losses[-1] < 0.8 * losses[0]
    assert result.epochs == 12


class Killed(BaseException):
    """Stands for kill -9: nothing in the package may catch it."""


@pytest.mark.parametrize(
    ("pooling", "precision"), [("neurogame", "float32"), ("boltzmann", "bfloat16"), ("softmax", "float16")]
)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(
    tmp_path: Path, encoder: Path, task: PairTask, pooling: str, precision: Any
) -> None:
    """Data order, dropout, mixup, coalitions, schedule, average and loss scale all go on where they were."""
    options = replace(RECIPE, precision=precision)
    tiny_train(tmp_path / "straight", encoder, task, options, pooling=pooling)
    taken: list[int] = []
    step = Trainer.step

    def mortal(self: Trainer) -> None:
        taken.append(1)
        if len(taken) == 6:
            raise Killed
        step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", mortal)
        with pytest.raises(Killed):
            tiny_train(tmp_path / "run", encoder, task, options, pooling=pooling)
    assert saved_step(tmp_path / "run") == 4
    tiny_train(tmp_path / "run", encoder, task, options, resume=True, pooling=pooling)
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_predictions_are_in_the_order_of_the_split(encoder: Path, task: PairTask) -> None:
    model = tiny_model(encoder, task, pooling="mean")
    logits, labels = predict(model, task.train, batch_size=7)
    assert torch.equal(labels, task.train.targets)
    loss, accuracy = evaluate(model, task.train)
    assert float((logits.argmax(1) == labels).float().mean()) == pytest.approx(accuracy)
    assert float(torch.nn.functional.cross_entropy(logits, labels)) == pytest.approx(loss, rel=1e-5)
    assert evaluate(model, task.train, batch_size=3)[0] == pytest.approx(loss, rel=1e-5)


def test_pairs_too_long_for_enumeration_are_refused_before_the_run_starts(
    tmp_path: Path, encoder: Path, task: PairTask
) -> None:
    """Of the longest batch, and with what the pooling leaves out not counted."""
    longest = int(task.train.lengths.max())
    budget = 1.9 * 2.0**longest / 2**22  # of the two heads of the longest pair
    exact = diabat.sampler("exact", memory_budget_mb=budget)
    with pytest.raises(UnsupportedError, match=rf"^sampler: 'exact' .* up to {longest} tokens and 2 heads"):
        tiny_train(tmp_path / "run", encoder, task, replace(OPTIONS, max_steps=1), sampler=exact)
    assert not (tmp_path / "run").exists()
    once = replace(OPTIONS, max_steps=1)
    tiny_train(tmp_path / "run", encoder, task, once, sampler=exact, special_tokens=False)


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
import torch
torch.set_num_threads(1)
from nli.test_pair_runs import SHARED, SHARED_MODEL
from nli.tiny_pairs import tiny_task, tiny_train
encoder, data, out = map(Path, sys.argv[2:5])
tiny_train(out, encoder, tiny_task(encoder, data), SHARED, resume=len(sys.argv) > 5, **SHARED_MODEL)
"""
# What is random in a forward pass differs between processes, so there is nothing of it here.
SHARED = replace(OPTIONS, batch_size=8, accumulation=2, warmup=0.2, label_smoothing=0.1, ema_decay=0.9)
SHARED_MODEL: dict[str, Any] = {"pooling": "softmax", "dropout": 0.0, "freeze_encoder": True}


def test_two_processes_train_what_one_does(tmp_path: Path, encoder: Path, data: Path, task: PairTask) -> None:
    tiny_train(tmp_path / "one", encoder, task, SHARED, **SHARED_MODEL)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [sys.executable, *torchrun, str(script)]
    folder = Path(__file__).parent
    arguments = [str(path) for path in (folder.parent, encoder, data, tmp_path / "two")]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [(line["event"], line["step"]) for line in two] == [(line["event"], line["step"]) for line in one]
    for a, b in zip(one, two, strict=True):
        assert {k: pytest.approx(v, abs=1e-5) for k, v in a.items() if k != "event"} == {
            k: v for k, v in b.items() if k != "event"
        }
    weights, shared = load_model(tmp_path / "one"), load_model(tmp_path / "two")
    assert furthest(weights, shared) < 1e-4


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


def test_batches_have_pairs_of_similar_length_and_every_pair_once() -> None:
    lengths = torch.randint(5, 60, (1000,), generator=torch.Generator().manual_seed(1))
    none = torch.zeros(0, dtype=torch.int64)
    split = PairSplit(none, none, None, ends=lengths.cumsum(0), targets=lengths, pad_id=0)
    orders = [epoch_order(split, seed, epoch, 32) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
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


def test_a_half_precision_step_that_overflows_is_left_out(
    tmp_path: Path, encoder: Path, task: PairTask
) -> None:
    model = tiny_model(encoder, task, pooling="mean")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    model.classifier[-1].weight.register_hook(lambda grad: grad * math.inf)
    train(model, task, replace(OPTIONS, precision="float16", max_steps=3), tmp_path / "run", progress=False)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    # Each of them halves the scale, which a resumed run goes on with.
    assert _scale(tmp_path / "run") == 65536 / 2**3
    options = replace(OPTIONS, precision="float16", max_steps=4)
    tiny_train(tmp_path / "run", encoder, task, options, resume=True, pooling="mean")
    assert _scale(tmp_path / "run") == 65536 / 2**3


def _scale(run_dir: Path) -> float:
    return read_checkpoint(run_dir / LATEST)[1]["scaler"]["scale"]


def test_states_that_are_not_finite_stop_a_run_with_their_place(
    tmp_path: Path, encoder: Path, task: PairTask
) -> None:
    model = tiny_model(encoder, task)
    with torch.no_grad():
        model.encoder.get_parameter("embeddings.LayerNorm.bias")[3] = float("nan")
    message = (
        r"step 0 \(epoch 0, batch 0\): x: expected finite values, got nan at index \(0, 0, 0\)\. "
        "attention: neurogame pooling"
    )
    with pytest.raises(TrainingError, match=message):
        train(model, task, OPTIONS, tmp_path / "run", progress=False)
