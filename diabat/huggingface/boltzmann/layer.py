r"""Boltzmann attention of one attention module, and the function behind ``attn_implementation="boltzmann"``.

With the scores s_j of all visible keys of a query and the last T of them coupled,

    h_j = (s_j - log Σ_k exp s_k) / 2,
    P(s) ∝ exp( Σ_j h_j s_j + Σ_{j<k} J_jk s_j s_k ),
    weight_j ∝ P(s_j = +1) / P(s_j = -1);        for keys before the window, exp(2 h_j).

or with ``window=None`` all visible keys, each with its neighbour.  At J = 0 the weights are softmax(s) exactly
(:mod:`diabat.attention.weights`, :mod:`diabat.attention.chain`).  Windows are found from the mask, so that
static caches, padding on either side, sliding windows, packed sequences and prompts in chunks need no rules of their
own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diabat.attention.coupled import Backend, CoupledHeads
from diabat.attention.coupling_layout import CouplingLayout
from diabat.attention.head_axis import head_products, repeated
from diabat.attention.key_couplings import chain_options
from diabat.attention.streaming import block_rows, far_sums
from diabat.attention.windows import visible_keys as causal_keys
from diabat.checks import ArgumentError, check_number, check_positive
from diabat.huggingface.boltzmann.cached_couplings import CachedCouplings
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.boltzmann.one_query import found_once, seen_keys
from diabat.huggingface.boltzmann.windows import Windows
from diabat.huggingface.masks import refuse_others, visible_keys
from diabat.ising import without_autocast
from diabat.samplers.capabilities import UnsupportedError

NAME = "boltzmann"
"""Of the attention implementation, and of the submodule with the couplings."""


class BoltzmannHeads(CoupledHeads):
    """Couplings J between the slots of the window, per query head, in float32 or float64.

    ``half`` and ``to`` leave them at float32 or more, because steps of an optimiser are lost in half precision.

    Attributes:
        coupling_pairs: J_jk for j < k, [H, T(T-1)/2], initialised to 0; as in :class:`diabat.BoltzmannAttention`.
        key_couplings: The couplings without a window, J = 0 at first; else None.
        sampler: The backend.
        always_weights: Form weights although nobody asked: the module does not pass ``output_attentions`` on.

    Raises:
        ValueError: If an option is invalid.
        UnsupportedError: If the backend does not support the window or the estimator.
    """

    always_weights = False

    def __init__(
        self,
        num_heads: int,
        options: BoltzmannOptions,
        *,
        features: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.options, self._cached = options, CachedCouplings()
        assert options.sampler is not None
        backend = Backend(options.sampler, options.gradient, options.num_reads)
        chain = chain_options(options.window, options.couplings, options.rank, options.bandwidth)
        if chain is not None:
            self._build_chain(
                features, num_heads, chain, options.weights, backend, device=device, dtype=dtype
            )
            self.sampler.to(device=device, dtype=dtype)
            return
        assert options.window is not None
        layout = CouplingLayout(
            options.window, bandwidth=options.bandwidth, relative=True, weights=options.weights
        )
        self._build_terms(num_heads, layout, backend, device=device, dtype=dtype)
        self.sampler.to(device=device, dtype=dtype)

    def forward(
        self,
        q: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        *,
        dropout: float = 0.0,
        need_weights: bool | None = None,
        softcap: float | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Mix values; and normalised weights, [B, H, Q, K], in float32 or float64, or None unless they are needed.

        Args:
            q: Queries divided by the root of their size, [B, H, Q, D], float32 or float64.
            key: [B, H_kv, K, D].
            value: Likewise.
            mask: bool [B or 1, 1 or H, Q, K], True where a key is visible, or floating, added to the scores.
            dropout: Probability of dropout of the weights.
            need_weights: Whether weights are needed; None if the module does not say.
            softcap: c; the scores s become c tanh(s / c) before all else.
        """
        key, shown = key.to(q.dtype), self.always_weights if need_weights is None else need_weights
        if self.key_couplings is not None:
            return self._over_chain(q, key, value, mask, dropout, shown, softcap)
        assert self.window is not None
        if not (shown or q.shape[2] == 1 or mask.requires_grad):  # a stream has no derivative by the mask
            return self._streamed(q, key, value, mask, dropout, softcap), None
        far = self.options.far == "independent"
        find = partial(find_windows, mask, self.window, q.dtype, far=far)
        windows = found_once(mask, (self.window, q.dtype, far), find) if q.shape[2] == 1 else find()
        scores = _scores(q, key, softcap) + windows.bias
        weights = self._weights_with_far(scores, windows.keys, windows.filled, windows.visible)
        mixed, weights = self._mixed(weights, value, dropout)
        return mixed, weights if shown else None

    def _streamed(
        self, q: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: float, softcap: float | None
    ) -> Tensor:
        """The same without weights: of other keys than those of the windows no scores are stored."""
        windows, values = self._windows(mask, q), value.to(q.dtype)
        dropout = dropout if self.training else 0.0
        near, odds = windows.scores(q, key, softcap), self.weighting == "odds"
        if self.options.far == "none":
            weights = F.dropout(self._weights_of(near, windows.filled, zero=False), dropout)
            mixed = windows.mixed(weights, values)
        else:
            far, x = far_sums(q, key, values, windows.far, odds=odds, softcap=softcap, dropout=dropout)
            weights = self._shares(near, windows.filled, x)
            mixed = windows.mixed(F.dropout(weights[..., :-1], dropout), values) + weights[..., -1:] * far
        if windows.keys is not None:
            uniform = repeated(values.mean(2, keepdim=True), q.shape[1] // key.shape[1])
            mixed = torch.where(windows.filled.any(-1, keepdim=True), mixed, uniform)
        return mixed.to(value.dtype)

    def _windows(self, mask: Tensor, q: Tensor) -> Windows:
        """Windows of a full pass of queries [B, H, Q, D], found over blocks of queries unless the mask is plain."""
        assert self.window is not None
        visible, keys = visible_keys(mask), mask.shape[-1]
        if q.shape[2] == keys and _is_plain(mask, visible) and bool(visible[..., -1, :].all()):
            return Windows.causal(keys, min(self.window, keys), mask.device)
        parts = mask.split(block_rows(len(mask) * mask.shape[1] * keys), -2)
        found = [find_windows(part, self.window, q.dtype, far=True) for part in parts]
        slots = (torch.cat([part.keys for part in found], -2), torch.cat([part.filled for part in found], -2))
        return Windows.of(*slots, visible, mask.to(q.dtype) if mask.is_floating_point() else None)

    def initialise(self, functions: Any) -> None:
        """Set J = 0 by functions of the names and arguments of ``torch.nn.init``."""
        if self.key_couplings is None:
            functions.zeros_(self.coupling_pairs)
        else:
            self.key_couplings.initialise(functions)

    def _over_chain(
        self,
        q: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        dropout: float,
        need_weights: bool,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The same without a window; in one compiled call of q and k unless weights, a mask or a cap need scores."""
        assert self.key_couplings is not None
        need_weights = need_weights or softcap is not None
        band = self._cached.of(self.key_couplings, value, q.dtype, q.shape[2])
        dropout = dropout if self.training else 0.0
        if mask.shape[1] == 1 and not (need_weights or dropout) and self._is_once(q, key, band):
            found = self._attend_once(1.0, q, key, value.to(q.dtype), band, *seen_keys(mask, q.dtype))
            return found.to(value.dtype), None
        visible = visible_keys(mask)
        last = visible[:, 0, -1].expand(len(q), -1)
        if not need_weights and _is_plain(mask, visible):
            groups = q.shape[1] // key.shape[1]
            k, v = repeated(key, groups), repeated(value, groups)
            return self._chained(q * q.shape[-1] ** 0.5, k, v, band, last, dropout=dropout)
        scores = _scores(q, key, softcap)
        if mask.is_floating_point():
            scores = scores + torch.where(visible, mask, 0).to(scores)
        seen = visible | ~visible.any(-1, keepdim=True)
        return self._mixed(self._chain_weights(scores, band, seen), value, dropout)

    def _mixed(self, weights: Tensor, value: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
        weights = F.dropout(weights.to(value.dtype), p=dropout, training=self.training)
        return head_products(weights, value), weights

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


@dataclass(frozen=True)
class KeyWindows:
    """What the queries of a mask see; * is [B or 1, H or 1, Q].

    Attributes:
        bias: Added to scores, [*, K]: the smallest number of its dtype at keys that are not visible.
        keys: The key in each slot of the window, int64 [*, T], different ones in each row.  Slots are in the order of
            keys, and the last one is the last visible key.
        filled: Whether there is a visible key in the slot, bool [*, T].  Visible keys fill the slots from the last one.
        visible: bool [*, K]; all keys in rows without a visible key, where eager attention is uniform.
    """

    bias: Tensor
    keys: Tensor
    filled: Tensor
    visible: Tensor


def find_windows(mask: Tensor, window: int, dtype: torch.dtype, *, far: bool) -> KeyWindows:
    """Find the last ``window`` visible keys of every query; with ``far`` those before them are visible as well.

    The mask [B or 1, H or 1, Q, K] is bool, True where a key is visible, or floating, added to scores of ``dtype``.
    """
    visible = visible_keys(mask)
    number = mask.shape[-1]
    position = torch.arange(number, device=mask.device, dtype=torch.int32)
    # Hidden keys come after all visible ones, as other numbers, so that no key is in two slots.
    last = torch.where(visible, position, position - number).topk(min(window, number)).values.flip(-1)
    filled = last >= 0
    keys = torch.where(filled, last, last + number).long()
    if not far:
        visible = torch.zeros_like(visible).scatter(-1, keys, filled)
    added = torch.zeros((), dtype=dtype, device=mask.device) if mask.dtype == torch.bool else mask.to(dtype)
    bias = torch.where(visible, added, torch.finfo(dtype).min)
    return KeyWindows(bias, keys, filled, visible | ~filled.any(-1, keepdim=True))


def boltzmann_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    r"""Attend with the couplings of a module; scores and marginals are computed in float32 or more.

    Queries are [B, H, Q, D], keys and values, past and present, [B, H_kv, K, D] with H a multiple of H_kv.  The mask
    [B or 1, 1 or H, Q, K] is bool, True where a key is visible, or floating, added to the scores.  The submodule
    ``boltzmann`` has the couplings.  ``scaling`` is 1/√D if None, and a ``softcap`` among the arguments limits scores.

    Returns:
        Outputs [B, Q, H, D]; and weights [B, H, Q, K], None unless ``output_attentions`` asks for them.

    Raises:
        UnsupportedError: The module has no couplings, there is no mask, or the model needs another attention.
    """
    heads = module._modules.get(NAME)
    if heads is None:
        raise UnsupportedError(
            "attn_implementation",
            f"expected a model with couplings for {NAME!r}, got {type(module).__name__} without; call "
            "diabat.huggingface.convert(model).",
        )
    refuse_others(NAME, kwargs)
    if attention_mask is None:
        raise UnsupportedError(
            "attention_mask",
            f"expected a mask [B, 1, Q, K], from which attn_implementation {NAME!r} finds the window of every query, "
            "got None.",
        )
    wide = torch.promote_types(query.dtype, torch.float32)
    with without_autocast(query):
        scaled = query.to(wide) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        # Called, since peft may have wrapped the couplings (modules_to_save).
        mixed, weights = heads(
            scaled,
            key,
            value,
            attention_mask,
            dropout=dropout,
            need_weights=kwargs.get("output_attentions"),
            softcap=kwargs.get("softcap"),
        )
    return mixed.transpose(1, 2).contiguous(), weights


def _scores(q: Tensor, key: Tensor, softcap: float | None) -> Tensor:
    """Scores [B, H, Q, K], soft-capped as Gemma 2 does."""
    scores = head_products(q, key.mT)
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _is_plain(mask: Tensor, visible: Tensor) -> bool:
    """Whether a mask is causal with the keys that the last query sees, and adds nothing; not in graphs."""
    if torch.compiler.is_compiling():
        return False
    queries, keys = mask.shape[-2:]
    causal = causal_keys(queries, keys, visible[:, 0, -1], mask.device)
    return torch.equal(visible, causal) and not (mask.is_floating_point() and bool(mask[visible].any()))


def parameter_groups(
    model: nn.Module, lr: float, coupling_lr: float, weight_decay: float = 0.01
) -> list[dict[str, Any]]:
    """Up to three groups of the trained parameters, for an optimiser of torch: decayed, other, couplings (``name``).

    ``Trainer(model, args, optimizers=(torch.optim.AdamW(parameter_groups(model, 2e-5, 3e-3)), None))`` takes its
    schedule from ``args`` and scales all rates by it.

    Args:
        model: A converted model, or a model of peft around one.
        lr: Rate of all parameters but the couplings; also of the features that couplings of tokens depend on.
        coupling_lr: Rate of the couplings (and of parameters that a backend learns); they are sums of few terms, and
            rates of about 3e-3 moved them in our runs, where 3e-4 did not.
        weight_decay: Of matrices; vectors (biases, norms) and couplings do not decay.

    Raises:
        ArgumentError: If a rate is invalid, or no coupling is trained.
    """
    check_positive("lr", lr)
    check_positive("coupling_lr", coupling_lr)
    check_number("weight_decay", weight_decay, "[0, inf)")
    heads = [part for part in model.modules() if isinstance(part, BoltzmannHeads)]
    if not heads:
        raise ArgumentError(
            "model",
            f"expected a model with couplings (diabat.huggingface.convert), got {type(model).__name__}.",
        )
    features = ("key_couplings.first", "key_couplings.second")  # matrices as those of keys and queries
    couplings = [
        p for part in heads for name, p in part.named_parameters() if p.requires_grad and name not in features
    ]
    if not couplings:
        raise ArgumentError(
            "model",
            f"expected couplings that are trained, got frozen ones; adapters of peft need modules_to_save=[{NAME!r}].",
        )
    own = {id(p) for p in couplings}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    groups = [
        {"name": "decayed", "params": [p for p in others if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
        {"name": "other", "params": [p for p in others if p.ndim < 2], "lr": lr, "weight_decay": 0.0},
        {"name": "couplings", "params": couplings, "lr": coupling_lr, "weight_decay": 0.0},
    ]  # fmt: skip
    return [group for group in groups if group["params"]]
