"""A decoder of one's own: scaled_dot_product_attention swapped for couplings, and all that stays as it was.

python examples/swap_sdpa.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import diabat
from diabat.attention import WindowCouplings, coupling_parameters

TEXT = "the cat sat on the mat and the rat sat on the cat. " * 40
LETTERS = sorted(set(TEXT))
DATA = torch.tensor([LETTERS.index(c) for c in TEXT])
WIDTH, HEADS, GROUPS, SIZE = 32, 4, 2, 8  # 4 query heads of 8 features share 2 heads of keys
Cache = tuple[Tensor, Tensor]


def rotated(x: Tensor, first: int) -> Tensor:
    """Rotary positions of [B, H, L, E], counted from ``first``."""
    angle = torch.arange(first, first + x.shape[2])[:, None] / 100 ** (torch.arange(SIZE // 2) * 2 / SIZE)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


class Block(nn.Module):
    """A block with grouped heads and a cache; ``couplings`` are all that is new."""

    def __init__(self, coupled: bool) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, GROUPS * SIZE, bias=False) for _ in range(2))
        self.output = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.couplings = WindowCouplings(HEADS, window=8) if coupled else None  # J of the last 8 keys, 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The swap: the same arguments, and couplings beside them."""
        if self.couplings is None:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
        found = diabat.boltzmann_attention(
            q, k, v, self.couplings, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        assert isinstance(found, Tensor)
        return found

    def forward(self, x: Tensor, mask: Tensor | None, past: Cache | None) -> tuple[Tensor, Cache]:
        """[B, L, width] behind the keys of ``past``, and all keys and values."""
        y, first = self.norms[0](x), 0 if past is None else past[0].shape[2]
        q, k, v = (m(y).unflatten(-1, (-1, SIZE)).transpose(1, 2) for m in (self.query, self.key, self.value))
        q, k = rotated(q, first).to(v.dtype), rotated(k, first).to(v.dtype)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        x = x + self.output(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x)), (k, v)


class Decoder(nn.Module):
    """Two blocks; activations of blocks are computed again in the backward pass if they are ``checkpointed``."""

    def __init__(self, coupled: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(len(LETTERS), WIDTH), nn.Linear(WIDTH, len(LETTERS))
        self.blocks = nn.ModuleList(Block(coupled) for _ in range(2))
        self.checkpointed = False

    def forward(
        self, ids: Tensor, padding: Tensor | None = None, past: list[Cache] | None = None
    ) -> tuple[Tensor, list[Cache]]:
        """Logits [B, L, letters]; ``padding`` is True at hidden keys, past ones included, bool [B, S]."""
        mask, (queries, keys) = None, (ids.shape[1], ids.shape[1] + (past[0][0].shape[2] if past else 0))
        if padding is not None or past:
            mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            mask = mask if padding is None else mask & ~padding[:, None, None]
        x, caches = self.embed(ids), []
        for i, block in enumerate(self.blocks):
            given = x, mask, past[i] if past else None
            x, cache = checkpoint(block, *given, use_reentrant=False) if self.checkpointed else block(*given)
            caches.append(cache)
        return self.head(x), caches


def loss_of(model: Callable[..., Any], ids: Tensor) -> Tensor:
    """Cross entropy of the next letter."""
    return F.cross_entropy(model(ids[:, :-1])[0].flatten(0, 1).float(), ids[:, 1:].flatten())


def batch(size: int = 16, length: int = 33) -> Tensor:
    """Lines of the text."""
    return DATA[torch.randint(len(DATA) - length, (size, 1)) + torch.arange(length)]


def train(model: Decoder, steps: int) -> float:
    """Train in bfloat16 by autocast; J has a rate of its own, and no decay."""
    J = coupling_parameters(model)
    rest = [p for p in model.parameters() if not any(p is one for one in J)]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": J, "lr": 3e-2, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def continued(model: Decoder, prompts: list[str], steps: int) -> list[str]:
    """The likeliest letters behind prompts of different lengths: padded on the left, with a cache."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + [LETTERS.index(c) for c in p] for p in prompts])
    padding = torch.arange(longest) < torch.tensor([[longest - len(p)] for p in prompts])
    (logits, past), found = model(ids, padding), []
    for _ in range(steps):
        ids = logits[:, -1:].argmax(-1)
        found.append(ids)
        padding = F.pad(padding, (0, 1))
        logits, past = model(ids, padding, past)
    return ["".join(LETTERS[i] for i in row) for row in torch.cat(found, 1).tolist()]


def slopes_of_half(rank: int, folder: str) -> None:
    """One of two processes: its half of a batch; gradients are the means of both."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = Decoder(coupled=True)
    model.load_state_dict(torch.load(Path(folder) / "new.pt", weights_only=True))
    parallel, ids = DistributedDataParallel(model), torch.load(Path(folder) / "ids.pt")
    loss_of(parallel, ids[rank::2]).backward()
    if rank == 0:
        torch.save([p.grad for p in model.parameters()], Path(folder) / "slopes.pt")
    dist.destroy_process_group()


def main() -> None:
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        old = Decoder(coupled=False)
        print(f"softmax, bfloat16: loss {train(old, 60):.3f}")
        torch.save(old.state_dict(), Path(folder) / "old.pt")

        model, ids = Decoder(coupled=True), batch()
        names = model.load_state_dict(torch.load(Path(folder) / "old.pt", weights_only=True), strict=False)
        assert names == ([f"blocks.{i}.couplings.pairs" for i in range(2)], [])  # missing: J, which stays 0
        torch.testing.assert_close(model(ids)[0], old(ids)[0])  # the same model, as long as J is 0

        model.checkpointed = True
        print(f"with couplings, checkpointed: loss {train(model, 60):.3f}")
        assert all(bool(J.any()) for J in coupling_parameters(model))
        slopes = torch.autograd.grad(loss_of(model, ids), [*model.parameters()])
        model.checkpointed = False
        torch.testing.assert_close(slopes, torch.autograd.grad(loss_of(model, ids), [*model.parameters()]))

        prompts = ["the rat sat on ", "the m"]
        together = continued(model, prompts, 12)
        print(dict(zip(prompts, together, strict=True)))
        assert together == [continued(model, [prompt], 12)[0] for prompt in prompts]

        torch.save(model.state_dict(), Path(folder) / "new.pt")
        torch.save(ids, Path(folder) / "ids.pt")
        spawn(slopes_of_half, (folder,), nprocs=2)
        torch.testing.assert_close(torch.load(Path(folder) / "slopes.pt"), list(slopes))
        print("two processes: the gradients of the whole batch")

        began, compiled = time.perf_counter(), torch.compile(model, fullgraph=True)
        found = torch.autograd.grad(loss_of(compiled, ids), [*model.parameters()])
        print(f"first step of torch.compile: {time.perf_counter() - began:.0f} s")
        torch.testing.assert_close(found, slopes, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()
