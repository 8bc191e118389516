"""A grouped-query decoder trained here, then fine-tuned with each loss of GAME-LoRA: coupling, redundancy, truth.

    python -m experiments.game_lora_study FOLDER [--seeds 3] [--steps 300] [--base-steps 4000] [--workers 2] [--json]

Goes on where it stopped.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diabat.attention.heads import HeadInteractions
from experiments.common import (
    Row,
    Titled,
    attend_back,
    calls,
    fit,
    keep,
    kept,
    parser,
    print_tables,
    same_settings,
)
from experiments.facts import World, deviations, documents

LAYERS, HEADS, GROUPS, WIDTH = 4, 8, 2, 128
WORLD = World()
LAYER = 2  # (19 + 1) / 24 of the depth
ARMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"losses": []},
    "abt identity, sum": {"losses": ["abt"], "combination": "sum"},
    "abt identity, nash": {"losses": ["abt"]},
    "abt zero, sum": {"losses": ["abt"], "target": "zero", "combination": "sum"},
    "abt zero, nash": {"losses": ["abt"], "target": "zero"},
    "ldb, sum": {"losses": ["ldb"], "combination": "sum"},
    "ldb, nash": {"losses": ["ldb"]},
    "game-lora, sum": {"combination": "sum"},
    "game-lora, nash": {},
    "disagreement": {"losses": ["disagreement"], "combination": "sum"},
    "entropy": {"losses": ["entropy"], "combination": "sum"},
}
"""Options of GAME-LoRA by arm."""
HEAD_VALUES = ("Γ", "Γ'", "TC", "diag", "text")
TRUTH_VALUES = tuple(
    f"{what} {kind}"
    for what in ("E", "Pr")
    for kind in ("old", "new", "unseen", "contradicted", "probabilistic")
)


def decoder() -> Any:
    """A Llama, not yet trained; half of the query heads of its first layer begin one or two tokens back.

    The entity and the relation of a statement are then known at its value from the start.  Without this, a decoder of
    this size does not learn to read notes in the time given.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORLD.vocabulary, max_position_embeddings=64, initializer_range=WIDTH**-0.5, pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, attention_bias=True, hidden_size=WIDTH,
        intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=GROUPS,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    attend_back(model, [1, 2, 1, 2])
    return model


def train_base(folder: Path, steps: int) -> str:
    """Train on half of the facts, first on short documents that all have a note; keep the weights and the scores."""
    torch.manual_seed(0)
    model = decoder().train()
    old = np.concatenate([WORLD.pairs("seen")[::2], WORLD.pairs("probabilistic")[::2]])

    def loss(step: int) -> Tensor:
        reading = step < 0.4 * steps
        world = replace(WORLD, noted=1.0, facts=2) if reading else replace(WORLD, noted=0.5)
        return model(**batch(documents(world, 64 if reading else 32, 1_000_000 + step, old))).loss

    fit(model, loss, steps, 1.5e-3)
    save_file(model.state_dict(), folder / "base.safetensors")
    keep(folder / "before.json", scores(adapted(folder, seed=0)))
    return "base model"


