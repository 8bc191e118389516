"""The attention of a model with some of its heads ablated, behind the attention interface of transformers.

While an :class:`Ablation` is applied, every attention of its model passes through it.  Heads that are present are
computed by the implementation that the model had before, whatever it does (soft caps, sinks, calibration).  Absent ones
get

    mean      ĥ = Σ_k v_k [k visible] / Σ_k [k visible]
    scaled    ĥ = softmax(ε q kᵀ/√d + mask) v      (GAC, eq. 4), by the model's own implementation
    zero      ĥ = 0
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from diabat.attention.heads.pretrained import pretrained_model, register_attention
from diabat.checks import check_choice, check_positive
from diabat.extras import extra
from diabat.samplers.base import UnsupportedError

Kind = Literal["mean", "scaled", "zero"]
Attention = Callable[..., tuple[Tensor, Tensor | None]]
NAME = "diabat_ablation"

_APPLIED: ContextVar[Ablation | None] = ContextVar(NAME, default=None)


class Ablation:
    """Heads of a model that can be absent while it is applied; afterwards the model is as it was.

    The model is then in evaluation mode, without gradients and autocast.  The attention of other models is not touched.

    Args:
        model: A causal language model of transformers, or a PEFT model around one.
        kind: What an absent head gives; see the module.
        epsilon: ε of ``scaled``.

    Attributes:
        present: bool [C, H] by attention module: which heads the C rows of the batch have.  All, where there is none.
        alike: The attention module whose inputs are the same in all rows, if there is one: computed for one row.
        watcher: Called with the module of every attention that runs, if not None.

    Raises:
        ValueError: If an option is out of range, or the model is none of transformers.
    """

    def __init__(self, model: Any, kind: Kind = "mean", epsilon: float = 1e-5) -> None:
        check_choice("ablation", kind, get_args(Kind))
        check_positive("epsilon", epsilon)
        pretrained_model(model)
        self.model: Any = model
        self.kind, self.epsilon = kind, epsilon
        self.present: dict[nn.Module, Tensor] = {}
        self.alike: nn.Module | None = None
        self.watcher: Callable[[nn.Module], None] | None = None
        self._own: dict[nn.Module, Attention] = {}
        self._by_config: dict[int, str] = {}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the attention of the model pass through here.

        Raises:
            UnsupportedError: If the attention of the model is of a kind that takes no mask.
        """
        register_attention(NAME, _attend)
        self._own.clear()
        before = _implementations(self.model.config)
        for name in before.values():
            if name == NAME or any(kind in name for kind in ("flash", "flex", "paged")):
                raise UnsupportedError(
                    "model",
                    f"expected attention that takes a mask ('eager', 'sdpa' or one of diabat), got {name!r}; call "
                    "model.set_attn_implementation('sdpa').",
                )
        parts = {id(getattr(self.model.config, key)): name for key, name in before.items() if key}
        self._by_config = {id(self.model.config): before[""], **parts}
        token = _APPLIED.set(self)
        try:
            self.model.set_attn_implementation(NAME)
            with (
                evaluating(self.model),
                torch.no_grad(),
                torch.autocast(self.model.device.type, enabled=False),
            ):
                yield
        finally:
            _APPLIED.reset(token)
            self.model.set_attn_implementation(before)
            self.present, self.alike = {}, None

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs [B, Q, H, D] of an attention with queries [B, H, Q, d], keys [B, G, K, d] and values [B, G, K, D]."""
        if self.watcher is not None:
            self.watcher(module)
        attention = self._attention_of(module)
        present = self.present.get(module)
        if present is None:
            return attention(module, query, key, value, attention_mask, **options)
        if module is self.alike:
            query, key, value = query[:1], key[:1], value[:1]
            attention_mask = None if attention_mask is None else attention_mask[:1]
        heads, _ = attention(module, query, key, value, attention_mask, **options)
        if self.kind == "mean":
            absent = mean_of_visible(query, value, attention_mask)
        elif self.kind == "scaled":
            absent, _ = attention(module, self.epsilon * query, key, value, attention_mask, **options)
        else:
            absent = torch.zeros_like(heads)
        return torch.where(present[:, None, :, None].to(heads.device), heads, absent), None

    def _attention_of(self, module: nn.Module) -> Attention:
        """What the model would have called."""
        if module not in self._own:
            name = self._by_config.get(id(module.config), self._by_config[id(self.model.config)])
            library = extra("transformers")
            self._own[module] = eager(module) if name == "eager" else library.AttentionInterface()[name]
        return self._own[module]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and every module of it back into its own."""
    training = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in training:
            module.training = mode


def mean_of_visible(query: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of the visible values, [B, Q, H, D], for queries [B, H, Q, d] and values [B, G, K, D].

    A row that sees nothing (padding) gets the mean of all values, as softmax gives it.
    """
    length = value.shape[-2]
    if mask is None:
        visible = torch.ones(1, 1, query.shape[-2], length, dtype=torch.bool, device=value.device)
    elif mask.dtype == torch.bool:
        visible = mask[..., :length]
    else:
        visible = mask[..., :length] > torch.finfo(mask.dtype).min / 2
    counted = torch.promote_types(value.dtype, torch.float32)  # half precision does not count beyond 256
    visible = (visible | ~visible.any(-1, keepdim=True)).to(counted)
    heads = (visible / visible.sum(-1, keepdim=True)).to(value.dtype) @ value  # [B, G, Q, D]
    return heads.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2)


def eager(module: nn.Module) -> Attention:
    """Attention written out in the file of the model, which is what ``eager`` stands for.

    Raises:
        UnsupportedError: If there is none.
    """
    for kind in type(module).__mro__:
        found = vars(sys.modules[kind.__module__]).get("eager_attention_forward")
        if found is not None:
            return found
    raise UnsupportedError(
        "model", f"expected a file with eager_attention_forward, got that of {type(module).__name__}."
    )


def _implementations(config: Any) -> dict[str, str]:
    """Attention of a configuration ("") and of those inside it, as ``set_attn_implementation`` takes it."""
    parts = {key: getattr(config, key) for key in config.sub_configs}
    known = {key: part._attn_implementation for key, part in parts.items() if part is not None}
    return {
        "": config._attn_implementation or "eager",
        **{key: name or "eager" for key, name in known.items()},
    }


def _attend(module: nn.Module, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    ablation = _APPLIED.get()
    if ablation is None:
        raise UnsupportedError(
            "attn_implementation",
            f"expected {NAME!r} inside a game on heads only, got it in a model by itself.",
        )
    return ablation.attend(module, *arguments, **options)
