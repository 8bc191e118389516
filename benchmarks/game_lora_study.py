"""A grouped-query decoder trained here, then fine-tuned with each loss on heads: coupling, redundancy, truth.

python -m benchmarks.game_lora_study FOLDER [--seeds 3] [--steps 300] [--json]

Every run leaves one file in the folder; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import report
from diabat.attention.heads import HeadInteractions
from diabat.files import replace_file, seal, unseal
from diabat.runs.heads.facts import World, documents, judge

LAYERS, HEADS, GROUPS, WIDTH = 4, 8, 2, 128
LAYER = 2  # (19 + 1) / 24 of the depth
WORLD = World()
PRETRAINING, BATCH = 1500, 32
DELTA = 0.5
SHOWN = ("old", "new", "unseen", "contradicted", "probabilistic")
TWINS: Mapping[str, Any] = {"losses": ["abt"]}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"losses": []},
    "abt identity, sum": {**TWINS, "combination": "sum"},
    "abt identity, nash": TWINS,
    "abt zero, sum": {**TWINS, "target": "zero", "combination": "sum"},
    "abt zero, nash": {**TWINS, "target": "zero"},
    "ldb, sum": {"losses": ["ldb"], "combination": "sum"},
    "ldb, nash": {"losses": ["ldb"]},
    "game-lora, sum": {"combination": "sum"},
    "game-lora, nash": {},
    "disagreement": {"losses": ["disagreement"], "combination": "sum"},
    "entropy": {"losses": ["entropy"], "combination": "sum"},
}


def base_model(folder: Path) -> Any:
    """The decoder trained on half of the facts; kept in the folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORLD.vocabulary, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=GROUPS, max_position_embeddings=64, pad_token_id=0,
        )
    )  # fmt: skip
    kept = folder / "base"
    if kept.is_dir():
        return LlamaForCausalLM.from_pretrained(kept)
    old = _old_pairs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=PRETRAINING)
    start = time.monotonic()
    for step in range(PRETRAINING):
        loss = model(**_batch(documents(WORLD, BATCH, 1_000_000 + step, old))).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 0:
            print(
                f"base {step} {loss.item():.3f} {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True
            )
    model.save_pretrained(kept)
    return model