def batch(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Documents as one batch."""
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def adapted(folder: Path, seed: int) -> Any:
    """The base model with new adapters, those of the paper."""
    from peft import LoraConfig, get_peft_model

    model = decoder()
    model.load_state_dict(load_file(folder / "base.safetensors"))
    torch.manual_seed(seed)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=targets))


def path(folder: Path, arm: str, seed: int) -> Path:
    """File of the results of an arm with a seed."""
    return folder / f"seed-{seed}" / f"{arm.replace(', ', '-').replace(' ', '-')}.json"


def fine_tune(folder: Path, arm: str, seed: int, steps: int) -> str:
    """Fine-tune on all facts, measure, and keep the result."""
    from transformers import PrinterCallback, TrainingArguments

    from diabat.huggingface import GameOptions, GameTrainer

    warnings.simplefilter("ignore")
    model = adapted(folder, seed)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            scratch, max_steps=steps, per_device_train_batch_size=16, learning_rate=3e-3, weight_decay=0.1,
            lr_scheduler_type="cosine", warmup_steps=0.02, save_strategy="no", report_to=[], use_cpu=True,
            logging_strategy="no", disable_tqdm=True, seed=seed,
        )  # fmt: skip
        trainer = GameTrainer(
            model, arguments, train_dataset=documents(WORLD, 16 * steps, 2_000_000 + seed),
            game=GameOptions(layers=[LAYER], **ARMS[arm]),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    keep(path(folder, arm, seed), scores(model))
    return f"{arm}, seed {seed}"


def held_out() -> dict[str, Tensor]:
    """Documents that no model was trained on."""
    return batch(documents(WORLD, 256, 9_000_000))


@torch.no_grad()
def scores(model: Any) -> Row:
    """Coupling of the heads of the layer on held-out text, its loss, and deviations from the truth."""
    text = held_out()
    found = HeadInteractions(model, [LAYER], information=True).measure(text)[LAYER]
    truth, information = deviations(model, WORLD), found.information
    assert information is not None
    seen = truth.pop("seen")
    truth = {"old": seen[::2], "new": seen[1::2], **truth}
    diagonal = of_pairs(found.diagonal_correlation)
    return {
        "Γ": found.gamma, "Γ'": found.invariant_gamma, "TC": information.total_correlation,
        "diag": sum(diagonal) / len(diagonal), "text": model(**text).loss.item(),
        **{f"E {kind}": values.mean().item() for kind, values in truth.items()},
        **{f"Pr {kind}": (values >= 0.5).double().mean().item() for kind, values in truth.items()},
        "pairs": of_pairs(found.G),
    }  # fmt: skip


def of_pairs(matrix: Tensor) -> list[float]:
    """Entries above the diagonal."""
    upper = torch.triu_indices(HEADS, HEADS, 1)
    return matrix[upper[0], upper[1]].tolist()


def tables(folder: Path, seeds: int) -> Titled:
    """Every arm, mean over seeds ± σ, and less plain LoRA of the same seed, ± half of the 95 % t interval."""
    results = {arm: [kept(path(folder, arm, seed)) for seed in range(seeds)] for arm in ARMS}
    before = kept(folder / "before.json")
    for run in (run for runs in results.values() for run in runs):
        run["pairs up"] = fmean(b > a for a, b in zip(before["pairs"], run["pairs"], strict=True))
    for title, names in (("Heads and text", HEAD_VALUES), ("Truth", TRUTH_VALUES)):
        yield f"{title}, before", {name: before[name] for name in names}
        for arm, runs in results.items():
            own = (*names, "pairs up") if names is HEAD_VALUES else names
            yield title, {"arm": arm, **{name: _spread(runs, name) for name in own}}
            if seeds > 1 and arm != "plain":
                row = {name: _difference(runs, results["plain"], name) for name in names}
                yield f"{title} less plain LoRA, * if the interval excludes 0", {"arm": arm, **row}


def _spread(runs: list[Row], name: str) -> str:
    values = [run[name] for run in runs]
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _difference(runs: list[Row], plain: list[Row], name: str) -> str:
    from scipy.stats import t

    changes = [run[name] - other[name] for run, other in zip(runs, plain, strict=True)]
    half = float(t.ppf(0.975, len(changes) - 1)) * stdev(changes) / len(changes) ** 0.5
    return f"{fmean(changes):+.3f} ± {half:.3f}{' *' if abs(fmean(changes)) > half else ''}"


def main() -> None:
    """Compute what is missing; print the tables."""
    command = parser(__doc__, study=True)
    command.add_argument("--steps", type=int, default=300, help="of each fine-tuning")
    command.add_argument("--base-steps", type=int, default=4000, help="of the training of the base")
    options = command.parse_args()
    folder = options.folder
    torch.set_num_threads(1)
    same_settings(folder, {"steps": options.steps, "base_steps": options.base_steps})
    if not (folder / "before.json").exists():
        print(train_base(folder, options.base_steps), file=sys.stderr)
    runs = [(folder, arm, seed, options.steps) for seed in range(options.seeds) for arm in ARMS]
    for done in calls(fine_tune, [run for run in runs if not path(*run[:3]).exists()], options.workers):
        print(done, file=sys.stderr)
    print_tables(tables(folder, options.seeds), as_json=options.json)


if __name__ == "__main__":
    main()
