r"""Couplings between neighbouring keys of a sequence of any length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention.coupling_init import CouplingInit
from diabat.attention.layer import can_fuse
from diabat.checks import ArgumentError, check_choice, check_count
from diabat.compute.loading import loaded
from diabat.compute.memory import require_memory
from diabat.edges import Edges
from diabat.ising import without_autocast

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


def chain_options(
    window: int | None, couplings: str | None, rank: int | None, bandwidth: int | None
) -> ChainOptions | None:
    """What is coupled without a window; None with one.

    Raises:
        ValueError: If an option is out of range, or one of those without a window is given with it.
    """
    given: dict[str, Any] = {"couplings": couplings, "rank": rank}
    if window is not None:
        for name, value in given.items():
            if value is not None:
                raise ArgumentError(
                    name, f"expected None unless neighbouring keys are coupled (window=None), got {value!r}."
                )
        return None
    if rank is not None and couplings in ("distance", "gates"):
        raise ArgumentError("rank", f"expected None with couplings={couplings!r}, got {rank!r}.")
    given["bandwidth"] = bandwidth
    return ChainOptions(**{name: value for name, value in given.items() if value is not None})


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
        numbers: w + r, the numbers that decoding keeps of a token and a head.

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
        self.distance = nn.Parameter(torch.empty(num_heads, options.bandwidth, device=device, dtype=dtype))
        self.first = self.second = None
        self.numbers = options.bandwidth
        if options.couplings != "distance":
            rank = 1 if options.couplings == "gates" else options.rank
            self.numbers += rank
            first, second = num_heads * rank, num_heads * options.bandwidth * rank
            # float32: parameters, gradients and both moments of an optimiser.
            require_memory(16 * (first + second) * embed_dim, f"features of rank = {rank}", "rank")
            self.first, self.second = (
                nn.Parameter(torch.empty(rows, embed_dim, device=device, dtype=dtype))
                for rows in (first, second)
            )
        self.initialise(nn.init)
        if init is not None:
            init.fill(self.distance, torch.arange(1, options.bandwidth + 1))

    def initialise(self, functions: Any) -> None:
        """Set J = 0 by functions of the names and arguments of ``torch.nn.init``."""
        functions.zeros_(self.distance)
        if self.first is None:
            return
        functions.zeros_(self.second)
        if self.source == "gates":
            functions.zeros_(self.first)
        else:
            functions.normal_(self.first, std=self.first.shape[1] ** -0.5)

    def extra_repr(self) -> str:
        """Show what J depends on in ``repr``."""
        return f"{self.source}, bandwidth={self.bandwidth}"

    def forward(self, x: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """J of every token with the w tokens before it, 0 where there are none, and the features a of the tokens.

        Args:
            x: Tokens [B, L, D].
            before: a of the tokens before them, [B, H, S, r]; None if these are the first.

        Returns:
            [B, H, L, w] and [B, H, L, r], float32 or float64; r = 0 with ``distance``.
        """
        (batch, length, _), w = x.shape, self.bandwidth
        if length == 1 and before is not None and not torch.is_grad_enabled():
            one = self._of_one(x, before)
            if one is not None:
                return one
        # Couplings are sums of few terms: they are formed in float32 at least.
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        with without_autocast(x):
            distance = self.distance.to(x)[:, None]
            if self.first is None or self.second is None:
                found = distance.expand(batch, -1, length, -1)
                features = x.new_zeros(batch, self.num_heads, length, 0)
            else:
                a, b = (
                    F.linear(x, t.to(x)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                    for t in (self.first, self.second)
                )
                features, b = a, b.unflatten(-1, (w, -1))  # [B, H, L, w, r]
                known = features if before is None else torch.cat((before.to(x), features), 2)
                if known.shape[2] - length < w:
                    known = F.pad(known, (0, 0, w, 0))
                # Of the tokens j-1, j-2, .. j-w.
                past = known[:, :, known.shape[2] - length - w : known.shape[2] - 1]
                a = past[:, :, :, None] if w == 1 else past.unfold(2, w, 1).movedim(-1, 3).flip(3)
                if self.source == "gates":
                    found = distance * (a.sigmoid() * b.sigmoid())[..., 0]
                else:
                    found = distance + (a * b).sum(-1)
            first = 0 if before is None else before.shape[2]
            if first < w:
                place = torch.arange(first, first + length, device=x.device)
                found = torch.where(place[:, None] > torch.arange(w, device=x.device), found, 0)
            return found, features

    def _of_one(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor] | None:
        """The same of one token on the CPU by a kernel, without derivatives; None where it does not apply."""
        a, b = self.first, self.second
        if a is None or b is None or not can_fuse(x, a, b, before):
            return None
        (batch, _, _), heads, size = x.shape, self.num_heads, self.numbers - self.bandwidth
        band, features = x.new_empty(batch, heads, 1, self.bandwidth), x.new_empty(batch, heads, 1, size)
        given = (t.contiguous().numpy(force=True) for t in (x, a, b, self.distance, before))
        kernel = loaded("diabat.attention.chain_step").couple
        kernel(*given, self.source == "gates", band.numpy(), features.numpy())
        return band, features


def band_matrix(band: Tensor) -> Tensor:
    """Couplings [B, H, S, w] with the keys before as symmetric matrices, [B, H, 1, S, S]."""
    keys, w = band.shape[-2:]
    zero = band.new_zeros(*band.shape[:2], keys, keys)
    lower = sum((torch.diag_embed(band[..., d:, d - 1], -d) for d in range(1, min(w + 1, keys))), zero)
    return (lower + lower.mT)[:, :, None]


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
