"""Backend ``banded``: exact in linear time for short-range couplings."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from diabat.checks import check_choice, check_count, check_positive
from diabat.compute.counter_random import stream_keys
from diabat.compute.scratch import VECTOR_BYTES
from diabat.ising import Ising, without_autocast
from diabat.ising.checks import DTYPES
from diabat.samplers.analytic import AnalyticSampler
from diabat.samplers.answers import Moments, Samples, Solution
from diabat.samplers.banded.band_storage import band_layout, band_width
from diabat.samplers.banded.compiled import scratch_rows, segment_of
from diabat.samplers.banded.solution import BandSolution
from diabat.samplers.banded.torch import NUMBERS_PER_STATE, pinned_log_odds
from diabat.samplers.capabilities import FROM_READS, Capabilities, UnsupportedError
from diabat.samplers.folding import transformed

ENGINES = ("auto", "native", "torch")
# Time of one state of one query on one thread, forward and backward.
_SECONDS_PER_STATE = 2e-9
_LANES = 16


class BandedSampler(AnalyticSampler):
    r"""Exact moments and independent exact samples of problems with J_jk = 0 for |j - k| > w.

    Forward-backward over the 2^w states of the last w spins: O(n·2^w) per query, with the analytic gradient, and
    O(n²·2^w) for the correlations of all pairs.  Precision follows the dtype of the fields.

    Couplings outside a given ``bandwidth`` are not parameters: their gradient is 0.  Without one, the band is taken
    from J at each call, and is all of J where J is differentiated, since a coupling that is 0 now is a parameter too.

    Args:
        bandwidth: w >= 0; None takes it from J.
        engine: ``native`` (compiled, CPU), ``torch`` (any device), or ``auto`` by the device of the fields.
        memory_budget_mb: Refuse problems that need more working memory.
        max_seconds: Refuse problems whose estimated time is longer.

    Raises:
        ValueError: If an option is out of range.
    """

    name = "banded"
    capabilities = Capabilities(exact=True, edges=True, log_partition=True, gradients=("exact", *FROM_READS))
    smooth = True
    plain = True

    def __init__(
        self,
        *,
        bandwidth: int | None = None,
        engine: Literal["auto", "native", "torch"] = "auto",
        memory_budget_mb: float = 1024.0,
        max_seconds: float = 600.0,
    ) -> None:
        bandwidth = check_count("bandwidth", bandwidth, least=0, optional=True)
        check_choice("engine", engine, ENGINES)
        check_positive("memory_budget_mb", memory_budget_mb)
        check_positive("max_seconds", max_seconds)
        self.bandwidth, self.engine = bandwidth, engine
        self.memory_budget_mb, self.max_seconds = memory_budget_mb, max_seconds

    def for_window(self, window: int, reach: int) -> BandedSampler:
        """Return the sampler for couplings up to distance ``reach``; a given bandwidth must be large enough.

        Raises:
            UnsupportedError: If the bandwidth is too small, or a single problem of ``window`` spins would be refused.
        """
        if self.bandwidth is not None and self.bandwidth < reach:
            raise UnsupportedError(
                "bandwidth",
                f"at least {reach}, the range of the couplings",
                f"sampler 'banded' with {self.bandwidth}",
            )
        width = reach if self.bandwidth is None else self.bandwidth
        other = type(self)(**{**self.options, "bandwidth": width})
        other._refuse_excess(window, min(width, window - 1))
        return other

    def differentiable_log_odds(self, ising: Ising) -> Tensor:
        """As in the base class, from one solution."""
        if not torch.compiler.is_compiling() and transformed():
            return super().differentiable_log_odds(ising)
        h, J = ising.fields, ising.matrix
        with without_autocast(h):
            if J is not None and self.bandwidth is not None and not h.is_cpu and self.engine != "native":
                return self._unread(h, J, ising.visible)
            self._require(ising)
            return self._solution(ising, odds=True).solved().attached(ising)[0]

    def _unread(self, h: Tensor, J: Tensor, visible: Tensor | None) -> Tensor:
        """Log-odds of a layer on another device than the CPU; no number is read there."""
        assert self.bandwidth is not None
        width = max(1, min(self.bandwidth, h.shape[-1] - 1))
        needed = 8 * NUMBERS_PER_STATE * h.numel() << width
        if torch.compiler.is_compiling() or needed <= self.memory_budget_mb * 2**20:
            return pinned_log_odds(h, J, visible, width)
        step = max(1, int(h.shape[-2] * self.memory_budget_mb * 2**20 / needed))
        masks = [None] * h.shape[-2] if visible is None else visible.expand(h.shape).split(step, -2)
        options: Any = {"use_reentrant": False, "preserve_rng_state": False}
        found = [
            checkpoint(pinned_log_odds, part, J, mask, width, **options)
            for part, mask in zip(h.split(step, -2), masks, strict=False)
        ]
        return torch.cat(found, -2)

    def solution(self, ising: Ising, *, odds: bool = False, seed: int = 0) -> Solution:
        """As in the base class, for all problems."""
        self._require(ising)
        return self._solution(ising, learned=True, odds=odds).solved()

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        found = self._solution(ising, ising.num_spins / 2 if correlations else 1).solved()
        p, log_z = found.attached(ising)
        pairs = found.correlation() if correlations else None
        return Moments(p, ising.visible_mask, pairs, log_z, info=found.info)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        # Reads are drawn in float64 at least.
        found = self._solution(ising, 1 + num_reads / 2**4, least=1)
        spins = found.reads(num_reads, stream_keys(seed, ising.num_problems))
        return Samples(spins, ising.visible_mask, info={"effective_beta": 1.0, **found.info})

    def _solution(
        self, ising: Ising, effort: float = 1, *, learned: bool = False, **options: Any
    ) -> BandSolution:
        """The problems to solve; ``effort`` is the time relative to that of the marginals."""
        h, width, distinct = ising.fields, band_width(ising, self.bandwidth, learned), ising.num_couplings
        n = h.shape[-1]
        self._refuse_excess(n, width, problems=h.numel() // n, distinct=distinct, effort=effort)
        native, budget = self._is_native(h.device), int(self.memory_budget_mb * 2**20)
        return BandSolution(ising, band_layout(ising, width, distinct), native, budget, **options)

    def _require(self, ising: Ising) -> None:
        """As in the base class; numbers beyond its limit are found where their arithmetic is chosen."""
        (h, J, K), visible = ising.terms, ising.visible
        readable = h.is_cpu and (J is None or J.is_cpu) and (visible is None or visible.is_cpu)
        if not readable or K is not None or h.dtype not in DTYPES or self.engine == "torch":
            super()._require(ising)

    def _is_native(self, device: torch.device) -> bool:
        """Whether compiled code is used."""
        if self.engine == "native" and device.type != "cpu":
            raise UnsupportedError(
                "fields", f"engine 'native' expects a tensor on the CPU, got {device}; use engine 'torch'."
            )
        return self.engine != "torch" and device.type == "cpu"

    def _refuse_excess(
        self, n: int, width: int, *, problems: int = 1, distinct: int = 1, effort: float = 1.0
    ) -> None:
        """Refuse problems that need more time than ``max_seconds`` or more memory than ``memory_budget_mb``."""
        states = 2.0 ** min(max(1, width), 500)  # more would overflow, and is refused anyway
        seconds = _SECONDS_PER_STATE * max(_LANES, problems) * n * states * effort
        memory = 16.0 * (n + 4) * distinct * states
        if width < 40:  # likewise
            segment = segment_of(n, max(1, width), effort > 1)
            memory += VECTOR_BYTES * scratch_rows(n, max(1, width), segment, 1)
        if seconds > self.max_seconds or memory > self.memory_budget_mb * 2**20:
            raise UnsupportedError(
                "couplings",
                f"sampler 'banded' expects problems that take at most max_seconds = {self.max_seconds:g} "
                f"and memory_budget_mb = {self.memory_budget_mb:g}, got a bandwidth of {width} with {n} spins in "
                f"{problems} problems, which need about {seconds:.3g} s and {memory / 2**20:.3g} MB; "
                "give a smaller bandwidth or use a sampling backend.",
            )
