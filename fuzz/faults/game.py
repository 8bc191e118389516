"""A training with GAME-LoRA, for :mod:`fuzz.faults.repeated`."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from diabat.checks import ArgumentError
from fuzz.decoders import VOCABULARY, decoder
from fuzz.faults.repeated import Work

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


WORK = Work("GAME-LoRA", train, "adapter/adapter_model.safetensors")
