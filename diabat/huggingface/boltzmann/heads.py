r"""Couplings of the query heads of one attention module, and attention weights from its scores.

With the scores s_j of all visible keys of a query and the last T of them coupled,

    h_j = (s_j - log Σ_k exp s_k) / 2,
    P(s) ∝ exp( Σ_j h_j s_j + Σ_{j<k} J_jk s_j s_k ),
    weight_j ∝ P(s_j = +1) / P(s_j = -1);        for keys before the window, exp(2 h_j).

At J = 0 the weights are softmax(s) exactly (:mod:`diabat.attention.odds`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diabat.attention.coupled import CoupledHeads
from diabat.attention.normalisation import normalised_weights
from diabat.huggingface.boltzmann.options import BoltzmannOptions
from diabat.huggingface.boltzmann.windows import KeyWindows


class BoltzmannHeads(CoupledHeads):
    """Couplings J between the slots of the window, per query head, in float32 or float64.

    Args:
        num_heads: H, the number of query heads.
        options: Window, backend and weights.
        device: Of J.
        dtype: Of J, float32 or float64; ``half`` and ``to`` leave it at float32 or more, because steps of an optimiser
            are lost in half precision.

    Attributes:
        coupling_pairs: J_jk for j < k, [H, T(T-1)/2], initialised to 0; as in :class:`diabat.BoltzmannAttention`.
        sampler: The backend.

    Raises:
        ValueError: If an option is invalid.
        UnsupportedError: If the backend does not support the window or the estimator.
    """

    def __init__(
        self,
        num_heads: int,
        options: BoltzmannOptions,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.options = options
        self._build_terms(
            num_heads,
            options.window,
            sampler=options.build_sampler(),
            mode="h+J",
            gradient=options.gradient,
            num_reads=options.num_reads,
            bandwidth=options.bandwidth,
            weights=options.weights,
            relative=True,
            device=device,
            dtype=dtype,
        )
        self.sampler.to(device=device, dtype=dtype)

    def forward(self, scores: Tensor, windows: KeyWindows) -> Tensor:
        """Compute normalised weights, [B, H, Q, K].

        Args:
            scores: s + bias, [B, H, Q, K], float32 or float64.
            windows: What the queries see.  A row without a visible key gets 1/K everywhere, as in eager attention.
        """
        if self.weighting == "odds":
            return self._moved_softmax(scores.log_softmax(-1), windows.keys, windows.seen, zero=False)
        keys = windows.keys.expand(*scores.shape[:-1], -1)
        h = scores.gather(-1, keys).masked_fill(~windows.seen, 0)
        near = self._probabilities(h, windows.seen, zero=False).masked_fill(~windows.seen, 0)
        return normalised_weights(torch.sigmoid(2 * scores).scatter(-1, keys, near), windows.visible)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move parameters, but do not convert them to half precision."""

        def moved(tensor: Tensor) -> Tensor:
            new = fn(tensor)
            if tensor.is_floating_point() and new.is_floating_point() and new.itemsize < 4:
                return tensor.to(new.device)
            return new

        return super()._apply(moved, recurse)

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{super().extra_repr()}, weights={self.weighting!r}, far={self.options.far!r}"
