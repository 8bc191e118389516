r"""Any backend as a ``dimod.Sampler``, for Ocean's composites and tools.

    from diabat.samplers.ocean import OceanSampler

    sampleset = OceanSampler("tempering").sample(bqm, num_reads=100, beta=2.0, seed=7)

**Reads are samples at a fixed temperature, not an optimisation.**  They follow P(x) ∝ exp(-beta · E(x)).  To find the
ground state anneal: ``OceanSampler("tempering", schedule="auto", track_lowest=True)``.  Backends with a different law
(``dqa``) sample that law with fields and couplings scaled by beta.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import dimod
import numpy as np

from diabat.checks import ArgumentError, ArgumentTypeError, check_count, check_number
from diabat.files import jsonable
from diabat.ising import from_bqm
from diabat.samplers.answers import Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.registry import build_base
from diabat.samplers.seeds import MAX_SEED, draw_seed


class OceanSampler(dimod.Sampler):  # type: ignore[misc]  # dimod is not typed
    """A backend behind dimod's interface.

    Args:
        sampler: A backend that draws samples: a name, or a sampler.
        **options: Options of the backend, if ``sampler`` is a name.

    Raises:
        ValueError: If the backend does not draw samples, or an option has a bad value.
        TypeError: If ``sampler`` is neither name nor sampler, or the backend has no such option.
    """

    def __init__(self, sampler: str | Sampler = "tempering", /, **options: Any) -> None:
        self.sampler = build_base(sampler, options or None)

    @property
    def properties(self) -> dict[str, Any]:
        """Name and capabilities of the backend as plain data, the default beta, and the range of seeds."""
        able = jsonable(self.sampler.capabilities)
        return {"backend": self.sampler.name, **able, "default_beta": 1.0, "seed_range": [0, MAX_SEED]}

    @property
    def parameters(self) -> dict[str, list[str]]:
        """Keywords of :meth:`sample`, each with its related properties."""
        return {"num_reads": ["samples"], "seed": ["seed_range"], "beta": ["default_beta", "law", "exact"]}

    def sample(
        self, bqm: dimod.BinaryQuadraticModel, *, num_reads: int = 1, seed: int | None = None, beta: float = 1.0,
        **unknown: Any,
    ) -> dimod.SampleSet:  # fmt: skip
        """Draw reads at inverse temperature beta: P(x) ∝ exp(-beta · E(x)), E the energy of the model.

        Args:
            bqm: The model, SPIN or BINARY, with any labels.
            num_reads: Reads.
            seed: As of :meth:`diabat.Sampler.sample`.
            beta: Inverse temperature in units of 1/energy, >= 0.  Nothing is annealed without the option
                ``schedule`` of ``tempering``, whose numbers beta multiplies: at the default 1.0 a model with
                weak biases gives nearly random reads.
            **unknown: Ignored with a SamplerUnknownArgWarning, as Ocean's composites expect.

        Returns:
            One int8 row per read in the order of drawing, not aggregated.  ``info`` is that of the backend as plain
            data, with ``beta``.

        Raises:
            UnsupportedError: If the backend does not support the model, for instance its number of variables.
            IsingError: If a bias is not finite.
            ValueError: If an argument is out of range.
            TypeError: If ``bqm`` is not a binary quadratic model.
        """
        self.remove_unknown_kwargs(**unknown)
        if not isinstance(bqm, dimod.BinaryQuadraticModel):
            hint = "; use dimod.cqm_to_bqm" * isinstance(bqm, dimod.ConstrainedQuadraticModel)
            raise ArgumentTypeError("bqm", "a dimod.BinaryQuadraticModel", f"{type(bqm).__name__}{hint}")
        num_reads = check_count("num_reads", num_reads)
        check_number("beta", beta, "[0, inf)")
        beta = float(beta)
        if bqm.num_variables:
            ising, labels = from_bqm(bqm, beta=beta)
            drawn = self.sampler.sample(ising, num_reads, seed=seed)
            rows, info = drawn.spins.cpu().numpy(), jsonable(drawn.info)
        else:
            rows, labels = np.empty((num_reads, 0), dtype=np.int8), []
            info = {"backend": self.sampler.name, "seed": draw_seed(seed)}
        if bqm.vartype is dimod.BINARY:
            rows = (rows > 0).astype(np.int8)
        energy = bqm.energies((rows, labels))
        return dimod.SampleSet.from_samples((rows, labels), bqm.vartype, energy, info=info | {"beta": beta})

    def sample_cqm(self, cqm: Any, **parameters: Any) -> dimod.SampleSet:
        """Refuse a constrained model, whose constraints no backend keeps, always by an UnsupportedError."""
        got = f"{type(cqm).__name__}; use dimod.cqm_to_bqm and sample"
        raise UnsupportedError("cqm", "a binary quadratic model", got)

    def close(self) -> None:
        """Release resources of the backend, such as worker processes."""
        self.sampler.close()


def to_sampleset(samples: Samples, labels: Sequence[Hashable] | None = None) -> dimod.SampleSet:
    """The reads of one problem as a SPIN sample set: a row for each, its energy, and ``info`` as plain data.

    Args:
        samples: Of a problem [n], which they know.
        labels: The name of each spin, as :func:`diabat.ising.from_bqm` returns them; None for 0 .. n - 1.

    Raises:
        ValueError: If there is a batch of problems, a spin is invisible, or labels are not one per spin.
    """
    if samples.spins.ndim != 2 or not bool(samples.visible.all()):
        got = f"shape {list(samples.spins.shape)}" if samples.spins.ndim != 2 else "invisible spins"
        raise ArgumentError("samples", "reads of one problem with visible spins", got)
    n = samples.spins.shape[-1]
    names = list(range(n)) if labels is None else list(labels)
    if len(set(names)) != n or len(names) != n:
        raise ArgumentError("labels", f"{n} different labels", names)
    rows, energy = samples.spins.cpu().numpy(), samples.energy.double().cpu().numpy()
    return dimod.SampleSet.from_samples((rows, names), "SPIN", energy, info=jsonable(samples.info))
