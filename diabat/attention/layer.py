"""Base class of the layers that call a sampler: binds sampler, estimator and reads, and checks inputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diabat.attention.compiled import LayerBridge
from diabat.checks import ArgumentError, check_count
from diabat.compute.memory import require_memory
from diabat.ising import Ising
from diabat.samplers.analytic import AnalyticSampler
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import is_traced
from diabat.samplers.registry import as_sampler
from diabat.samplers.state import own_copy


class Limits(NamedTuple):
    """Limits of the problems of a layer, fixed when it is built.

    Attributes:
        window: Largest number of spins; None without couplings.
        bandwidth: Largest distance of two coupled spins; None without pair couplings.
        three_body: Whether there are three-body terms.
    """

    window: int | None = None
    bandwidth: int | None = None
    three_body: bool = False


class IsingLayer(nn.Module):
    """Binds a sampler, an estimator and a number of reads."""

    sampler: Sampler
    """The backend, a submodule.  Its parameters (the learnable angles of an anneal) train with the layer.  Assigning
    another keeps estimator and reads, see :meth:`use_sampler`.  A sampler with parameters or chains is copied, so that
    layers do not share them."""
    eval_seed: int | None = 0
    """Seed of what is drawn in evaluation mode, so that equal inputs have equal outputs; None draws a seed from torch's
    global generator, as training does."""
    _limits = Limits()
    _last: list[tuple[str, Callable[[], Ising] | None]] | None = None
    """Path and problem of the last pass, or nothing yet, while they are recorded; else None."""

    def use_sampler(
        self, sampler: Sampler | str, *, gradient: str = "auto", num_reads: int | None = None
    ) -> None:
        """Replace the backend of the layer, e.g. by hardware after training.

        Args:
            sampler: A sampler or the name of one.
            gradient: Estimator, see :func:`diabat.spin_probabilities`.
            num_reads: Reads per problem for sampling backends.

        Raises:
            ValueError: If ``num_reads`` is invalid.
            UnsupportedError: If the sampler does not support the layer's problems or the estimator.
        """
        built = fitted(own_copy(as_sampler(sampler)), self._limits)
        self._bind(LayerBridge(built, gradient, num_reads))
        super().__setattr__("sampler", built)

    def _bind(self, bridge: LayerBridge) -> None:
        self._bridge = bridge

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a new sampler is bound as :meth:`use_sampler` does."""
        if name == "sampler":
            self.use_sampler(value, gradient=self.gradient, num_reads=self.num_reads)
        else:
            super().__setattr__(name, value)

    @property
    def gradient(self) -> str:
        """Estimator, as given; ``auto`` is not resolved."""
        return self._bridge.gradient

    @property
    def num_reads(self) -> int | None:
        """Reads per problem for sampling backends, as given."""
        return self._bridge.num_reads

    @property
    def _fixed_seed(self) -> int | None:
        """Seed of this pass; None if one is to be drawn."""
        # Chains that continue with equal random numbers would correlate with themselves.
        return None if self.training or self._bridge.remembers else self.eval_seed

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the tensors of the last forward pass inside, for :meth:`last_problem`, until the end.

        A layer keeps no tensor of its batches otherwise.  Copies and files of a layer never contain them.
        """
        outer = self._last
        self._last = [] if outer is None else outer
        try:
            yield
        finally:
            self._last = outer

    def last_problem(self) -> Ising:
        """The problems of all queries of the last forward pass of :meth:`recording`, detached.

        Fields are [B, H, L, T], of T positions or slots.

        Raises:
            RuntimeError: Outside of a recording, before its first forward pass, or if it had no spins.
        """
        problem = self._recorded()[1]
        if problem is None:
            raise RuntimeError(
                "the last forward pass solved no Ising problem: attention was softmax or uniform."
            )
        return problem()

    def last_path(self) -> str:
        """The path of the last forward pass of :meth:`recording`, see :mod:`diabat.attention.core`.

        Raises:
            RuntimeError: Outside of a recording, or before its first forward pass.
        """
        return self._recorded()[0]

    def _recorded(self) -> tuple[str, Callable[[], Ising] | None]:
        if self._last is None:
            fix = "call the layer, and ask for the last one, inside of 'with layer.recording():'"
            raise RuntimeError(f"forward passes are not recorded; {fix}.")
        if not self._last:
            raise RuntimeError("no forward pass has been recorded yet; call the layer on an input first.")
        return self._last[0]

    def _record(self, path: str, problem: Callable[[], Ising] | None) -> None:
        assert self._last is not None
        self._last[:] = [(path, problem)]

    def __getstate__(self) -> dict[str, Any]:
        """The state of copies and files, which record nothing."""
        return self.__dict__ | {"_last": None}


def fitted(sampler: Sampler, limits: Limits) -> Sampler:
    """Adapt a backend to the limits of a layer; refuse now what it would refuse at the first batch."""
    if isinstance(sampler, AnalyticSampler) and limits.window is not None and limits.bandwidth is not None:
        sampler = sampler.for_window(limits.window, limits.bandwidth)
    able = sampler.capabilities
    if limits.three_body and not able.three_body:
        wrong = f"sampler '{sampler.name}' does not support three-body terms"
        raise UnsupportedError("mode", f"{wrong}; use 'exact' or a mode without K.")
    if limits.window is not None and able.max_spins is not None and limits.window > able.max_spins:
        most = f"sampler '{sampler.name}' accepts at most {able.max_spins} spins"
        raise UnsupportedError("window", f"{most}, got {limits.window}; {_fix(limits)}.")
    return sampler


def _fix(limits: Limits) -> str:
    """What to do about a window that a backend does not support."""
    able = [repr(name) for name in ("banded", "mean_field", "tempering") if _fits(name, limits)]
    return f"use {' or '.join(able)}, or a smaller window" if able else "use a smaller window"


def _fits(name: str, limits: Limits) -> bool:
    able = as_sampler(name).capabilities
    if able.max_spins is not None or (limits.three_body and not able.three_body):
        return False
    try:
        fitted(as_sampler(name), limits)
    except UnsupportedError:
        return False
    return True


def warn_of_causal(queries: int, keys: int) -> None:
    """Warn where ``is_causal`` counts a few queries from the first key: those of a cache are the last ones."""
    if queries < keys and not is_traced():
        warnings.warn(
            "is_causal: there are fewer queries than keys, and query i sees the keys j <= i counted from the first, as "
            "in torch; if the queries are the last ones give "
            "attn_mask=torch.ones(L, S, dtype=torch.bool).tril(S - L) instead.",
            UserWarning,
            stacklevel=4,
        )


def within_limits(sampler: Sampler, count: int, longest: int) -> bool:
    """Whether a backend accepts ``count`` problems, each with its own J and up to ``longest`` spins."""
    able = sampler.capabilities
    spins, states = (math.inf if limit is None else limit for limit in (able.max_spins, able.max_states))
    return longest <= spins and count * 2.0 ** min(longest, 1000) <= states


def require_within_limits(sampler: Sampler, lengths: Tensor, heads: int, begin: str) -> None:
    """Refuse sequences of these ``lengths``, int64 [B], that exceed the limits of the sampler, by an UnsupportedError.

    Each head has its own J for every sequence, so that no work is shared: heads · Σ 2^n is what it enumerates in one
    call.  ``begin`` is the start of the message, before the name of the sampler.
    """
    able, longest = sampler.capabilities, max(lengths.tolist(), default=0)
    if able.max_spins is not None and longest > able.max_spins:
        raise UnsupportedError(
            f"{begin} '{sampler.name}' accepts at most {able.max_spins} tokens, got {longest}; "
            "use 'mean_field' or 'tempering'."
        )
    states = heads * float(lengths.double().exp2().sum())
    if able.max_states is not None and states > able.max_states:
        raise UnsupportedError(
            f"{begin} '{sampler.name}' enumerates 2^n states for every sequence and head, at most "
            f"{able.max_states:.2g} in one call, got {states:.2g} for {len(lengths)} sequences of up to {longest} "
            f"tokens and {heads} heads; use 'mean_field' or 'tempering', or fewer or shorter sequences."
        )


def check_heads(embed_dim: int, num_heads: int) -> tuple[int, int]:
    """Both sizes; ValueError if they are no counts, do not divide, or projections do not fit into memory."""
    embed_dim = check_count("embed_dim", embed_dim)
    num_heads = check_count("num_heads", num_heads)
    if embed_dim % num_heads:
        raise ArgumentError("embed_dim", f"a multiple of num_heads = {num_heads}", embed_dim)
    # float32: weights, gradients and both moments of an optimiser.
    require_memory(64 * embed_dim**2, f"weights of embed_dim = {embed_dim}", "embed_dim")
    return embed_dim, num_heads


def check_tokens(x: Any, weight: Tensor, name: str = "x", like: str = "the layer") -> None:
    """Refuse an input, by a ValueError, that a projection with this weight, of what is ``like`` it, cannot process.

    It must be dense and floating, on the device of the weight, and outside autocast of its dtype.
    """
    if not isinstance(x, Tensor):
        raise ArgumentError(name, "a torch.Tensor", type(x).__name__)
    if not x.is_floating_point():
        raise ArgumentError(name, "a floating dtype", x.dtype)
    if x.is_nested:
        got = "a nested one; use .to_padded_tensor(0.0)"
        raise ArgumentError(name, "a dense tensor with a mask of padding", got)
    if x.layout != torch.strided:
        raise ArgumentError(name, "a dense tensor", f"the layout {x.layout}; use .to_dense()")
    if x.device != weight.device:
        raise ArgumentError(name, f"a tensor on {weight.device} as {like}", f"one on {x.device}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ArgumentError(name, f"dtype {weight.dtype} as {like}", x.dtype)


def check_sequences(
    x: Any, projection: nn.Module, features: int, padding: Tensor | None, window: int | None = None
) -> None:
    """Refuse inputs other than tokens [B, T, features], T <= window, and a mask of padding, bool [B, T].

    A projection without a weight, quantised or around another, takes what it likes.
    """
    weight = getattr(projection, "weight", None)
    check_tokens(x, weight if isinstance(weight, Tensor) else x)
    if x.ndim != 3 or x.shape[-1] != features or x.shape[0] == 0 or x.shape[1] == 0:
        raise ArgumentError("x", f"shape [B, T, {features}] with B, T >= 1", list(x.shape))
    if window is not None and x.shape[1] > window:
        got = f"{x.shape[1]}; relative=True takes any number"
        raise ArgumentError("x", f"at most window = {window} positions", got)
    if padding is not None and (padding.dtype != torch.bool or padding.shape != x.shape[:2]):
        got = f"{padding.dtype} {list(padding.shape)}"
        raise ArgumentError("key_padding_mask", f"bool {list(x.shape[:2])}", got)
