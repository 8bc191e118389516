r"""Base class of the layers whose weights come from free couplings: the terms of each head, and weights from scores.

For one query P(s) ∝ exp( Σ_j h_j s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l ) over the visible keys, and
weights alpha_j / Σ_k alpha_k with alpha_j = P(s_j = +1), or alpha_j / (1 - alpha_j) normalised
(:mod:`diabat.attention.weights`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention.chain import ChainLayer, attend, attend_once, fields_of, mixed, weights_of
from diabat.attention.coupling_init import CouplingInit
from diabat.attention.coupling_layout import WEIGHTS, CouplingLayout
from diabat.attention.head_axis import head_products
from diabat.attention.key_couplings import ChainOptions, KeyCouplings, band_edges, band_matrix
from diabat.attention.layer import IsingLayer, LayerProblems, can_fuse
from diabat.attention.weights import log_odds, masked_softmax, normalised_weights, odds_fields
from diabat.attention.windows import visible_keys, window_scores
from diabat.checks import check_choice
from diabat.edges import Edges
from diabat.ising import pack_couplings, pack_three_body, pair_indices, without_autocast
from diabat.samplers.base import Sampler, refuse_trace


@dataclass(frozen=True)
class Backend:
    """A sampler or its name, an estimator (:func:`diabat.spin_probabilities`) and a number of reads per problem."""

    sampler: Sampler | str
    gradient: str = "auto"
    num_reads: int | None = None


Problem = tuple[Tensor, Tensor | Edges | None]


def _detached(given: Any) -> Any:
    if isinstance(given, Edges):
        return given.mapped(Tensor.detach)
    return given.detach() if isinstance(given, Tensor) else given


def problem_of(fields: Tensor, couplings: Tensor | Edges | None) -> Problem:
    """What is recorded of fields and couplings: themselves."""
    return fields, couplings


def _problem_of_pass(
    layer: ChainLayer, q: Tensor, k: Tensor, band: Tensor, key_mask: Tensor | None
) -> Problem:
    """Fields [B, H, Q, S] and couplings [B, H, 1, E] of queries, keys and a band."""
    visible = visible_keys(q.shape[2], k.shape[2], key_mask, q.device, causal=layer.causal)
    return _problem_of_scores(layer.weights, (q / math.sqrt(q.shape[-1])) @ k.mT, band, visible)


def _problem_of_query(
    kind: str, scale: float, q: Tensor, k: Tensor, band: Tensor, visible: Tensor, bias: Tensor | None
) -> Problem:
    """The same of one query; ``visible`` and ``bias`` are [B, S]."""
    scores = scale * head_products(q, k.mT)
    scores = scores if bias is None else scores + bias[:, None, None]
    return _problem_of_scores(kind, scores, band, visible[:, None, None])


def _problem_of_scores(kind: str, scores: Tensor, band: Tensor, visible: Tensor) -> Problem:
    """The same of scores [B, H, Q, S]."""
    return fields_of(kind, scores, visible), band_edges(band)


class CoupledHeads(IsingLayer):
    """Couplings of H heads over ``window`` key positions, and the weights that follow from scores.

    A subclass calls ``_build_terms`` in its constructor and ``_weights_of`` in its forward pass.  The couplings of a
    *relative* layer are between the last keys that a query sees, the others between absolute positions.

    Attributes:
        layout: Which positions are coupled.
        coupling_pairs: J_jk for j < k, [H, window(window-1)/2], in modes with J; with a bandwidth w the pairs with
            k - j <= w, [H, Σ_{d=1..w} (window-d)], in the same row-major order.
        coupling_triples: K_jkl for j < k < l, [H, window(window-1)(window-2)/6], in modes with K.
        key_couplings: J between neighbouring keys of a layer without a window, else None.
    """

    window: int | None
    bandwidth: int | None
    key_couplings: KeyCouplings | None
    _takes_bias = False
    """Whether fields can be added in modes without them, so that mode J calls the sampler."""
    _last: list[Callable[[], Problem]] | None = None
    """The problem of the last pass, or nothing yet, while it is recorded; else None."""

    def _build_terms(
        self,
        num_heads: int,
        layout: CouplingLayout,
        backend: Backend,
        *,
        coupling_init: CouplingInit | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Register the parameters of the terms, after those of the projections, and check the backend.

        Raises:
            TypeError: If ``coupling_init`` is no CouplingInit.
            ValueError: If ``num_reads`` or ``weights`` is invalid.
            UnsupportedError: If the sampler does not support the mode, the window or the estimator.
        """
        check_choice("weights", layout.weights, WEIGHTS)
        coupling_init = CouplingInit.checked(coupling_init)
        self.num_heads, self.layout = num_heads, layout
        self.window, self.bandwidth, self.mode = layout.window, layout.bandwidth, layout.mode
        self.weighting, self.relative = layout.weights, layout.relative
        self._has_fields = "h" in layout.terms or self.mode == "softmax"
        self._problems = layout.problems(with_bias=self._takes_bias)
        self.use_sampler(backend.sampler, gradient=backend.gradient, num_reads=backend.num_reads)
        zeros = partial(torch.zeros, device=device, dtype=dtype)
        pairs, triples = (zeros(num_heads, size) for size in layout.sizes)
        self.coupling_pairs = nn.Parameter(pairs) if "J" in layout.terms else None
        if self.coupling_pairs is not None and coupling_init is not None:
            first, second = pair_indices(layout.window, layout.bandwidth)
            coupling_init.fill(self.coupling_pairs, second - first)
        self.coupling_triples = nn.Parameter(triples) if "K" in layout.terms else None
        self.key_couplings = None

    def _build_chain(
        self,
        embed_dim: int,
        num_heads: int,
        options: ChainOptions,
        weights: str,
        backend: Backend,
        *,
        coupling_init: CouplingInit | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """The same for couplings between neighbouring keys of sequences of any length."""
        check_choice("weights", weights, WEIGHTS)
        coupling_init = CouplingInit.checked(coupling_init)
        self.num_heads, self.window, self.bandwidth = num_heads, None, options.bandwidth
        self.mode, self.weighting, self.relative, self._has_fields = "h+J", weights, True, True
        self._problems = LayerProblems(None, options.bandwidth)
        self.use_sampler(backend.sampler, gradient=backend.gradient, num_reads=backend.num_reads)
        self.coupling_pairs = self.coupling_triples = None
        self.key_couplings = KeyCouplings(
            embed_dim, num_heads, options, coupling_init, device=device, dtype=dtype
        )

    def couplings(self, length: int | None = None) -> Tensor | None:
        """Symmetric J over the first ``length`` positions, or the last slots of a relative layer, [H, 1, T, T].

        None in modes without J.
        """
        if self.coupling_pairs is None:
            return None
        part = self.layout.part(length)
        return pack_couplings(self.coupling_pairs, self.layout.window, self.bandwidth)[:, None, part, part]

    def _band(self, length: int) -> Edges:
        """The same couplings as edges, with values [H, 1, E]."""
        pairs = self.coupling_pairs
        assert pairs is not None
        index = torch.stack(pair_indices(self.layout.window, self.bandwidth, pairs.device), 1)
        index = index - self.layout.part(length).indices(self.layout.window)[0]
        inside = ((index >= 0) & (index < length)).all(1)
        return Edges(index[inside], pairs[:, None, inside])

    def three_body(self, length: int | None = None) -> Tensor | None:
        """Symmetric K over the same positions, [H, 1, T, T, T]; None in modes without K."""
        if self.coupling_triples is None:
            return None
        part = self.layout.part(length)
        return pack_three_body(self.coupling_triples, self.layout.window)[:, None, part, part, part]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the tensors of the last forward pass inside, for :meth:`last_fields_and_couplings`, until the end.

        A layer keeps no tensor of its batches otherwise.  Copies and files of a layer never contain them.
        """
        outer = self._last
        self._last = [] if outer is None else outer
        try:
            yield
        finally:
            self._last = outer

    def last_fields_and_couplings(self) -> tuple[Tensor, Tensor | None]:
        """Fields [B, H, T, T] and J [H, 1, T, T] of the last forward pass of :meth:`recording`, detached.

        The fields of a relative layer are those of the slots, [B, H, L, T].  Without a window J is [B, H, 1, T, T].

        Raises:
            RuntimeError: Outside of a recording, before its first forward pass, or in a mode that does not call the
                sampler.
        """
        if self._last is None:
            raise RuntimeError(
                "fields and couplings are not recorded; call the layer, and ask for them, inside of "
                "'with layer.recording():'."
            )
        if not self._last:
            raise RuntimeError(
                "no Boltzmann forward pass has been recorded yet; call the layer on an input first."
            )
        fields, J = self._last[0]()
        return fields, J.matrix(fields.shape[-1]) if isinstance(J, Edges) else J

    def _record(self, find: Callable[..., Problem], *given: Any) -> None:
        """Keep the arguments from which ``find`` computes the problem of this pass, if passes are recorded."""
        if self._last is not None:
            self._last[:] = [partial(find, *map(_detached, given))]

    def __getstate__(self) -> dict[str, Any]:
        """The state of copies and files, which record nothing."""
        return self.__dict__ | {"_last": None}

    def _scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys whose products are the scores, in float32 or more; 0 in modes without fields."""
        wide = torch.promote_types(q.dtype, torch.float32)
        if not self._has_fields:
            return torch.zeros_like(q, dtype=wide), k.detach().to(wide)
        return q.to(wide) / math.sqrt(q.shape[-1]), k.to(wide)

    def _scores(self, q: Tensor, k: Tensor, slots: int | None = None) -> Tensor:
        """Scores q·k / sqrt(d) of all keys, [B, H, Q, S], or of slots, [B, H, Q, T]; 0 in modes without fields.

        They are in float32 where queries and keys are of half precision: exponents need it, and samplers compute in
        float32 or float64.
        """
        wide = torch.promote_types(q.dtype, torch.float32)
        if not self._has_fields:
            return q.new_zeros(*q.shape[:-1], k.shape[-2] if slots is None else slots, dtype=wide)
        q, k = self._scaled(q, k)
        return q @ k.mT if slots is None else window_scores(q, k, slots)

    def _chained(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        band: Tensor,
        key_mask: Tensor | None,
        *,
        causal: bool = True,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with the last Q of S keys whose neighbours are coupled.

        Args:
            q: [B, H, Q, d].
            k: [B, H, S, d].
            v: Likewise.
            band: Couplings of every key with the w keys before it, [B, H, S, w].
            key_mask: Keys that are not padding, bool [B, S], or None.
            causal: Queries do not see the keys behind them.
            dropout: Probability of dropout of the weights.
            need_weights: Also return the weights.

        Returns:
            Mixed values [B, H, Q, d], and weights [B, H, Q, S] if they are needed or were formed.
        """
        refuse_trace()
        wide, narrow = torch.promote_types(q.dtype, torch.float32), v.dtype
        layer = ChainLayer(causal, self.weighting, dropout)
        with without_autocast(q):
            q, k, band, values = (t.to(wide) for t in (q, k, band, v))
            if not (need_weights or dropout) and self._is_once(q, k, band):
                seen = q.new_ones(len(k), k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
                return self._attend_once(q.shape[-1] ** -0.5, q, k, values, band, seen).to(narrow), None
            if can_fuse(q, k, values, band) and self._chain_is_exact and not need_weights:
                self._record(_problem_of_pass, layer, q, k, band, key_mask)
                return attend(layer, q, k, values, band[:, :, 1:, 0], key_mask).to(narrow), None
            visible = visible_keys(q.shape[2], k.shape[2], key_mask, q.device, causal=causal)
            weights = self._chain_weights(self._scores(q, k), band, visible)
        weights = F.dropout(weights.to(narrow), dropout)
        return mixed(weights, v, key_mask, causal=causal), weights

    def _attend_once(
        self,
        scale: float,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        band: Tensor,
        visible: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Mixed values of one query without derivatives, as `attend_once`, where `_is_once`."""
        self._record(_problem_of_query, self.weighting, scale, q, k, band, visible, bias)
        return attend_once(self.weighting, scale, q, k, v, band, visible, bias)

    def _is_once(self, q: Tensor, k: Tensor, band: Tensor) -> bool:
        """Whether `_attend_once` computes this pass."""
        return (
            q.shape[2] == 1
            and self._chain_is_exact
            and not torch.is_grad_enabled()
            and can_fuse(q, k, k, band)
        )

    def _chain_weights(self, scores: Tensor, band: Tensor, visible: Tensor) -> Tensor:
        """Weights [B, H, Q, S] of keys whose neighbours are coupled by ``band``, [B, H, S, w]."""
        self._record(_problem_of_scores, self.weighting, scores, band, visible)
        fields = fields_of(self.weighting, scores, visible)
        if self._chain_is_exact:
            return weights_of(self.weighting, fields, band[:, :, 1:, 0], visible)
        bridge = self._bridge
        given = band_edges(band) if bridge.takes_edges else band_matrix(band)
        if self.weighting == "odds":
            return masked_softmax(log_odds(bridge, fields, given, visible, None, self._fixed_seed), visible)
        return normalised_weights(bridge(fields, given, visible, None, self._fixed_seed), visible)

    @property
    def _chain_is_exact(self) -> bool:
        """Whether the messages of a chain are what the backend computes."""
        bridge = self._bridge
        able = bridge.sampler.capabilities
        exact = able.exact and able.edges and bridge.estimator == "exact" and not bridge.draws
        return exact and self.bandwidth == 1

    def _weights_of(self, scores: Tensor, visible: Tensor, *, zero: bool) -> Tensor:
        """Normalised weights [B, H, L, T] of keys that are all coupled.

        Args:
            scores: [B, H, L, T].
            visible: bool, broadcastable to the scores.
            zero: The mode has no fields, and the scores are 0.
        """
        if self.mode == "softmax":
            return masked_softmax(scores, visible)
        if self.weighting == "odds":
            h = scores if zero else odds_fields(scores, visible)
            return masked_softmax(self._solved(h, visible, zero=zero), visible)
        return normalised_weights(self._solved(scores, visible, zero=zero), visible)

    def _weights_with_far(
        self, scores: Tensor, keys: Tensor, filled: Tensor, visible: Tensor, *, zero: bool = False
    ) -> Tensor:
        """Normalised weights [B, H, L, S] where the keys before the window are spins without couplings.

        Such spins are independent of all others: alpha_j = sigmoid(2 h_j), odds exp(2 h_j).  Together with the problem
        of the window this is the exact law of couplings that are zero beyond the window.

        Args:
            scores: [B, H, L, S].
            keys: The key in each slot of the window, different ones in a row, int64, broadcastable to [B, H, L, T].
            filled: Whether a slot holds a visible key, bool, likewise; the other slots have keys that are not visible.
            visible: bool, broadcastable to the scores.
            zero: The mode has no fields, and the scores are 0.
        """
        keys = keys.expand(*scores.shape[:-1], -1)
        if self.weighting == "odds":
            # Up to a constant of each query the logits are the scores, moved in the window by what the couplings add.
            logits = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).log_softmax(-1)
            h = logits.gather(-1, keys).masked_fill(~filled, 0) * (0 if zero else 0.5)
            moved = (self._solved(h, filled, zero=zero) - 2 * h).masked_fill(~filled, 0)
            return logits.scatter_add(-1, keys, moved).softmax(-1).masked_fill(~visible, 0)
        near = self._solved(scores.gather(-1, keys).masked_fill(~filled, 0), filled, zero=zero)
        alpha = torch.sigmoid(2 * scores).scatter(-1, keys, near.masked_fill(~filled, 0))
        return normalised_weights(alpha, visible)

    def _shares(self, near: Tensor, filled: Tensor, far: Tensor, *, zero: bool = False) -> Tensor:
        """The same weights from far keys as one: those of slots, and the sum of those of far keys, [B, H, L, T + 1].

        Args:
            near: Scores of the slots, [B, H, L, T].
            filled: Whether a slot holds a visible key, bool, broadcastable to them.
            far: x of the far keys, [B, H, L] (:mod:`diabat.attention.streaming`).
            zero: The mode has no fields, and the scores are 0.
        """
        near = near.masked_fill(~filled, 0)
        least = torch.finfo(far.dtype).min
        seen = (far > (least / 2 if self._by_odds else 0))[..., None]
        visible = torch.cat((filled.expand(near.shape), seen), -1)
        if not self._by_odds:
            # Far keys have what `normalised_weights` adds already, one by one.
            summed = far[..., None] - torch.finfo(far.dtype).tiny ** 0.75
            alpha = torch.cat((self._solved(near, filled, zero=zero), summed), -1)
            return normalised_weights(alpha, visible)
        logits = torch.cat((near, far[..., None]), -1).masked_fill(~visible, least).log_softmax(-1)
        h = logits[..., :-1].masked_fill(~filled, 0) * (0 if zero else 0.5)
        if self.mode != "softmax":
            moved = (self._solved(h, filled, zero=zero) - 2 * h).masked_fill(~filled, 0)
            logits = logits + F.pad(moved, (0, 1))
        return masked_softmax(logits, visible)

    @property
    def _by_odds(self) -> bool:
        return self.weighting == "odds" or self.mode == "softmax"

    def _solved(self, fields: Tensor, visible: Tensor, *, zero: bool) -> Tensor:
        """P(s_j = +1), [B, H, L, T], or the log-odds of it in a layer of odds."""
        odds, (J, K) = self.weighting == "odds", self._terms(fields)
        if self.mode == "h":
            return 2 * fields if odds else torch.sigmoid(2 * fields)
        if zero and self.mode == "J":
            # The law does not change when all spins are flipped: every P is 1/2, whatever J is.
            assert self.coupling_pairs is not None
            # The gradient 0 rather than none, which some wrappers and optimisers treat differently.
            return torch.full_like(fields, 0 if odds else 0.5) + 0 * self.coupling_pairs.sum()
        if odds:
            return log_odds(self._bridge, fields, J, visible, K, self._fixed_seed)
        return self._bridge(fields, J, visible, K, self._fixed_seed)

    def _terms(self, fields: Tensor) -> tuple[Tensor | Edges | None, Tensor | None]:
        """J and K in the precision of the fields; recorded with the fields."""
        length = fields.shape[-1]
        if self.bandwidth is not None and self.coupling_pairs is not None and self._bridge.takes_edges:
            band = self._band(length).mapped(lambda values: values.to(fields))
            self._record(problem_of, fields, band)
            return band, None
        J, K = (
            None if t is None else t.to(fields) for t in (self.couplings(length), self.three_body(length))
        )
        self._record(problem_of, fields, J)
        return J, K

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        shown = f"num_heads={self.num_heads}, window={self.window}, mode={self.mode!r}, gradient={self.gradient!r}"
        given = {"bandwidth": self.bandwidth, "num_reads": self.num_reads}
        return shown + "".join(f", {name}={value}" for name, value in given.items() if value is not None)


@contextmanager
def recording(layers: Iterable[CoupledHeads]) -> Iterator[None]:
    """:meth:`CoupledHeads.recording` of several layers."""
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.recording())
        yield
