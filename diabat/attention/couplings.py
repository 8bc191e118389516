r"""Couplings between the keys of a window: free parameters of every head, J of pairs and K of triples; how J starts.

    P(s) ∝ exp( Σ_j h_j s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l )

over the slots of a window.  The slots are the last keys that a query sees (*relative*), or absolute positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.layer import Limits
from diabat.checks import (
    ArgumentError,
    ArgumentTypeError,
    as_float,
    check_count,
    check_flag,
    check_number,
    is_integer,
    is_number,
    keep_count,
)
from diabat.compute.memory import require_memory
from diabat.ising import pack_couplings, pack_three_body, pair_indices
from diabat.ising.edges import Edges
from diabat.samplers.kept import kept
from diabat.samplers.precision import InFloat32

PairSlots = tuple[int, int, int, int]
"""A window, its bandwidth, and the first and the end of its slots that are used: arguments of `pair_numbers`."""


@dataclass(frozen=True)
class CouplingInit:
    """Initial couplings J_jk ~ N(mean, std²) for |j - k| <= max_distance, and 0 beyond; the default is J = 0.

    At J = 0 the attention is softmax or sigmoid attention.  Where a task needs couplings this is a saddle: a match of
    keys is worth nothing without couplings, and couplings are worth nothing without a match (docs/recall.md).

    Attributes:
        mean: Mean; positive couplings let neighbouring keys be attended together.
        std: Standard deviation, drawn from torch's global generator of the CPU, the same on every device.
        max_distance: Largest distance of a pair whose coupling is not 0; None for any.

    Raises:
        ValueError: If ``mean`` is not finite, ``std`` is negative or ``max_distance`` is no integer >= 1.
    """

    mean: float = 0.0
    std: float = 0.0
    max_distance: int | None = None

    def __post_init__(self) -> None:
        check_number("mean", self.mean, "(-inf, inf)")
        check_number("std", self.std, "[0, inf)")
        keep_count(self, "max_distance", optional=True)

    @classmethod
    def of(cls, init: CouplingInit | float | None) -> CouplingInit | None:
        """The argument ``coupling_init`` of a layer, a number being the mean; TypeError if it is anything else."""
        if init is None or isinstance(init, cls):
            return init
        number: Any = init
        if is_number(number):
            return cls(as_float(number))
        raise ArgumentTypeError("coupling_init", "a CouplingInit, a number or None", type(init).__name__)

    @torch.no_grad()
    def fill(self, pairs: Tensor, distances: Tensor) -> None:
        """Set couplings [H, pairs] in place; ``distances`` of the two keys of each pair, [pairs]."""
        drawn = torch.full(pairs.shape, self.mean, dtype=pairs.dtype)
        if self.std:
            drawn += self.std * torch.randn(pairs.shape, dtype=pairs.dtype)
        if self.max_distance is not None:
            drawn *= distances <= self.max_distance
        pairs.copy_(drawn)


class WindowCouplings(InFloat32):
    """J and K over T slots of H heads, zero at first; parts of J can be held.

    ``half`` and ``to`` leave them at float32 or more, because steps of an optimiser are lost in half precision.

    Args:
        num_heads: H.
        window: T, the number of slots.
        terms: ``J``, ``K``, ``J+K``, or empty for neither.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.  None makes every pair a parameter.
        relative: Slots are the last T visible keys of every query; else the absolute positions 0 .. T-1.
        offset_bias: A learned number of every head and slot, added to the scores; needs ``relative``.
        init: Initial J: a :class:`diabat.attention.CouplingInit`, a number for all of J, or None for 0.
        device: Device of the parameters.
        dtype: Dtype of the parameters; None for that of torch, or float32 if it is half precision.

    Attributes:
        pairs: J_jk for j < k, [H, Σ_{d=1..w} (T-d)], in row-major order; None without J.
        triples: K_jkl for j < k < l, [H, T(T-1)(T-2)/6]; None without K.
        offset_bias: [H, T], zero at first; or None.
        bandwidth: w, the largest distance of two coupled keys.
        held: Values of J that do not train, in the shape of ``pairs``, NaN where it does; None for none.

    Raises:
        ValueError: If a size is invalid or the parameters do not fit into memory.
    """

    held: Tensor | None

    def __init__(
        self,
        num_heads: int,
        window: int,
        *,
        terms: str = "J",
        bandwidth: int | None = None,
        relative: bool = True,
        offset_bias: bool = False,
        init: CouplingInit | float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("held", None, persistent=False)
        num_heads = check_count("num_heads", num_heads)
        window = check_count("window", window)
        bandwidth = check_count("bandwidth", bandwidth, optional=True)
        if terms not in ("J", "K", "J+K", ""):
            raise ArgumentError("terms", "J, K, J+K or an empty text", f"{terms!r}")
        check_flag("relative", relative)
        check_flag("offset_bias", offset_bias)
        if offset_bias and not relative:
            raise ArgumentError("offset_bias", "False without relative=True", "True")
        widest = window - 1
        self.num_heads, self.window, self.relative = num_heads, window, relative
        self.bandwidth = widest if bandwidth is None else min(bandwidth, widest)
        pairs, triples = pair_bytes(num_heads, window, bandwidth), math.comb(window, 3) * ("K" in terms)
        numbers = sum(pairs) * ("J" in terms) + 16 * num_heads * triples
        require_memory(numbers, f"couplings of window = {window} and {num_heads} heads", "window")
        dtype = dtype or torch.promote_types(torch.get_default_dtype(), torch.float32)
        zeros = partial(torch.zeros, device=device, dtype=dtype)
        number = pair_count(window, self.bandwidth)
        self.pairs = nn.Parameter(zeros(num_heads, number)) if "J" in terms else None
        self.triples = nn.Parameter(zeros(num_heads, triples)) if "K" in terms else None
        self.offset_bias = nn.Parameter(zeros(num_heads, window)) if offset_bias else None
        init = CouplingInit.of(init)
        if self.pairs is not None and init is not None:
            init.fill(self.pairs, self.by_pair()[1])

    @property
    def limits(self) -> Limits:
        """What a sampler must support."""
        with_J, with_K = self.pairs is not None, self.triples is not None
        window = self.window if with_J or with_K else None
        return Limits(window, self.bandwidth if with_J else None, with_K)

    def by_pair(self) -> tuple[Tensor | None, Tensor]:
        """``pairs``, [H, P], and the distance of the slots of each of its pairs, int64 [P]."""
        first, second = pair_indices(self.window, self.bandwidth)
        return self.pairs, second - first

    @torch.no_grad()
    def hold(
        self,
        value: float | None = None,
        *,
        heads: Iterable[int] | None = None,
        distances: Iterable[int] | None = None,
    ) -> None:
        """Keep J of some heads and distances as it is, or at a value, whatever an optimiser does; 0 ablates it.

        The value is written to the parameter as well, now and when it is saved.  Files do not say what was held, and
        ``load_state_dict`` gives what is held its value.

        Args:
            value: J; None for what it is now.
            heads: Numbers of heads; None for all.
            distances: Distances of two coupled keys, 1 .. w; None for all.

        Raises:
            ValueError: If there is no such head or distance, the value is not finite, there is no J, or it is no
                parameter with values (parametrised, pruned, on ``meta``).
        """
        now, (_, distance) = self.values(), self.by_pair()
        if now is None:
            raise ArgumentError("couplings", "couplings with J", "none")
        self._require_parameter()
        if now.is_meta:
            raise ArgumentError("couplings", "J in memory", "it on 'meta'; load it before")
        if value is not None:
            check_number("value", value, "(-inf, inf)")
        all_heads = torch.arange(self.num_heads)
        chosen = _among("heads", heads, all_heads)[:, None] & _among("distances", distances, distance)
        chosen = chosen.to(now.device)
        now = now.masked_fill(chosen, value) if value is not None else now
        before = torch.full_like(now, math.nan) if self.held is None else self.held
        self.held = torch.where(chosen, now, before)
        self._write_held()

    def release(self) -> None:
        """Let all of J train again."""
        self._write_held()
        self.held = None

    @torch.no_grad()
    def _write_held(self) -> None:
        now = self.values()
        if self.held is not None and self.pairs is not None and now is not None:
            self._require_parameter()
            self.pairs.copy_(now)

    def _require_parameter(self) -> None:
        """Refuse J that a value cannot be written to."""
        if "pairs" not in self._parameters:
            call = "torch.nn.utils.parametrize.remove_parametrizations(couplings, 'pairs')"
            got = f"one that is computed; call {call} before"
            raise ArgumentError("couplings", "J as a parameter where it is held", got)

    def _save_to_state_dict(self, *args: Any, **options: Any) -> None:
        self._write_held()  # decay has moved it
        super()._save_to_state_dict(*args, **options)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        self._write_held()  # for a file without J
        super()._load_from_state_dict(*args, **options)
        if self.held is not None and self.pairs is not None:
            held = self.held.to(self.pairs)
            self.held = torch.where(held.isnan(), held, self.pairs.detach())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        held = self.held
        super()._apply(fn, recurse)
        if held is not None and self.held is not None:
            # to_empty has made it memory without values, and meta has none.
            self.held = held if self.held.is_meta else held.to(self.held)
        return self

    def initialise(self, functions: Any) -> None:
        """Set J = 0 by functions of the names and arguments of ``torch.nn.init``."""
        for parameter in (self.pairs, self.triples, self.offset_bias):
            if parameter is not None:
                functions.zeros_(parameter)

    def values(self) -> Tensor | None:
        """J of all pairs, [H, P], with what is held."""
        pairs = self.pairs  # looked up by modules, which takes time
        if pairs is None or self.held is None:
            return pairs
        held = self.held.to(pairs)
        return torch.where(held.isnan(), pairs, held)

    def matrix(self, length: int | None = None) -> Tensor | None:
        """Symmetric J over the first ``length`` positions, or the last slots, [H, 1, T, T]; None without J."""
        values, part = self.values(), self.part(length)
        if values is None:
            return None
        return pack_couplings(values, self.window, self.bandwidth)[:, None, part, part]

    def edges(self, length: int | None = None) -> Edges | None:
        """The same as edges, with values [H, 1, E]."""
        values, (first, end, _) = self.values(), self.part(length).indices(self.window)
        if values is None:
            return None
        index = torch.stack(pair_indices(self.window, self.bandwidth, values.device), 1) - first
        inside = ((index >= 0) & (index < end - first)).all(1)
        return Edges(index[inside], values[:, None, inside])

    def three_body(self, length: int | None = None) -> Tensor | None:
        """Symmetric K over the same slots, [H, 1, T, T, T]; None without K."""
        if self.triples is None:
            return None
        part = self.part(length)
        return pack_three_body(self.triples, self.window)[:, None, part, part, part]

    def slots(self, length: int) -> PairSlots:
        """The slots of ``length`` keys whose J the pairs are."""
        first, end, _ = self.part(length).indices(self.window)
        return self.window, self.bandwidth, first, end

    def part(self, length: int | None) -> slice:
        """The slots of ``length`` keys."""
        T = self.window if length is None else length
        return slice(self.window - T, self.window) if self.relative else slice(T)

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{self.num_heads}, {self.window}, bandwidth={self.bandwidth}, relative={self.relative}"


def _among(name: str, chosen: Iterable[int] | None, known: Tensor) -> Tensor:
    """Which of the known numbers are chosen, bool."""
    if chosen is None:
        return torch.ones(len(known), dtype=torch.bool)
    numbers, most = list(chosen), int(known.max()) if len(known) else 0
    for number in numbers:
        if not is_integer(number) or not bool((known == number).any()):
            raise ArgumentError(name, f"numbers in {int(known.min())} .. {most}", repr(number))
    return torch.isin(known, torch.tensor(numbers, dtype=torch.int64))


def pair_count(window: int, bandwidth: int) -> int:
    """Number P of pairs of a window that have a coupling."""
    return bandwidth * window - bandwidth * (bandwidth + 1) // 2


def pair_bytes(heads: int, window: int, bandwidth: int | None, *, copies: int = 1) -> tuple[int, int]:
    """Bytes of J of some layers with gradient and both moments of an optimiser, and of one of them as a matrix."""
    widest = window - 1
    pairs = pair_count(window, widest if bandwidth is None else min(bandwidth, widest))
    return 16 * copies * heads * pairs, 12 * heads * window**2


@kept(lambda window, bandwidth, first, end, device: 8 * (end - first) ** 2)
def pair_numbers(window: int, bandwidth: int | None, first: int, end: int, device: torch.device) -> Tensor:
    """Which of the P pairs of a window is at j, k of J of its slots first .. end - 1, int64; P where there is none."""
    j, k = pair_indices(window, bandwidth, device)
    numbers = torch.full((window, window), len(j), device=device)
    numbers[j, k] = numbers[k, j] = torch.arange(len(j), device=device)
    return numbers[first:end, first:end].contiguous()
