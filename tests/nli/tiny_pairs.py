"""An encoder, a tokenizer and sentence pairs so small that a whole training takes a second."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from diabat.cli import app
from diabat.models import PairClassifier, PairModelOptions
from diabat.models.encoder import load_encoder
from diabat.tasks import PairFileOptions, PairSplit, Task
from diabat.tasks.hub import load_tokenizer
from diabat.training import TrainOptions, TrainResult, train
from diabat.training.folder import LATEST

WORDS = ["a", "man", "dog", "cat", "is", "not", "playing", "sleeping"]
WORDS += ["the", "guitar", "with", "##s", "nobody"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
POSITIONS = 24

PairTask = Task[PairSplit]

OPTIONS = TrainOptions(
    learning_rate=1e-2, coupling_learning_rate=1e-2, batch_size=8, max_epochs=2, checkpoint_every=2, log_every=1, seed=3
)  # fmt: skip


def make_encoder(folder: Path) -> Path:
    """Write a BERT with random weights and its WordPiece tokenizer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=inner, model_input_names=inputs, **names).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=POSITIONS, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


def make_pairs(count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Pairs whose label one word of the hypothesis gives away."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        who, what = (
            rng.choice(["man", "dog", "cat"]),
            rng.choice(["playing", "sleeping", "playing the guitar"]),
        )
        label = rng.choice(["entailment", "neutral", "contradiction"])
        hypothesis = {
            "entailment": f"the {who} is {what}",
            "contradiction": f"the {who} is not {what}",
            "neutral": f"the {who} is {what} with a man",
        }[label]
        rows.append((f"a {who} is {what}", hypothesis, label))
    return rows


def write_csv(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["premise", "hypothesis", "label"])
        writer.writerows(rows)
    return path


def make_data(folder: Path) -> Path:
    """Write 20 training, 12 validation and 9 test pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate({"train": 20, "validation": 12, "test": 9}.items()):
        write_csv(folder / f"{name}.csv", make_pairs(count, seed))
    return folder


def tiny_task(encoder: Path, data: Path, **changes: Any) -> PairTask:
    settings: dict[str, Any] = {"data": str(data), "test": "test.csv", "window": 20}
    options = PairFileOptions(**(settings | changes))
    return options.build(load_tokenizer(str(encoder)))


def tiny_model(
    encoder: Path, task: PairTask, *, seed: int = 0, sampler: Any = "mean_field", **changes: Any
) -> PairClassifier:
    settings: dict[str, Any] = {"num_heads": 2, "ffn_dim": 8, "coalitions": 4, "eval_coalitions": 6}
    options = PairModelOptions(encoder=str(encoder), **(settings | changes))
    torch.manual_seed(seed)
    inner = load_encoder(str(encoder))
    return PairClassifier(options, inner, task.num_classes, task.window, sampler)


def tiny_train(
    run_dir: Path, encoder: Path, task: PairTask, options: TrainOptions, *, resume: bool = False, **model: Any
) -> TrainResult:
    # A run resumed from a checkpoint must not depend on the weights that it is given.
    seed = 99 if resume and (run_dir / LATEST).exists() else 0
    classifier = tiny_model(encoder, task, seed=seed, **model)
    return train(classifier, task, options, run_dir, resume=resume, progress=False)


def furthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Largest difference of two weights, except biases of keys: softmax ignores them, and rounding moves them."""
    return max(float((a[name] - b[name]).abs().max()) for name in a if not name.endswith("key.bias"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def small(folder: Path, encoder: Path, data: Path, **changes: Any) -> Path:
    """Write a configuration that trains two steps."""
    document: dict[str, Any] = {
        "output": str(folder / "run"),
        "task": {"name": "pairs", "window": 20, "data": str(data), "test": "test.csv"},
        "model": {"encoder": str(encoder), "local_files_only": True, "num_heads": 2, "ffn_dim": 8, "coalitions": 3,
                  "eval_coalitions": 4},
        "training": {"batch_size": 8, "max_steps": 2, "learning_rate": 1e-3},
    }  # fmt: skip
    for key, value in changes.items():
        section, _, name = key.partition("__")
        document[section][name] = value
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(document))
    return path
