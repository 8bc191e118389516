"""Sentence pairs of SICK: an encoder of transformers, a pooling over its tokens, trained by transformers' Trainer.

    python -m experiments.sentence_pairs FOLDER [--pooling mean --pooling neurogame] [--seeds 3] [KEY=VALUE ...]
    python -m experiments.sentence_pairs FOLDER encoder=tiny trainer.learning_rate=1e-3 trainer.bf16=false

Trains every pooling with every seed, keeps the epoch with the lowest validation loss, and prints accuracies on the test
set and, beside ``mean``, what the others are ahead of it.  Finished ones are kept in FOLDER, with a 1 for each right
test pair.  ``--config`` names another file like experiments/pairs/sick.yaml, KEY=VALUE changes one of its keys:
``sampler`` is a backend with its options, ``options`` are those of the pooling.

Welch's test says whether other seeds of a pooling would be ahead, McNemar's whether these models would on other pairs.
Pairs are independent, answers of several seeds to one pair are not; the row "all" therefore counts each pair once, for
the pooling of which more seeds are right.

SICK.txt (Marelli et al. 2014, zenodo.org/records/2787612, 9,927 pairs) lies in the folder that DIABAT_DATA names.  This
edition has no split: its pairs are ordered by a hash of their pair_ID, 4,439 for training, 495 for validation, the rest
for testing.  It is NOT the official split.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

import diabat
from diabat.documents.overrides import apply_overrides
from diabat.huggingface.hub import resolve
from diabat.ising import without_autocast
from diabat.lab.models.pairs import MeanPooling, QueryPooling
from experiments.common import Row, once, parser, report, run_script, same_settings
from experiments.verdicts import gap, interval, mcnemar, power, seeds_needed, verdict

CONFIG = Path(__file__).parent / "pairs" / "sick.yaml"
POOLINGS = ("neurogame", "boltzmann", "softmax", "mean", "neurogame-h", "neurogame-uniform", "projected_mean")
CLASSES = ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")
SHA256 = "3de6211d6cee83b1b444c1205da36bd18e6cabf5b4debfc24995b1510b796878"
NUM_TRAIN, NUM_VALIDATION = 4_439, 495
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


class ProjectedMeanPooling(MeanPooling):
    """Mean pooling between the two projections of NeuroGame attention: their effect without a game."""

    def __init__(self, width: int, value_std: float) -> None:
        super().__init__()
        self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(2))
        nn.init.normal_(self.value.weight, std=value_std)

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Pool."""
        pooled: Tensor = self.output(self.value(super().forward(x, key_padding_mask)))
        return pooled


def pooling_of(config: Row, width: int) -> nn.Module:
    """The pooling that the configuration names, for token states of this width."""
    name, _, mode = config["pooling"].partition("-")
    backend = {**config["sampler"]}
    sampler = diabat.sampler(backend.pop("backend"), **backend)
    options = config["options"]
    if name == "neurogame":
        return diabat.NeuroGameAttention(width, sampler=sampler, mode=mode or "h+J", **options)
    if name == "boltzmann":
        return QueryPooling(width, options["num_heads"], config["max_length"], sampler=sampler)
    if name == "softmax":
        return QueryPooling(width, options["num_heads"], config["max_length"], mode="softmax")
    if name == "projected_mean":
        return ProjectedMeanPooling(width, options.get("temperature", 0.25) / (8 * math.sqrt(width)))
    return MeanPooling()


class PairClassifier(nn.Module):
    """Encoder, pooling over its token states, and a feed-forward network (arXiv:2603.18761, §3.12)."""

    def __init__(self, encoder: Any, config: Row) -> None:
        super().__init__()
        width, hidden, dropout = encoder.config.hidden_size, config["hidden"], config["dropout"]
        self.encoder, self.pooling = encoder, pooling_of(config, width)
        self.config = encoder.config  # which the Trainer reads
        layers = [nn.Dropout(dropout), nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout)]
        self.classifier = nn.Sequential(*layers, nn.Linear(hidden, len(CLASSES)))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **more: Tensor
    ) -> dict[str, Tensor]:
        """Logits [B, C] of tokens [B, T], and the cross-entropy to the labels [B] in nats."""
        out = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **more)
        states = out.last_hidden_state.to(self.classifier[1].weight.dtype)
        # Norms of coalitions and fixed points are inaccurate in half precision, and cheap in float32.
        with without_autocast(states):
            logits = self.classifier(self.pooling(states, attention_mask == 0))
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


