"""Train a small classifier of sentence pairs with NeuroGame pooling, and explain a prediction.

    python examples/classify_pairs.py

The encoder is a BERT of one layer with random weights, so nothing is downloaded; it needs pip install 'diabat[hf]'.
"""

import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedTokenizerFast

from diabat.config import make_config
from diabat.runs import evaluate_run, explain_run, load_run, run_training

WORDS = ["a", "man", "dog", "cat", "is", "not", "playing", "sleeping", "the", "guitar", "with", "nobody"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def write_encoder(folder: Path) -> None:
    """Write a tokenizer of whole words and the configuration of a small BERT."""
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    BertConfig(
        vocab_size=len(SPECIAL + WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=24,
    ).save_pretrained(folder)


def write_pairs(path: Path) -> None:
    """Write pairs in which "not" gives a contradiction and "with nobody" a neutral pair."""
    ends = {"entailment": "", "contradiction": "not ", "neutral": ""}
    pairs = []
    for who in ("man", "dog", "cat"):
        for what in ("playing", "sleeping", "playing the guitar"):
            for label, word in ends.items():
                more = " with nobody" if label == "neutral" else ""
                hypothesis = f"the {who} is {word}{what}{more}"
                pairs.append({"premise": f"a {who} is {what}", "hypothesis": hypothesis, "label": label})
    path.write_text("\n".join(map(json.dumps, pairs)))


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    write_encoder(folder / "encoder")
    write_pairs(folder / "pairs.jsonl")
    config = make_config(
        {
            "output": str(folder / "run"),
            "task": {
                "name": "pairs",
                "data": str(folder),
                "train": "pairs.jsonl",
                "validation": "pairs.jsonl",
                "window": 24,
            },
            "model": {"encoder": str(folder / "encoder"), "pretrained": False, "num_heads": 2, "ffn_dim": 16},
            "training": {
                "learning_rate": 3e-3,
                "batch_size": 9,
                "max_epochs": 30,
                "decay_epochs": [],
                "ema_decay": 0.9,
            },
        }
    )
    run_training(config, progress=False)
    accuracy = evaluate_run(load_run(folder / "run"), "train").value
    print(f"accuracy on what it was trained on: {accuracy:.2f}")
    explanation = explain_run(folder / "run", "a dog is playing", "the dog is not playing")
    print(
        f"'the dog is not playing': {explanation.predicted}, {explanation.probabilities[explanation.predicted]:.2f}"
    )
    for token, weight in zip(explanation.tokens, explanation.alpha.mean(0).tolist(), strict=True):
        print(f"{token:10}{weight:6.3f}")


if __name__ == "__main__":
    main()
