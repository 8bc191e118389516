r"""Couplings between neighbouring keys of a sequence of any length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention.coupling_init import CouplingInit
from diabat.checks import ArgumentError, check_choice, check_count
from diabat.compute.memory import require_memory
from diabat.edges import Edges

SOURCES = ("distance", "tokens", "gates")


@dataclass(frozen=True)
class ChainOptions:
    """What couplings of a layer without a window are.

    Attributes:
        couplings: ``distance``, one D_d per head; ``tokens``, that and a product of features of both tokens; or
            ``gates``, that times a gate of each token.
        rank: r, the number of features of ``tokens``.
        bandwidth: w, the largest distance of two coupled keys.

    Raises:
        ValueError: If an option is out of range.
    """

    couplings: str = "tokens"
    rank: int = 8
    bandwidth: int = 1

    def __post_init__(self) -> None:
        check_choice("couplings", self.couplings, SOURCES)
        check_count("rank", self.rank)
        check_count("bandwidth", self.bandwidth)


class KeyCouplings(nn.Module):
    r"""Couplings of the keys j - d and j, d = 1 .. w, for each head.

    ==========  ================================================  ====================
    distance    J_{j-d,j} = D_d
    tokens      J_{j-d,j} = D_d + Σ_r a_r(x_{j-d}) b_{d,r}(x_j)   b = 0 at first
    gates       J_{j-d,j} = D_d σ(a(x_{j-d})) σ(b_d(x_j))         a = b = 0 at first: J = D/4
    ==========  ================================================  ====================

    D is a parameter, and a and b are linear in the tokens x.  D alone does not know which neighbours belong together;
    gates end a chain at a token, with the same J between all others.

    Args:
        embed_dim: Features of a token.
        num_heads: H.
        options: What is coupled.
        init: Initial D; None for 0.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Attributes:
        distance: D, [H, w].
        first: a, [H·r, embed_dim], or None; r = 1 for gates.
        second: b, [H·w·r, embed_dim], or None.

    Raises:
        ValueError: If ``init`` reaches beyond w.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        options: ChainOptions,
        init: CouplingInit | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.bandwidth, self.source = num_heads, options.bandwidth, options.couplings
        if init is not None and init.distance is not None and init.distance > options.bandwidth:
            raise ArgumentError(
                "coupling_init",
                f"expected a distance of at most bandwidth = {options.bandwidth}, got {init.distance}.",
            )
        self.distance = nn.Parameter(torch.zeros(num_heads, options.bandwidth, device=device, dtype=dtype))
        if init is not None:
            init.fill(self.distance, torch.arange(1, options.bandwidth + 1))
        self.first = self.second = None
        if options.couplings != "distance":
            gated = options.couplings == "gates"
            rank = 1 if gated else options.rank
            # float32: parameters, gradients and both moments of an optimiser.
            size = 16 * num_heads * (1 + options.bandwidth) * rank * embed_dim
            require_memory(size, f"features of rank = {rank}", "rank")
            drawn = torch.randn(num_heads * rank, embed_dim, dtype=dtype) / embed_dim**0.5
            self.first = nn.Parameter((0 * drawn if gated else drawn).to(device))
            second = torch.zeros(num_heads * options.bandwidth * rank, embed_dim, device=device, dtype=dtype)
            self.second = nn.Parameter(second)

    def extra_repr(self) -> str:
        """Show what J depends on in ``repr``."""
        return f"{self.source}, bandwidth={self.bandwidth}"

    def features(self, x: Tensor) -> Tensor:
        """Features a of tokens [B, L, D] for the couplings with later ones, [B, H, L, r]; r = 0 without features."""
        if self.first is None:
            return x.new_zeros(len(x), self.num_heads, x.shape[1], 0)
        return F.linear(x, self.first).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """J of every token with the w tokens before it, [B, H, L, w], 0 where there are none.

        Args:
            x: Tokens [B, L, D].
            before: a of these tokens and of those before them, [B, H, S, r], S >= L.
        """
        (batch, length, _), keys, w = x.shape, before.shape[2], self.bandwidth
        # Couplings are sums of few terms: they are formed in float32 at least.
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            found = self.distance.to(wide)[:, None].expand(batch, -1, length, -1)
            if self.second is not None:
                b = F.linear(x.to(wide), self.second.to(wide))
                b = b.unflatten(-1, (self.num_heads, w, -1)).transpose(1, 2)  # [B, H, L, w, r]
                if keys - length < w:
                    before = F.pad(before, (0, 0, w, 0))
                # Of the tokens j-1, j-2, .. j-w.
                past = before[:, :, before.shape[2] - length - w : before.shape[2] - 1].to(wide)
                a = past[:, :, :, None] if w == 1 else past.unfold(2, w, 1).movedim(-1, 3).flip(3)
                if self.source == "gates":
                    found = found * (a.sigmoid() * b.sigmoid())[..., 0]
                else:
                    found = found + (a * b).sum(-1)
            if keys - length >= w:
                return found
            place = torch.arange(keys - length, keys, device=x.device)
            return torch.where(place[:, None] > torch.arange(w, device=x.device), found, 0)


def band_edges(band: Tensor) -> Edges:
    """Couplings [B, H, S, w] with the keys before as edges, with values [B, H, 1, E]."""
    keys, w = band.shape[-2:]
    index, places = _pairs(keys, w, band.device)
    return Edges(index, band.flatten(-2)[..., None, places])


@lru_cache(maxsize=16)
def _pairs(keys: int, w: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pairs of keys, [E, 2], and their places in a flat band."""
    with torch.inference_mode(False):  # autograd may save what a pass without gradients has cached
        j, d = (t.reshape(-1) for t in torch.meshgrid(torch.arange(keys), torch.arange(w), indexing="ij"))
        inside = j > d
        index = torch.stack((j - d - 1, j), 1)[inside]
        return index.to(device), inside.nonzero()[:, 0].to(device)