def sick(path: Path) -> dict[str, Any]:
    """The sets of SICK by name, each a ``datasets.Dataset`` with two sentences and a label."""
    from datasets import Dataset

    if not path.exists():
        expected = f"expected a folder with {path.name} of zenodo.org/records/2787612"
        raise SystemExit(f"DIABAT_DATA: {expected}, got '{path.parent}' without it.")
    content = path.read_bytes()
    if (got := hashlib.sha256(content).hexdigest()) != SHA256:
        raise SystemExit(f"DIABAT_DATA: expected SICK.txt with sha256 {SHA256}, got {path} with {got}.")
    names, *rows = (line.split("\t") for line in content.decode().splitlines())

    def place(row: list[str]) -> str:  # does not depend on the order of the file
        return hashlib.sha256(f"diabat sick {row[0]}".encode()).hexdigest()

    cut, ordered = NUM_TRAIN + NUM_VALIDATION, sorted(rows, key=place)
    parts = {"train": ordered[:NUM_TRAIN], "validation": ordered[NUM_TRAIN:cut], "test": ordered[cut:]}
    first, second, label = (names.index(n) for n in ("sentence_A", "sentence_B", "entailment_judgment"))
    return {
        name: Dataset.from_dict({
            "first": [row[first] for row in part],
            "second": [row[second] for row in part],
            "label": [CLASSES.index(row[label]) for row in part],
        })
        for name, part in parts.items()
    }  # fmt: skip


def encoder_of(config: Row, sentences: Sequence[str]) -> tuple[Any, Any]:
    """Encoder and tokenizer: of a folder, a package or the hub; or ``tiny``, over the words of the sentences."""
    import transformers

    if config["encoder"] != "tiny":
        name = resolve(config["encoder"], "encoder")
        encoder = transformers.AutoModel.from_pretrained(name, dtype=torch.float32)
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler.requires_grad_(False)  # not used
        return encoder, transformers.AutoTokenizer.from_pretrained(name)
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = sorted({word for text in sentences for word in text.lower().split()})
    numbered = {word: i for i, word in enumerate([*SPECIAL, *words])}
    inner = Tokenizer(models.WordLevel(numbered, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )  # fmt: skip
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", model_input_names=inputs
    )
    sizes = {"max_position_embeddings": config["max_length"], **config["tiny"]}
    bert = transformers.BertConfig(vocab_size=len(numbered), **sizes)
    return transformers.BertModel(bert, add_pooling_layer=False), tokenizer


def try_longest(model: PairClassifier, lengths: Sequence[int]) -> None:
    """Pool a batch of these ascending lengths once: what the sampler refuses, it refuses before the first step."""
    hidden = torch.arange(lengths[-1]) >= torch.tensor(lengths)[:, None]
    with torch.no_grad(), torch.random.fork_rng():
        model.pooling(torch.randn(*hidden.shape, model.config.hidden_size), hidden)


def optimizer_of(model: PairClassifier, config: Row) -> torch.optim.AdamW:
    """AdamW with rates of their own for the encoder, for pooling and classifier, and for couplings."""
    training = config["trainer"]
    rates = (training["learning_rate"], config["head_learning_rate"], config["coupling_learning_rate"])
    groups: list[list[nn.Parameter]] = [[], [], []]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[2 if "coupling" in name else 1 - name.startswith("encoder.")].append(parameter)
    chosen = [{"params": own, "lr": rate} for own, rate in zip(groups, rates, strict=True) if own]
    return torch.optim.AdamW(chosen, weight_decay=training["weight_decay"], fused=True)


