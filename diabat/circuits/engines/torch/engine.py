"""Run a Trotter plan with torch, on the CPU or an accelerator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from diabat.checks import ArgumentError, is_number
from diabat.circuits.engines.engine import (
    Batch,
    BatchGradient,
    BatchMoments,
    Engine,
    PlanGradient,
    Precision,
    check_cotangents,
)
from diabat.circuits.engines.torch.adjoint import observable, part_gradient
from diabat.circuits.engines.torch.steps import HalvedStates, TorchSteps
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray

_DTYPES = {"double": torch.complex128, "single": torch.complex64}
# Bytes per amplitude of one problem while its gradient is computed: |ψ> and |λ>, as many again for the next
# state, and the float64 tables.
_BYTES = {"double": 160, "single": 112}
# Amplitudes that run together: on a processor as many as its second cache holds.
_PART_CPU, _PART_ACCELERATOR = 1 << 14, 1 << 24


class TorchEngine(Engine):
    """Runs plans as batched torch operations without autograd; `gradient` is the adjoint method.

    The loop over the steps runs in Python, with about twelve operations per step: small batches on an accelerator are
    limited by kernel launches. Use it for batches of thousands of problems.

    Attributes:
        max_spins: Largest n whose states, including the gradient, fit in `memory_gib`.
    """

    name = "torch"
    differentiable = True

    def __init__(self, device: str = "cpu", precision: Precision = "double", memory_gib: float = 4.0) -> None:
        """Choose the device and the precision of the states.

        Args:
            device: A torch device with float64, "cpu", "cuda", "cuda:1", ...
            precision: Precision of the amplitudes: "double" (complex128) or "single" (complex64; probabilities to 1e-5,
                half the time). Angles, sums and results are float64 in both.
            memory_gib: Largest memory of the states, in GiB; larger batches run in parts.

        Raises:
            ValueError: Unknown precision, a device that is unknown or unavailable, or a memory that is not positive.
        """
        if precision not in _DTYPES:
            raise ArgumentError("precision", "'double' or 'single'", f"{precision!r}")
        if not is_number(memory_gib) or not 0 < memory_gib < 1e9:
            raise ArgumentError("memory_gib", "a positive number of GiB", f"{memory_gib!r}")
        self.device, self.precision, self.memory_gib = _usable_device(device), precision, float(memory_gib)
        self._amplitudes = max(2, int(self.memory_gib * 2**30) // _BYTES[precision])
        self.max_spins = self._amplitudes.bit_length() - 1

    @torch.no_grad()
    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        """Probabilities of all spin states; see `Engine.probabilities`.

        Raises:
            ValueError: As there; the message for too many spins gives the required memory.
        """
        batch = Batch(np.asarray(fields, dtype=np.float64), np.asarray(couplings, dtype=np.float64))
        out = np.empty((batch.num_problems, 1 << self._spins(batch)))
        for part, steps in self._parts(plan, batch):
            weight = _normalised(steps.run())
            out[part] = weight.reshape(-1, weight.shape[2]).T.cpu().numpy()
        return out

    @torch.no_grad()
    def moments(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> list[BatchMoments]:
        """Marginals, and pair correlations if asked for, summed on the device; see `Engine.moments`."""
        return [self._batch_moments(plan, batch, correlations) for batch in batches]

    @torch.no_grad()
    def gradient(
        self,
        plan: TrotterPlan,
        batches: Sequence[Batch],
        cotangents: Sequence[FloatArray],
        pair_cotangents: Sequence[FloatArray] | None = None,
        *,
        angles: bool = True,
    ) -> PlanGradient:
        """Derivative by the adjoint method; see `Engine.gradient` and `diabat.circuits.engines.torch.adjoint`.

        Raises:
            ValueError: Too many spins, or cotangents that do not have the shapes of the batches.
        """
        check_cotangents(batches, cotangents, pair_cotangents)
        pairs = [None] * len(batches) if pair_cotangents is None else pair_cotangents
        total = torch.zeros(3, plan.steps, dtype=torch.float64, device=self.device)
        wanted, parts = total if angles else None, zip(batches, cotangents, pairs, strict=True)
        gradients = [self._batch_gradient(plan, batch, v, w, wanted) for batch, v, w in parts]
        return PlanGradient(gradients, *total.cpu().numpy())

    def _batch_moments(self, plan: TrotterPlan, batch: Batch, correlations: bool) -> BatchMoments:
        n = self._spins(batch)
        probability = np.empty((batch.num_problems, n))
        pairs = np.empty((batch.num_problems, n, n)) if correlations else None
        for part, steps in self._parts(plan, batch):
            weight = _normalised(steps.run())
            probability[part] = steps.states.up_sums(weight).cpu().numpy()
            if pairs is not None:
                pairs[part] = steps.states.pair_sums(weight).cpu().numpy()
        return BatchMoments(probability, pairs)

    def _batch_gradient(
        self, plan: TrotterPlan, batch: Batch, v: FloatArray, w: FloatArray | None, total: Tensor | None
    ) -> BatchGradient:
        """The gradient of one batch; that of the angles, if requested, is added to `total` [3, steps]."""
        self._spins(batch)
        v, w = np.asarray(v), None if w is None else np.asarray(w)
        fields, couplings = np.zeros(batch.fields.shape), np.zeros(batch.couplings.shape)
        for part, steps in self._parts(plan, batch):
            pairs = None if w is None else self._tensor(w[part])
            operator = observable(steps.states, self._tensor(v[part]), pairs)
            dh, dJ, turned = part_gradient(steps, operator, with_angles=total is not None)
            fields[part] = dh.cpu().numpy()
            if batch.shared:
                couplings += dJ[0].cpu().numpy()
            else:
                couplings[part] = dJ.cpu().numpy()
            if total is not None:
                total += turned
        return BatchGradient(fields, couplings)

    def _spins(self, batch: Batch) -> int:
        """Number of spins of a batch; ArgumentError if one problem needs more memory than `memory_gib`."""
        n = batch.num_spins
        if n > self.max_spins:
            need = 2.0 ** (n - 30) * _BYTES[self.precision]
            limit = f"engine 'torch' may use {self.memory_gib:g} GiB (memory_gib)"
            got = f"{n}, whose states need {need:.3g} GiB in {self.precision} precision; {limit}"
            raise ArgumentError("fields", f"at most {self.max_spins} spins", got)
        return n

    def _parts(self, plan: TrotterPlan, batch: Batch) -> Iterator[tuple[slice, TorchSteps]]:
        """The steps for consecutive parts of a batch."""
        largest = _PART_CPU if self.device.type == "cpu" else _PART_ACCELERATOR
        size = max(1, min(largest, self._amplitudes) >> batch.num_spins)
        states, dtype = HalvedStates(batch.num_spins, self.device), _DTYPES[self.precision]
        for start in range(0, batch.num_problems, size):
            part = slice(start, start + size)
            couplings = batch.couplings if batch.shared else batch.couplings[part]
            h, J = self._tensor(batch.fields[part]), self._tensor(couplings)
            yield part, TorchSteps(plan, states, h, J, dtype)

    def _tensor(self, array: FloatArray) -> Tensor:
        return torch.tensor(array, dtype=torch.float64, device=self.device)


def _normalised(state: Tensor) -> Tensor:
    """Probabilities float64 [A, B, Q] of a state [1, A, B, Q]."""
    weight = torch.view_as_real(state[0]).double().square().sum(-1)
    return weight / weight.sum((0, 1))


def _usable_device(device: str) -> torch.device:
    """The device after a test with one float64 number; ArgumentError if it is unknown or unavailable."""
    try:
        usable = torch.device(device)
        torch.zeros(1, dtype=torch.float64, device=usable).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        sentence = f"expected a torch device with float64, got {device!r}: {reason}"
        raise ArgumentError("device", sentence) from None
    return usable
