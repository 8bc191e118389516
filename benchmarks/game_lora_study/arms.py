"""The arms of the study: one fine-tuning of the base model with one set of losses, and what is measured of it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from benchmarks.game_lora_study import decoder
from benchmarks.game_lora_study.decoder import HEADS, WORLD, batch
from diabat.attention.heads import HeadInteractions
from diabat.files import read_file, replace_file, seal, unseal
from diabat.runs.heads.facts import Deviation, documents, judge

LAYER = 2  # (19 + 1) / 24 of the depth
DELTA = 0.5
EVERY = 20
"""Steps between two measurements of G."""
_TRAIN_SEED, _TEXT_SEED = 2_000_000, 9_000_000
_BATCH, _RATE = 16, 3e-3
_MOST_BYTES = 1 << 26
_TWINS: Mapping[str, Any] = {"losses": ["abt"]}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"losses": []},
    "abt identity, sum": {**_TWINS, "combination": "sum"},
    "abt identity, nash": _TWINS,
    "abt zero, sum": {**_TWINS, "target": "zero", "combination": "sum"},
    "abt zero, nash": {**_TWINS, "target": "zero"},
    "ldb, sum": {"losses": ["ldb"], "combination": "sum"},
    "ldb, nash": {"losses": ["ldb"]},
    "game-lora, sum": {"combination": "sum"},
    "game-lora, nash": {},
    "disagreement": {"losses": ["disagreement"], "combination": "sum"},
    "entropy": {"losses": ["entropy"], "combination": "sum"},
}
"""Options of GAME-LoRA by arm."""
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Run:
    """A fine-tuning of one arm with one seed."""

    arm: str
    seed: int

    def path(self, folder: Path) -> Path:
        """Its file in the folder of the study."""
        return folder / f"seed-{self.seed}" / f"{self.arm.replace(', ', '-').replace(' ', '-')}.json"

    def read(self, folder: Path) -> dict[str, Any]:
        """Content of its file.

        Raises:
            OSError: There is none.
            ValueError: It was changed.
        """
        return read_result(self.path(folder))


def read_result(path: Path) -> dict[str, Any]:
    """Content of a file of the study."""
    return unseal(read_file(path, _MOST_BYTES))


def compute_base(folder: Path, steps: int, advance: Advance) -> None:
    """Train the base model, write its weights, and what is measured of it."""
    torch.set_num_threads(1)
    model = decoder.train(steps, advance)
    replace_file(folder / "base.safetensors", save(dict(model.state_dict())))
    replace_file(folder / "before.json", seal(_scores(_adapted(folder, seed=0))))


def compute(run: Run, folder: Path, steps: int, advance: Advance) -> None:
    """Fine-tune, measure, and write the file of a run."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model = _adapted(folder, run.seed)
    with tempfile.TemporaryDirectory() as scratch:
        trainer, traces = _trainer(model, run, steps, Path(scratch), advance)
        trainer.train()
    log = [
        {key: value for key, value in line.items() if key == "loss" or key.startswith("game/")}
        for line in trainer.state.log_history
    ]
    run.path(folder).parent.mkdir(parents=True, exist_ok=True)
    replace_file(run.path(folder), seal({**_scores(model), "traces": traces, "log": log}))


def _adapted(folder: Path, seed: int) -> Any:
    """The base model with new adapters, those of the paper."""
    from peft import LoraConfig, get_peft_model

    model = decoder.decoder()
    model.load_state_dict(load(read_file(folder / "base.safetensors", _MOST_BYTES)))
    torch.manual_seed(seed)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=targets))


def _trainer(
    model: Any, run: Run, steps: int, scratch: Path, advance: Advance
) -> tuple[Any, list[list[float]]]:
    """The trainer of a run, and the list that gets G_ij of all pairs every `EVERY` steps."""
    from transformers import PrinterCallback, TrainerCallback, TrainingArguments

    from diabat.huggingface import GameOptions, GameTrainer

    traces: list[list[float]] = []
    text = held_out()

    class Traces(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            traces.append(_pairs(_interaction(model, text, information=False).G))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            advance(1)
            if state.global_step % EVERY == 0:
                traces.append(_pairs(_interaction(model, text, information=False).G))

    arguments = TrainingArguments(
        str(scratch), max_steps=steps, per_device_train_batch_size=_BATCH, learning_rate=_RATE, weight_decay=0.1,
        lr_scheduler_type="cosine", warmup_steps=0.02, logging_steps=EVERY, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, seed=run.seed,
    )  # fmt: skip
    trainer = GameTrainer(
        model,
        arguments,
        train_dataset=documents(WORLD, _BATCH * steps, _TRAIN_SEED + run.seed),
        callbacks=[Traces()],
        game=GameOptions(layers=[LAYER], **dict(ARMS[run.arm])),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer, traces


def held_out() -> Mapping[str, Tensor]:
    """Documents that no model was trained on."""
    return batch(documents(WORLD, 256, _TEXT_SEED))


def _scores(model: Any) -> dict[str, Any]:
    """Coupling of the heads of the layer on held-out text, its loss, and deviations from the truth."""
    text = held_out()
    found, truth = _interaction(model, text, information=True), judge(model, WORLD)
    kinds = {
        "old": truth["seen"].deviation[::2],
        "new": truth["seen"].deviation[1::2],
        "unseen": truth["unseen"].deviation,
        "contradicted": truth["contradicted"].deviation,
        "probabilistic": truth["probabilistic"].deviation,
    }
    with torch.no_grad():
        model.eval()
        loss = model(**text).loss.item()
    return {
        "gamma": found.gamma,
        "gamma_invariant": found.invariant_gamma,
        "tc": found.information.total_correlation,
        "diagonal": sum(_pairs(found.diagonal_correlation)) * 2 / (HEADS * (HEADS - 1)),
        "text": loss,
        "E": {kind: values.mean().item() for kind, values in kinds.items()},
        "Pr": {kind: Deviation(values, 0.0, 0.0).exceeds(DELTA) for kind, values in kinds.items()},
        "pairs": _pairs(found.G),
    }


def _interaction(model: Any, text: Mapping[str, Tensor], *, information: bool) -> Any:
    return HeadInteractions(model, [LAYER], information=information).measure(text)[LAYER]


def _pairs(matrix: Tensor) -> list[float]:
    upper = torch.triu_indices(HEADS, HEADS, 1)
    return matrix[upper[0], upper[1]].tolist()
