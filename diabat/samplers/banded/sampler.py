"""Backend ``banded``: exact in linear time for short-range couplings."""

from __future__ import annotations

from typing import Any, Literal

import torch

from diabat.checks import check_choice, check_count, check_positive
from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.banded.band_storage import Layout, band_layout, band_width
from diabat.samplers.banded.engines import Band, BandProbabilities
from diabat.samplers.banded.native import BandProblems, scratch_bytes
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import FROM_READS, Capabilities, UnsupportedError

ENGINES = ("auto", "native", "torch")
# Time of one state of one query on one thread, forward and backward.
_SECONDS_PER_STATE = 2e-9
_LANES = 16


class BandedSampler(Sampler):
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

    def __init__(
        self,
        *,
        bandwidth: int | None = None,
        engine: Literal["auto", "native", "torch"] = "auto",
        memory_budget_mb: float = 1024.0,
        max_seconds: float = 600.0,
    ) -> None:
        check_count("bandwidth", bandwidth, least=0, optional=True)
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
                f"expected at least {reach}, the range of the couplings, "
                f"got sampler 'banded' with {self.bandwidth}.",
            )
        width = reach if self.bandwidth is None else self.bandwidth
        other = type(self)(**{**self.options, "bandwidth": width})
        other._refuse_excess(window, min(width, window - 1))
        return other

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        engine, layout, width = self._prepare(ising, ising.num_spins / 2 if correlations else 1)
        result: Any = BandProbabilities.apply(*layout.problems, engine)
        p, log_z = result
        shape, pairs = ising.fields.shape, None
        held = BandProblems(*(t.detach() for t in layout.problems))
        if correlations:
            pairs = layout.per_pair(engine.pairs(held)).reshape(*shape, shape[-1])
        return Moments(
            probability=layout.per_spin(p).reshape(shape),
            visible=ising.visible_mask,
            correlation=pairs,
            log_partition=log_z.reshape(ising.batch_shape),
            info={"engine": engine.name, "arithmetic": engine.arithmetic(held), "bandwidth": width},
        )

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        engine, layout, width = self._prepare(ising, 1 + num_reads / 2**4)
        spins = layout.per_spin(engine.reads(layout.problems, num_reads, seed), fill=-1)
        # Reads are drawn in float64 at least.
        wide = engine.arithmetic(layout.problems) == "logarithms"
        info = {
            "effective_beta": 1.0,
            "engine": engine.name,
            "arithmetic": "logarithms" if wide else "float64",
            "bandwidth": width,
        }
        return Samples(spins.reshape(num_reads, *ising.fields.shape), ising.visible_mask, info=info)

    def _prepare(self, ising: Ising, effort: float) -> tuple[Band, Layout, int]:
        """Engine, problems and bandwidth; ``effort`` is the time relative to that of the marginals."""
        width = band_width(ising, self.bandwidth)
        self._refuse_excess(
            ising.num_spins, width, problems=ising.num_problems, distinct=ising.num_couplings, effort=effort
        )
        return self._engine(ising.fields.device), band_layout(ising, width), width

    def _engine(self, device: torch.device) -> Band:
        budget = int(self.memory_budget_mb * 2**20)
        if self.engine == "torch" or (self.engine == "auto" and device.type != "cpu"):
            return Band("torch", budget)
        if device.type != "cpu":
            raise UnsupportedError(
                "fields", f"engine 'native' expects a tensor on the CPU, got {device}; use engine 'torch'."
            )
        return Band("native", budget)

    def _refuse_excess(
        self, n: int, width: int, *, problems: int = 1, distinct: int = 1, effort: float = 1.0
    ) -> None:
        """Refuse problems that need more time than ``max_seconds`` or more memory than ``memory_budget_mb``."""
        states = 2.0 ** min(max(1, width), 500)  # more would overflow, and is refused anyway
        seconds = _SECONDS_PER_STATE * max(_LANES, problems) * n * states * effort
        memory = 16.0 * (n + 4) * distinct * states
        if width < 40:  # likewise
            memory += scratch_bytes(n, max(1, width), tangent=True, keep=effort > 1)
        if seconds > self.max_seconds or memory > self.memory_budget_mb * 2**20:
            raise UnsupportedError(
                "couplings",
                f"sampler 'banded' expects problems that take at most max_seconds = {self.max_seconds:g} "
                f"and memory_budget_mb = {self.memory_budget_mb:g}, got a bandwidth of {width} with {n} spins in "
                f"{problems} problems, which need about {seconds:.3g} s and {memory / 2**20:.3g} MB; "
                "give a smaller bandwidth or use a sampling backend.",
            )
