"""NeuroGame attention as the pooling of a classifier: it learns, and its explanation is that of the prediction."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import diabat


def examples(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ten tokens of five words: the class says which of the rare words 3 and 4 is among them, if one is."""
    tokens = torch.randint(0, 3, (count, 10), generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    place = torch.randint(0, 10, (count,), generator=generator)
    chosen = labels > 0
    tokens[chosen, place[chosen]] = 2 + labels[chosen]
    return tokens, labels


def test_a_classifier_learns_which_rare_word_is_there() -> None:
    """Seed 0, 60 steps of 64: at least 95 % of 400 new examples are right, where guessing has 33 %."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    embedding, pooling = nn.Embedding(5, 16), diabat.NeuroGameAttention(16, 2)
    head = nn.Linear(16, 3)
    model = nn.ModuleList((embedding, pooling, head))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        tokens, labels = examples(64, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(pooling(embedding(tokens))), labels).backward()
        optimizer.step()
    model.eval()
    tokens, labels = examples(400, generator)
    with torch.no_grad():
        x = embedding(tokens)
        found = head(pooling(x)).argmax(-1)
    assert (found == labels).double().mean() >= 0.95
    marginals = pooling.explain(x).alpha.mean(1)  # over heads
    assert marginals[tokens >= 3].mean() > 1.2 * marginals[tokens < 3].mean()
