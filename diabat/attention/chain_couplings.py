r"""Couplings between neighbouring keys of a sequence of any length."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention.chain import place, readable
from diabat.attention.coupling_init import CouplingInit
from diabat.attention.couplings import KeyCouplings, with_held
from diabat.attention.head_axis import split_heads
from diabat.attention.layer import Limits, is_plain
from diabat.checks import ArgumentError, check_choice, check_count
from diabat.compute.loading import loaded
from diabat.compute.memory import require_memory
from diabat.edges import Edges
from diabat.ising import without_autocast

SOURCES = ("distance", "tokens", "gates")


class Band(NamedTuple):
    """Couplings of the keys of some sequences.

    ``values`` are J of every key with the w keys before it, [B, H, S, w], 0 where there are none.  ``features`` are a
    of every key, [B, H, S, r], from which later keys get theirs.
    """

    values: Tensor
    features: Tensor | None = None

    def matrix(self) -> Tensor:
        """J as symmetric matrices, [B, H, 1, S, S]."""
        keys, w = self.values.shape[-2:]
        zero = self.values.new_zeros(*self.values.shape[:2], keys, keys)
        widest = w if torch.compiler.is_exporting() else min(w, keys - 1)  # graphs are of lengths above w
        below = (torch.diag_embed(self.values[..., d:, d - 1], -d) for d in range(1, widest + 1))
        lower = sum(below, zero)
        return (lower + lower.mT)[:, :, None]

    def edges(self) -> Edges:
        """J as edges, with values [B, H, 1, E]."""
        keys, w = self.values.shape[-2:]
        index, places = _pairs(keys, w, self.values.device)
        return Edges(index, self.values.flatten(-2)[..., None, places])


class ChainCouplings(KeyCouplings):
    r"""Couplings of the keys j - d and j, d = 1 .. w, for each head, over a context of any length.

    ==========  ================================================  ====================
    distance    J_{j-d,j} = D_d
    tokens      J_{j-d,j} = D_d + Σ_r a_r(x_{j-d}) b_{d,r}(x_j)   b = 0 at first
    gates       J_{j-d,j} = D_d σ(a(x_{j-d})) σ(b_d(x_j))         a = b = 0 at first: J = D/4
    ==========  ================================================  ====================

    D is a parameter, and a and b are linear in the tokens x.  D alone does not know which neighbours belong together.
    Gates end a chain at a token, with the same J between all others.

    Args:
        embed_dim: Features of a token.
        num_heads: H.
        source: What J depends on: ``distance``, ``tokens`` or ``gates``.
        rank: r, the number of features of ``tokens``; None for 8.
        bandwidth: w, the largest distance of two coupled keys.
        init: Initial D: a :class:`diabat.attention.CouplingInit`, a number for all of D, or None for 0.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Attributes:
        by_distance: D, [H, w].
        left_features: a, [H·r, embed_dim], or None; r = 1 for gates.
        right_features: b, [H·w·r, embed_dim], or None.
        state_size: w + r, the numbers that decoding keeps of a token and a head.

    Raises:
        ValueError: If an option is out of range, or ``init`` reaches beyond w.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        source: str = "tokens",
        *,
        rank: int | None = None,
        bandwidth: int = 1,
        init: CouplingInit | float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_source(source, rank)
        for name, value in (("embed_dim", embed_dim), ("num_heads", num_heads), ("bandwidth", bandwidth)):
            check_count(name, value)
        self.embed_dim, self.num_heads, self.bandwidth, self.source = embed_dim, num_heads, bandwidth, source
        init = CouplingInit.of(init)
        if init is not None and init.max_distance is not None and init.max_distance > bandwidth:
            raise ArgumentError(
                "coupling_init",
                f"expected max_distance of at most bandwidth = {bandwidth}, got {init.max_distance}.",
            )
        empty = partial(torch.empty, device=device, dtype=dtype)
        self.by_distance = nn.Parameter(empty(num_heads, bandwidth))
        self.left_features = self.right_features = None
        self.rank = {"distance": 0, "gates": 1}.get(source, rank or 8)
        self.state_size = bandwidth + self.rank
        if self.rank:
            left, right = num_heads * self.rank, num_heads * bandwidth * self.rank
            # float32: parameters, gradients and both moments of an optimiser.
            require_memory(16 * (left + right) * embed_dim, f"features of rank = {self.rank}", "rank")
            self.left_features = nn.Parameter(empty(left, embed_dim))
            self.right_features = nn.Parameter(empty(right, embed_dim))
        self.initialise(nn.init)
        if init is not None:
            init.fill(self.by_distance, self.by_pair()[1])

    @property
    def limits(self) -> Limits:
        """What a sampler must support."""
        return Limits(None, self.bandwidth)

    def by_pair(self) -> tuple[Tensor | None, Tensor]:
        """``by_distance``, [H, w], and the distances 1 .. w, int64."""
        return self.by_distance, torch.arange(1, self.bandwidth + 1)

    def initialise(self, functions: Any) -> None:
        """Set J = 0 by functions of the names and arguments of ``torch.nn.init``."""
        functions.zeros_(self.by_distance)
        if self.left_features is None:
            return
        functions.zeros_(self.right_features)
        if self.source == "gates":
            functions.zeros_(self.left_features)
        else:
            functions.normal_(self.left_features, std=self.embed_dim**-0.5)

    def extra_repr(self) -> str:
        """Show what J depends on in ``repr``."""
        return f"{self.source}, bandwidth={self.bandwidth}"

    def forward(self, x: Tensor, before: Tensor | None = None) -> Band:
        """J of every token with the w tokens before it, and the features a of the tokens.

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
            D = self._by_distance().to(x)[:, None]
            if self.left_features is None or self.right_features is None:
                values = D.expand(batch, -1, length, -1)
                features = x.new_zeros(batch, self.num_heads, length, 0)
            else:
                a, b = (
                    split_heads(F.linear(x, t.to(x)), self.num_heads)
                    for t in (self.left_features, self.right_features)
                )
                features, b = a, b.unflatten(-1, (w, -1))  # [B, H, L, w, r]
                known = features if before is None else torch.cat((before.to(x), features), 2)
                if known.shape[2] - length < w:
                    known = F.pad(known, (0, 0, w, 0))
                # Of the tokens j-1, j-2, .. j-w.
                past = known[:, :, known.shape[2] - length - w : known.shape[2] - 1]
                a = past[:, :, :, None] if w == 1 else past.unfold(2, w, 1).movedim(-1, 3).flip(3)
                gates = self.source == "gates"
                values = D * (a.sigmoid() * b.sigmoid())[..., 0] if gates else D + (a * b).sum(-1)
            first = 0 if before is None else before.shape[2]
            if first < w:
                place = torch.arange(first, first + length, device=x.device)
                values = torch.where(place[:, None] > torch.arange(w, device=x.device), values, 0)
            return Band(values, features)

    def _by_distance(self) -> Tensor:
        return with_held(self.by_distance, self.held)

    def _of_one(self, x: Tensor, before: Tensor) -> Band | None:
        """The same of one token on the CPU by a kernel, without derivatives; None where it does not apply."""
        a, b = self.left_features, self.right_features
        if a is None or b is None or not is_plain(x, a, b, before):
            return None
        (batch, _, size), heads, w, rank = x.shape, self.num_heads, self.bandwidth, self.rank
        band, features = x.new_empty(batch, heads, 1, w), x.new_empty(batch, heads, 1, rank)
        zero = np.float32(0) if x.dtype == torch.float32 else np.float64(0)
        given = [t.contiguous() for t in (x.resolve_neg(), a, b, self._by_distance())]
        before = readable(before, x.dtype)
        loaded("diabat.attention.chain_step").couple(
            zero, (batch, heads, size, w, rank, before.shape[2]), *(t.data_ptr() for t in given), place(before),
            self.source == "gates", band.data_ptr(), features.data_ptr(),
        )  # fmt: skip
        return Band(band, features)


def check_source(source: Any, rank: Any) -> None:
    """Refuse options of couplings over a chain that do not exist or contradict each other.

    Raises:
        ValueError: Names the argument.
    """
    check_choice("couplings", source, SOURCES)
    check_count("rank", rank, optional=True)
    if rank is not None and source != "tokens":
        raise ArgumentError("rank", f"expected None with couplings={source!r}, got {rank!r}.")


@lru_cache(maxsize=16)
def _pairs(keys: int, w: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pairs of keys, [E, 2], and their places in a flat band."""
    with torch.inference_mode(False):  # autograd may save what a pass without gradients has cached
        j, d = (t.reshape(-1) for t in torch.meshgrid(torch.arange(keys), torch.arange(w), indexing="ij"))
        inside = j > d
        index = torch.stack((j - d - 1, j), 1)[inside]
        return index.to(device), inside.nonzero()[:, 0].to(device)