def run(folder: Path, arm: str, seed: int, steps: int) -> dict[str, Any]:
    """Fine-tune with one set of losses, and measure."""
    from peft import LoraConfig, get_peft_model
    from transformers import PrinterCallback, TrainerCallback, TrainingArguments

    from diabat.huggingface import GameOptions, GameTrainer

    torch.manual_seed(seed)
    lora = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.1, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]
    )
    model = get_peft_model(base_model(folder), lora)
    held_out = _batch(documents(WORLD, 256, 9_000_000))
    traces: list[list[float]] = []

    class Traces(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % 20 == 0:
                traces.append(_pairs(measured(model, held_out, information=False).G))

    before = {} if steps else _scores(model, held_out)
    if steps:
        with tempfile.TemporaryDirectory() as scratch:
            args = TrainingArguments(
                scratch, max_steps=steps, per_device_train_batch_size=16, learning_rate=3e-3, weight_decay=0.1,
                lr_scheduler_type="cosine", warmup_steps=0.02, logging_steps=20, save_strategy="no", report_to=[],
                use_cpu=True, disable_tqdm=True, seed=seed,
            )  # fmt: skip
            data = documents(WORLD, 16 * steps, 2_000_000 + seed)
            trainer = GameTrainer(
                model,
                args,
                train_dataset=data,
                callbacks=[Traces()],
                game=GameOptions(layers=[LAYER], **dict(ARMS[arm])),
            )
            trainer.remove_callback(PrinterCallback)
            start = time.monotonic()
            trainer.train()
            before = {
                "seconds": time.monotonic() - start,
                "log": [{k: v for k, v in line.items() if k == "loss" or k.startswith("game/")}
                        for line in trainer.state.log_history],
            }  # fmt: skip
    return {
        **before,
        **_scores(model, held_out),
        "traces": traces,
        "pairs": _pairs(measured(model, held_out).G),
    }


def measured(model: Any, batch: Mapping[str, Tensor], *, information: bool = True) -> Any:
    """The interaction of heads at the design layer."""
    return HeadInteractions(model, [LAYER], information=information).measure(batch)[LAYER]


def _scores(model: Any, held_out: Mapping[str, Tensor]) -> dict[str, Any]:
    found, truth = measured(model, held_out), judge(model, WORLD)
    upper = torch.triu_indices(HEADS, HEADS, 1)
    was, new = _old_among_seen(), ~_old_among_seen()
    with torch.no_grad():
        model.eval()
        text = model(**held_out).loss.item()
    return {
        "gamma": found.gamma,
        "gamma_invariant": found.invariant_gamma,
        "tc": found.information.total_correlation,
        "diagonal": found.diagonal_correlation[upper[0], upper[1]].mean().item(),
        "text": text,
        "E": {kind: d.mean for kind, d in truth.items()}
        | {
            "old": truth["seen"].deviation[was].mean().item(),
            "new": truth["seen"].deviation[new].mean().item(),
        },
        "Pr": {kind: d.exceeds(DELTA) for kind, d in truth.items()},
        "accuracy": {kind: d.accuracy for kind, d in truth.items()},
    }


def _pairs(coupling: Tensor) -> list[float]:
    upper = torch.triu_indices(HEADS, HEADS, 1)
    return coupling[upper[0], upper[1]].tolist()


def _old_pairs() -> Any:
    """Facts of the pretraining: every second pair that is not unseen."""
    import numpy as np

    return np.concatenate([WORLD.pairs("seen")[::2], WORLD.pairs("probabilistic")[::2]])


def _old_among_seen() -> Tensor:
    old = torch.zeros(len(WORLD.pairs("seen")), dtype=torch.bool)
    old[::2] = True
    return old


def _batch(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def table(results: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row per arm: mean over seeds, and the spread in brackets."""
    rows = []
    for arm, found in results.items():
        if not found:
            continue

        def show(pick: Any, found: list[dict[str, Any]] = found) -> str:
            values = [pick(one) for one in found]
            spread = f" ({statistics.stdev(values):.2g})" if len(values) > 1 else ""
            return f"{statistics.mean(values):.3g}{spread}"

        rows.append({
            "arm": arm, "seeds": len(found),
            "Γ": show(lambda x: x["gamma"]), "Γ'": show(lambda x: x["gamma_invariant"]),
            "TC": show(lambda x: x["tc"]), "diag": show(lambda x: x["diagonal"]), "text": show(lambda x: x["text"]),
            **{f"E {kind}": show(lambda x, kind=kind: x["E"][kind]) for kind in SHOWN},
            "Pr unseen": show(lambda x: x["Pr"]["unseen"]),
            "pairs up": show(_risen),
            "s": show(lambda x: x.get("seconds", 0.0)),
        })  # fmt: skip
    return rows


def _risen(result: Mapping[str, Any]) -> float:
    """Share of the pairs whose coupling is higher at the end than at the beginning."""
    first = result["traces"][0] if result["traces"] else result["pairs"]
    return sum(b > a for a, b in zip(first, result["pairs"], strict=True)) / len(first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {"before": [], **{arm: [] for arm in ARMS}}
    for seed in range(chosen.seeds):
        for arm, found in results.items():
            if arm == "before" and seed:
                continue
            steps = 0 if arm == "before" else chosen.steps
            path = chosen.folder / f"{arm.replace(', ', '-').replace(' ', '-')}-{steps}-{seed}.json"
            if not path.exists():
                replace_file(path, seal(run(chosen.folder, arm, seed, steps)))
                print(path.name, file=sys.stderr, flush=True)
            found.append(unseal(path.read_bytes()))
    report("Losses on heads, mean over seeds (standard deviation)", table(results))
    if chosen.json:
        print(
            json.dumps({arm: [one["log"] for one in found if "log" in one] for arm, found in results.items()})
        )


if __name__ == "__main__":
    main()