def run(config: Row, seed: int, folder: Path, sets: dict[str, Any]) -> Row:
    """Train one model; accuracies of the epoch with the lowest validation loss, and which test pairs are right."""
    import transformers
    from datasets import disable_progress_bars

    torch.manual_seed(seed)
    train = sets["train"].select(range(config["num_train"] or len(sets["train"])))
    encoder, tokenizer = encoder_of(config, [*train["first"], *train["second"]])
    # Poolings of one seed start with the same classifier, whatever the encoder has drawn.
    torch.manual_seed(seed)
    model = PairClassifier(encoder, config)

    def tokens(rows: Any) -> Any:
        return tokenizer(rows["first"], rows["second"], truncation=True, max_length=config["max_length"])

    def accuracy(output: Any) -> dict[str, float]:
        return {"accuracy": float(np.mean(output.predictions.argmax(-1) == output.label_ids))}

    disable_progress_bars()
    there = {name: part.map(tokens, batched=True) for name, part in {**sets, "train": train}.items()}
    for name, part in there.items():
        size = config["trainer"].get(f"per_device_{'train' if name == 'train' else 'eval'}_batch_size", 8)
        try_longest(model, sorted(map(len, part["input_ids"]))[-size:])
    arguments = transformers.TrainingArguments(
        str(folder), seed=seed, eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, report_to="none",
        load_best_model_at_end=True, metric_for_best_model="eval_loss", logging_strategy="epoch", disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(), **config["trainer"],
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, transformers.DataCollatorWithPadding(tokenizer), there["train"], there["validation"],
        compute_metrics=accuracy, optimizers=(optimizer_of(model, config), None),
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    seconds = trainer.train().metrics["train_runtime"]
    validation = trainer.evaluate(there["validation"])["eval_accuracy"]
    arguments.train_sampling_strategy = "random"  # by length it shuffles what is predicted, too
    tested: Any = trainer.predict(there["test"])
    right = tested.predictions.argmax(-1) == tested.label_ids
    return {"pooling": config["pooling"], "seed": seed, "validation": validation, "test": float(right.mean()),
            "right": "".join(map(str, right.astype(int))), "seconds": seconds}  # fmt: skip


def configured(path: Path, changes: Sequence[str]) -> Row:
    """The configuration of a file with KEY=VALUE, dotted keys and values in YAML; another backend drops the options."""
    known = yaml.safe_load(path.read_text("utf-8"))
    config = apply_overrides(known, changes)
    if unknown := ", ".join(config.keys() - known.keys()):
        raise SystemExit(f"{unknown}: expected one of {', '.join(known)}.")
    return config


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    command = parser(__doc__, study=True)
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    command.add_argument("--pooling", action="append", choices=POOLINGS, help="else that of the file")
    command.add_argument("--config", type=Path, default=CONFIG)
    options = command.parse_intermixed_args(arguments)
    config = configured(options.config, options.overrides)
    poolings = options.pooling or [config.pop("pooling")]
    same_settings(options.folder, {**config, "pooling": None})
    sets, rows = sick(Path(os.environ.get("DIABAT_DATA", ".")) / "SICK.txt"), []
    right: dict[str, list[list[int]]] = {}
    for pooling in poolings:
        places = [options.folder / f"{pooling}-{seed}.json" for seed in range(options.seeds)]
        one = partial(run, {**config, "pooling": pooling}, sets=sets)
        results = [once(path, partial(one, seed, path.with_suffix(""))) for seed, path in enumerate(places)]
        tests = [100 * row["test"] for row in results]
        right[pooling] = [[*map(int, row["right"])] for row in results]
        rows.append({
            "pooling": pooling, "test accuracy / %": tests, "mean": fmean(tests),
            "σ": stdev(tests) if len(tests) > 1 else None,
            "validation / %": [100 * row["validation"] for row in results],
            "s": fmean(row["seconds"] for row in results),
        })  # fmt: skip
    title = f"SICK by pooling, {config['encoder']}"
    report(title, rows, as_json=options.json, formats={"test accuracy / %": ".2f", "mean": ".2f", "σ": ".2f"})
    formats = dict.fromkeys(("points", "95 % interval"), "+.2f") | {"p": ".2g"}
    report("Ahead of mean pooling, by Welch's t test", gaps(rows), as_json=options.json, formats=formats)
    title = "Against mean pooling, by McNemar's test"
    report(title, discordant(right), as_json=options.json, formats=formats)


def gaps(rows: Sequence[Row]) -> list[Row]:
    """What each pooling is ahead of the mean, in points, if that is there and both have two seeds."""
    tests = {row["pooling"]: row["test accuracy / %"] for row in rows}
    ahead = {name: gap(own, tests["mean"]) for name, own in tests.items() if "mean" in tests}
    return [
        {"pooling": name, "points": one.difference, **interval(one), "verdict": verdict(one, None),
         "power for a point": power(tests[name], tests["mean"], 1.0),
         "seeds for 80 %": seeds_needed(tests[name], tests["mean"], 1.0)}
        for name, one in ahead.items() if name != "mean" and one is not None
    ]  # fmt: skip


def discordant(right: dict[str, list[list[int]]]) -> list[Row]:
    """McNemar's test of each pooling against the mean, of every seed and of all: ``right[pooling][seed][pair]``."""
    rows, means = [], right.get("mean", [])
    for name, own in right.items():
        pairs: dict[str, Any] = {str(seed): both for seed, both in enumerate(zip(own, means, strict=False))}
        if name == "mean" or not pairs:
            continue
        pairs["all"] = [[sum(seeds) for seeds in zip(*arm, strict=True)] for arm in (own, means)]
        for seed, both in pairs.items():
            better, worse, p = mcnemar(*both)
            rows.append({"pooling": name, "seed": seed, "right alone": better, "mean alone": worse, "p": p})
    return rows


if __name__ == "__main__":
    run_script(main)
