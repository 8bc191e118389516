"""A person from PyTorch: couplings in a GPT of one's own, trained, ablated, saved and exported.

python examples/own_gpt.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import diabat
from diabat.attention import coupling_parameters, couplings_of

TEXT = "the cat sat on the mat and the rat sat on the cat. " * 40
CONTEXT = 32


class Block(nn.Module):
    """A block of a pre-norm decoder; only its attention is not that of torch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # Couplings between the last 8 keys. At J = 0, the start, this is softmax attention.
        self.attention = diabat.BoltzmannAttention(width, 4, window=8, relative=True, rotary=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, width] to the same."""
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Sequential):
    """Two blocks between an embedding and the logits of the next character."""

    def __init__(self, vocabulary: int, width: int = 32) -> None:
        super().__init__(
            nn.Embedding(vocabulary, width), Block(width), Block(width), nn.Linear(width, vocabulary)
        )


def main() -> None:
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(c) for c in TEXT])
    model = GPT(len(letters))

    couplings = coupling_parameters(model)  # numbers of order one: a rate of their own, and no decay
    own = {id(p) for p in couplings}
    rest = [p for p in model.parameters() if id(p) not in own]
    groups = [{"params": couplings, "lr": 3e-3, "weight_decay": 0.0}, {"params": rest, "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups)

    losses = []
    for _ in range(60):
        starts = torch.randint(len(data) - CONTEXT - 1, (16, 1))
        ids = data[starts + torch.arange(CONTEXT + 1)]
        loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps")
    assert losses[-1] < losses[0] / 2

    model.eval()
    ids = data[None, :CONTEXT]
    with TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        loaded = GPT(len(letters)).eval()
        loaded.load_state_dict(torch.load(Path(folder) / "model.pt", weights_only=True))
    assert torch.equal(loaded(ids), model(ids))

    anywhere = {1: torch.export.Dim("length", min=4, max=4096)}
    program = torch.export.export(model, (ids,), dynamic_shapes=(anywhere,)).module()
    longer = data[None, :50]
    difference = (program(longer) - model(longer)).abs().max().item()
    print(f"exported at a length of {CONTEXT}, called at 50: largest difference {difference:.1e}")
    assert difference < 1e-4

    couplings_of(loaded)["1.attention.couplings"].hold(0)  # no couplings in the first block
    with torch.no_grad():
        for name, one in (("with all couplings", model), ("without those of the first block", loaded)):
            loss = cross_entropy(one(ids)[0, :-1], ids[0, 1:])
            print(f"loss {name}: {loss:.3f}")


if __name__ == "__main__":
    main()
