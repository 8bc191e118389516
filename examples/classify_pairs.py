"""Train a small classifier of sentence pairs with NeuroGame pooling in plain PyTorch, and explain a prediction.

python examples/classify_pairs.py
"""

import itertools

import torch
from torch import nn

import diabat

WORDS = ["[PAD]", "[SEP]", "a", "man", "dog", "cat", "is", "not", "playing", "sleeping", "the", "guitar"]
WORDS += ["with", "nobody"]
CLASSES = ("entailment", "neutral", "contradiction")
ENDS = ("{}", "{} with nobody", "not {}")  # of a hypothesis, by class


class Classifier(nn.Module):
    """Embeddings of words, a pooling by the marginals of an Ising model of their values, a linear layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), width, padding_idx=0)
        self.pooling = diabat.NeuroGameAttention(width, num_heads=2, temperature=1.0)
        self.classifier = nn.Linear(width, len(CLASSES))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens [B, T] to logits [B, C]."""
        return self.classifier(self.pooling(self.embedding(tokens), key_padding_mask=tokens == 0))


def encode(premise: str, hypothesis: str, length: int = 16) -> list[int]:
    """Tokens of a pair, padded."""
    tokens = [WORDS.index(word) for word in f"{premise} [SEP] {hypothesis}".split()]
    return tokens + [0] * (length - len(tokens))


def main() -> None:
    torch.manual_seed(0)
    cases = list(
        itertools.product(("man", "dog", "cat"), ("playing", "sleeping", "playing the guitar"), range(3))
    )
    pairs = [(f"a {who} is {what}", f"the {who} is {ENDS[label].format(what)}") for who, what, label in cases]
    tokens, labels = (
        torch.tensor([encode(*pair) for pair in pairs]),
        torch.tensor([label for *_, label in cases]),
    )
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), labels).backward()
        optimizer.step()
    model.eval()
    accuracy = (model(tokens).argmax(-1) == labels).double().mean()
    print(f"accuracy on what it was trained on: {accuracy:.2f}")
    one = torch.tensor([encode("a dog is playing", "the dog is not playing")])
    print(f"'the dog is not playing': {CLASSES[model(one).argmax()]}")
    found = model.pooling.explain(model.embedding(one), key_padding_mask=one == 0)
    print("marginal and Shapley value, means over heads")
    for token, alpha, phi in zip(one[0], found.alpha[0].mean(0), found.shapley.value[0].mean(0), strict=True):
        if token:
            print(f"{WORDS[token]:10}{alpha:6.3f}{phi:7.3f}")


if __name__ == "__main__":
    main()
