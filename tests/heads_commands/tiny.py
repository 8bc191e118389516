"""A small Llama of random weights and a tokenizer of whole words, as a folder of a model."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import torch

WORDS = [
    *(
        "<pad>",
        "<s>",
        "</s>",
        "<unk>",
        "the",
        "a",
        "film",
        "book",
        "is",
        "was",
        "good",
        "bad",
        "fine",
        "dull",
    ),
    *("very", "not", "and", "but", "plot", "cast", "Review:", "Sentiment:", "Question:", "Answer:", "Paris"),
    *("London", "Rome", "city", "river", "of", "in", "capital", "what", "where", "long", "short"),
]
LAYERS, HEADS, GROUPS = 3, 8, 4


def tokenizer() -> Any:
    """One token per word; what is no word of the list is <unk>."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


def decoder(seed: int = 0, **changes: Any) -> Any:
    """A Llama of 3 layers, 8 heads and 4 key/value heads."""
    import transformers

    torch.manual_seed(seed)
    sizes = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "max_position_embeddings": 128,
        "initializer_range": 0.25,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | changes)).eval()


def folder(path: Path, seed: int = 0) -> Path:
    """The model and its tokenizer, saved."""
    decoder(seed).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def films(count: int, seed: int = 0, *, lengths: tuple[int, int] = (3, 16)) -> list[dict[str, Any]]:
    """Reviews of random words and lengths, with a random label."""
    random = Random(seed)
    return [
        {
            "text": f"Review: {' '.join(random.choices(WORDS[4:20], k=random.randint(*lengths)))} Sentiment: ",
            "choices": ["good", "bad", "fine"],
            "label": random.choice(["good", "bad", "fine"]),
        }
        for _ in range(count)
    ]


def options(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Questions whose choices have several tokens and start alike."""
    choices = ["the capital of the film", "the river", "a city"]
    return [
        {**film, "choices": choices, "label": choices[k % 3]} for k, film in enumerate(films(count, seed))
    ]


def lines(path: Path, samples: list[dict[str, Any]]) -> Path:
    """A file of questions."""
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path
