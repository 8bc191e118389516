"""Base class of the layers of Boltzmann attention: couplings, what is computed with them, and the last problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

from torch import Tensor, nn

from diabat.attention.compiled import LayerBridge
from diabat.attention.core import Attention, Law, LawOptions, attend, far_of
from diabat.attention.couplings import WindowCouplings
from diabat.attention.layer import IsingLayer, Limits
from diabat.attention.readout import ODDS, Readout, as_readout
from diabat.attention.visible import Visible
from diabat.checks import ArgumentError, check_choice, refuse_unknown
from diabat.samplers.base import Sampler

MODES = ("softmax", "h+J", "h", "J", "h+K", "J+K", "h+J+K", "K")
SELF_MODES = (*MODES, "J-self")
"""Modes of self-attention, where a query has a spin of its own."""


class CoupledLayer(IsingLayer):
    """A layer with couplings between keys; a subclass calls `_couple` in its constructor, and `_attend` in a pass.

    Attributes:
        couplings: The :class:`diabat.attention.WindowCouplings`.
    """

    couplings: WindowCouplings
    mode: str = "h+J"
    """Terms of the exponent."""
    _law: Law

    def _couple(
        self, couplings: WindowCouplings, mode: str, /, sampler: Sampler | str | None = None,
        gradient: str = "auto", num_reads: int | None = None, readout: Readout | str = "odds",
        far: str | None = None, **law: Any,
    ) -> None:  # fmt: skip
        """Take couplings, and bind the backend to what they need; ValueError or UnsupportedError as the layer says."""
        own = signature(type(self)).parameters.values()
        refuse_unknown(law, (*LawOptions.__annotations__, *(p.name for p in own if p.kind != p.VAR_KEYWORD)))
        fields = mode == "softmax" or "h" in mode
        used, far = as_readout(readout), far_of(far, couplings)
        used = ODDS if mode == "softmax" else used
        self._law = Law(used, far, **law, fields=fields, own_spin=mode == "J-self")
        check_contradictions(couplings, mode, self._law)
        self.couplings, self.mode = couplings, mode
        self._limits = Limits() if mode == "J" else couplings.limits  # uniform, whatever J is
        self.use_sampler("exact" if sampler is None else sampler, gradient=gradient, num_reads=num_reads)
        everything = not couplings.relative or self._law.far == "independent"
        uncoupled = self._law.bridge is None and couplings.offset_bias is None
        self._is_softmax = bool(self._law.readout.odds) and uncoupled and everything

    def _bind(self, bridge: LayerBridge) -> None:
        super()._bind(bridge)
        self._law = replace(self._law, bridge=None if self.mode in ("softmax", "h") else bridge)

    @property
    def far(self) -> str:
        """What keys before a window are, ``none`` or ``independent``."""
        return self._law.far

    @property
    def readout(self) -> Readout | str:
        """What weights are made from, ``odds`` or ``probability``, or a readout of one's own."""
        return self._law.readout.name or self._law.readout

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, couplings: WindowCouplings, visible: Visible, *,
        dropout: float = 0.0, need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """As :func:`diabat.attention.core.attend`, with the seed of this pass, recorded if passes are."""
        record = None if self._last is None else self._record
        call = Attention(self._law, q, k, v, visible, dropout, need_weights, self._fixed_seed, record)
        return attend(call, None if self._is_softmax else couplings)

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        law = self._law
        shown = f"mode={self.mode!r}, readout={self.readout!r}, gradient={self.gradient!r}"
        if self.num_reads is not None:
            shown += f", num_reads={self.num_reads}"
        return shown + f", far={law.far!r}" * self.couplings.relative


def check_contradictions(couplings: WindowCouplings, mode: str, law: Law) -> None:
    """Refuse options of a layer that contradict each other; ValueError names the argument."""
    biased, readout = couplings.offset_bias is not None, law.readout.name or law.readout
    if biased and not law.fields:
        raise ArgumentError("offset_bias", "a mode with fields", f"True in mode '{mode}'")
    if law.own_spin and law.odds:
        expected = "'probability' in mode 'J-self', where the own spin is certain"
        raise ArgumentError("readout", expected, f"{readout!r:.60}")


def check_mode(mode: str, modes: tuple[str, ...] = MODES) -> str:
    """The terms of couplings, ``J``, ``K``, ``J+K`` or none, of a mode; ValueError if it is none of ``modes``."""
    check_choice("mode", mode, modes)
    return "+".join(term for term in mode.removesuffix("-self").split("+") if term in "JK")


@contextmanager
def recording(layers: Iterable[IsingLayer]) -> Iterator[None]:
    """:meth:`diabat.attention.layer.IsingLayer.recording` of several layers."""
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.recording())
        yield


def couplings_of(model: nn.Module) -> dict[str, WindowCouplings]:
    """The couplings of all layers of a model by their names, to train, freeze, hold or ablate."""
    return {name: part for name, part in model.named_modules() if isinstance(part, WindowCouplings)}


def coupling_parameters(model: nn.Module) -> list[nn.Parameter]:
    """J, K and biases per offset of all layers of a model: they train at a rate of their own."""
    return [parameter for part in couplings_of(model).values() for parameter in part.parameters()]
