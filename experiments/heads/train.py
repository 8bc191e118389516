"""Fine-tune a decoder by LoRA with losses on its heads (GAME-LoRA), and save an ordinary adapter of peft.

    python -m experiments.heads.train experiments/heads/game-lora.yaml data.path=json data.data_files=texts.jsonl
    python -m experiments.heads.train experiments/heads/game-lora.yaml game.losses=[] output=runs/plain --resume

The adapter lies in ``output/adapter``; ``--resume`` goes on from the newest checkpoint in ``output``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import TrainingArguments, set_seed

from diabat.documents.overrides import apply_overrides
from diabat.documents.yaml_files import read_mapping
from diabat.heads import GameOptions, GameTrainer
from diabat.huggingface.loading import load_decoder
from experiments.common import run_script


class PackedTexts(IterableDataset):
    """Sequences of equal length, int64 [length], from texts that are joined in their order; the rest is dropped."""

    def __init__(self, texts: Iterable[dict[str, Any]], column: str, tokenizer: Any, length: int) -> None:
        self._texts, self._column, self._tokenizer, self._length = texts, column, tokenizer, length

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        end = [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]
        pending: list[int] = []
        for row in self._texts:
            pending += chain(self._tokenizer(row[self._column], add_special_tokens=False)["input_ids"], end)
            while len(pending) >= self._length:
                ids = torch.tensor(pending[: self._length])
                yield {"input_ids": ids, "labels": ids}
                pending = pending[self._length :]


def triangular_alphas(layers: int, peak: int, mean: float, spread: float) -> list[float]:
    """Alpha by layer: linear from the first layer up to the peak and down to the last, with this mean (table 9).

    The paper gives 7 to 57 with the mean 32; such a triangle with its peak at layer 19 of 24 goes from 8.04 to 58.04.
    """
    after = max(layers - 1 - peak, 1)
    heights = [layer / peak if layer < peak else 1 - (layer - peak) / after for layer in range(layers)]
    return [mean + spread * (height - sum(heights) / layers) for height in heights]


def train(config: dict[str, Any], *, resume: bool = False) -> Any:
    """Train, save the adapter, and return the Trainer."""
    bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    arguments = TrainingArguments(config["output"], **{"report_to": [], "bf16": bf16, **config["trainer"]})
    model, tokenizer = load_decoder(config["model"], dtype=config.get("dtype", "float32"))
    lora = dict(config["lora"])
    if config.get("peak") is not None:
        count, mean = model.config.num_hidden_layers, lora["lora_alpha"]
        alphas = triangular_alphas(count, config["peak"], mean, config["range"])
        lora["alpha_pattern"] = {rf"(layers|h)\.{layer}\..*": alpha for layer, alpha in enumerate(alphas)}
    set_seed(arguments.seed)  # of the adapters
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
    texts = PackedTexts(load_dataset(**config["data"]), config["column"], tokenizer, config["length"])
    examples: Any = texts if config["data"].get("streaming") else list(texts)
    game = GameOptions(**config["game"])
    trainer = GameTrainer(adapted, arguments, train_dataset=examples, processing_class=tokenizer, game=game)
    trainer.train(resume_from_checkpoint=True if resume else None)
    trainer.save_model(str(Path(config["output"]) / "adapter"))
    trainer.save_state()
    return trainer


def main(arguments: list[str] | None = None) -> None:
    """Read the configuration and train."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("config", type=Path)
    command.add_argument("overrides", nargs="*", metavar="key=value")
    command.add_argument("--resume", action="store_true")
    options = command.parse_args(arguments)
    config = apply_overrides(read_mapping(options.config), options.overrides)
    if not options.resume and any(Path(config["output"]).glob("checkpoint-*")):
        command.error(f"output: expected a folder without checkpoints, got {config['output']}; add --resume.")
    trainer = train(config, resume=options.resume)
    print(f"Adapter: {config['output']}/adapter, {trainer.state.global_step} steps")


if __name__ == "__main__":
    run_script(main)
