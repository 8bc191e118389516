"""Processes that torchrun starts train what one process does."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rounding import assert_same_sums
from run_checks import metrics, torchrun
from safetensors.torch import load_file

from diabat.lab.models import Transformer, TransformerOptions
from diabat.lab.tasks import Task
from diabat.lab.tasks.base import IGNORED, Split
from diabat.lab.training import load_model
from fuzz.tiny import tiny_task, tiny_train

SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_data_parallel import TASK, still_model
from fuzz.tiny import tiny_train
task = TASK()
tiny_train(Path(sys.argv[1]), task=task, model=still_model(task), accumulation=2)
"""

DECODER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_data_parallel import train_decoder
train_decoder(Path(sys.argv[1]))
"""


def still_model(task: Task) -> Transformer:
    """Without dropout, which would differ between processes."""
    torch.manual_seed(0)
    options = TransformerOptions(embed_dim=8, ffn_dim=8, dropout=0.0)
    return Transformer(options, task.vocab_size, task.num_classes, task.window)


def trained_by_two(content: str, folder: Path) -> None:
    """Run a script with the result's folder and the paths of tests as arguments."""
    script, here = folder / "script.py", Path(__file__).parent
    script.write_text(content)
    torchrun(script, folder / "two", here, here.parent, here.parents[1], cwd=folder)


def few_targets() -> Task:
    """One sequence of 40 has targets: two of three batches count none."""
    task = tiny_task()
    targets = task.train.targets.clone()
    targets[1:] = IGNORED
    return replace(task, train=Split(task.train.inputs, targets))


@pytest.mark.slow
@pytest.mark.parametrize("made", [tiny_task, few_targets])
def test_two_processes_train_what_one_does(made: Callable[[], Task], tmp_path: Path) -> None:
    task = made()
    tiny_train(tmp_path / "one", task=task, model=still_model(task), accumulation=2)
    trained_by_two(SCRIPT.replace("TASK", made.__name__), tmp_path)
    # The largest numbers of a validation are those of the share of the first process.
    one, two = (
        [line for line in metrics(tmp_path / name) if line["event"] != "sampler"] for name in ("one", "two")
    )
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert a.pop("event") == b.pop("event")
        assert a == pytest.approx(b, abs=1e-5)
    weights, shared = (load_model(tmp_path / name, "latest") for name in ("one", "two"))
    assert max(float((weights[name] - shared[name]).abs().max()) for name in weights) < 1e-4


def train_decoder(folder: Path) -> None:
    """Four steps of eight texts, by the Trainer of transformers, in one process or several."""
    import transformers
    from tiny_decoders import decoder, examples

    from diabat.huggingface import convert

    model = convert(decoder("llama"), 6)
    options: Any = {"optim": "sgd", "max_grad_norm": 0, "learning_rate": 0.1, "max_steps": 4}
    quiet: Any = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    size = 8 // int(os.environ.get("WORLD_SIZE", "1"))
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=size, **options, **quiet
    )
    data: Any = examples(32)
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    trainer.train()
    trainer.save_model()


@pytest.mark.slow
def test_two_processes_train_a_decoder_as_one_does(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    train_decoder(tmp_path / "one")
    trained_by_two(DECODER, tmp_path)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert any("boltzmann" in name and bool(J.any()) for name, J in one.items())
    for name, weight in one.items():
        assert_same_sums(weight, two[name])
