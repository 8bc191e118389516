"""A training with GAME-LoRA whose disk fails at each file operation of Python, or that is killed at random moments.

What comes afterwards resumes and ends with the same adapter.  Errors of the disk are those that transformers raises.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from fuzz.decoders import VOCABULARY, decoder
from fuzz.faults.disk import Disk, How
from fuzz.faults.session import session

STEPS = 3


def train(folder: Path, *, resume: bool, weights: int = 0) -> None:
    """Train in a folder, on from where it is, and save the adapter."""
    from peft import LoraConfig, get_peft_model
    from transformers import PrinterCallback, TrainingArguments

    from diabat.huggingface import GameOptions, GameTrainer

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    targets = ["q_proj", "v_proj", "o_proj"]
    model = get_peft_model(decoder.__wrapped__(), LoraConfig(r=2, target_modules=targets, lora_dropout=0.1))
    tokens = torch.randint(1, VOCABULARY, (4 * STEPS, 6))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    args = TrainingArguments(
        str(folder / "run"), max_steps=STEPS, per_device_train_batch_size=2, save_steps=1, save_total_limit=2,
        report_to=[], use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no",
    )  # fmt: skip
    trainer = GameTrainer(model, args, train_dataset=rows, game=GameOptions(layers=[0]))
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train(resume_from_checkpoint=True)
    except ArgumentError as error:
        if "finished" not in str(error):
            raise
    trainer.save_model(str(folder / "adapter"))


def sweep(
    folder: Path, ways: Sequence[How], every: int
) -> Iterator[tuple[str, int, Iterator[tuple[str, str]]]]:
    """For each way its name, the number of its faults, and for each fault the ending and what was lost."""
    session(folder / "straight", train=train)
    operations = session(folder / "counted", disk=Disk(folder / "counted"), train=train).operations
    moments = range(1, len(operations) + 1, every)
    for how in ways:
        yield f"GAME-LoRA, {how}", len(moments), _faults(folder, how, moments)


def kills(folder: Path, wanted: int, seed: int) -> Iterator[tuple[str, str]]:
    """Kill trainings at random moments; for each kill what was lost."""
    begun = time.monotonic()
    session(folder / "straight", train=train)
    seconds, random_ = time.monotonic() - begun, random.Random(seed)
    for _ in range(wanted):
        run = _anew(folder / "run")
        child = os.fork()
        if child == 0:
            train(run, resume=False)
            os._exit(0)
        time.sleep(random_.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        yield "killed", _lost(run, folder / "straight")


def _faults(folder: Path, how: How, moments: range) -> Iterator[tuple[str, str]]:
    for moment in moments:
        run = _anew(folder / "run")
        ending = session(run, disk=Disk(run, moment, how), train=train)
        lost = _lost(run, folder / "straight")
        yield ending.kind, lost and f"operation {moment} ({ending.fault}): {lost}"


def _anew(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _lost(run: Path, straight: Path) -> str:
    again = session(run, train=train)
    if again.kind != "done":
        return f"does not resume: {again.text}"
    found, expected = _adapter(run), _adapter(straight)
    same = found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    return "" if same else "the adapter differs"


def _adapter(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    found: Any = load_file(folder / "adapter" / "adapter_model.safetensors")
    return found
