"""The attention of a model with some of its heads ablated, behind the attention interface of transformers.

While an :class:`Ablation` is applied, every attention of its model passes through it.  Heads that are present are
computed by the implementation that the model had before, whatever it does (soft caps, sinks, calibration).  Absent ones
get

    uniform     ĥ = Σ_k v_k [k visible] / Σ_k [k visible]
    scaled      ĥ = softmax(ε q kᵀ/√d + mask) v      (GAC, eq. 4, ε = 1e-5), by the model's own implementation
    zero        ĥ = 0
    mean        ĥ = mean of the head's output over all positions of all samples
    corrupted   ĥ = the head's output at this position of another sequence
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from diabat.attention.evaluating import evaluating
from diabat.attention.visible import visible_in
from diabat.checks import check_choice
from diabat.extras import extra
from diabat.huggingface.pretrained import ABLATION as NAME
from diabat.huggingface.pretrained import pretrained_model, register_attention, switch_attention
from diabat.samplers.capabilities import UnsupportedError

Kind = Literal["uniform", "scaled", "zero", "mean", "corrupted"]
Attention = Callable[..., tuple[Tensor, Tensor | None]]

_EPSILON = 1e-5
_APPLIED: ContextVar[Ablation | None] = ContextVar(NAME, default=None)


class Ablation:
    """Heads of a model that can be absent while it is applied; afterwards the model is as it was.

    The model is then in evaluation mode, without gradients and autocast.  The attention of other models is not touched.

    Args:
        model: A causal language model of transformers, or a PEFT model around one.
        kind: What an absent head gives; see the module.

    Attributes:
        present: bool [C, H] by attention module: which heads the C rows of the batch have.  All, where there is none.
        replacements: What absent heads give with ``mean`` and ``corrupted``, [1, 1 or Q, H, D] by attention module.
        recorded: Outputs [1, Q, H, D] by attention module are put here while it is not None; all heads are present.
        alike: The attention module whose inputs are the same in all rows, if there is one: computed for one row.
        former: The attention that the model had before, by the identity of a configuration.

    Raises:
        ValueError: If an option is out of range, or the model is none of transformers.
    """

    def __init__(self, model: Any, kind: Kind = "uniform") -> None:
        check_choice("ablation", kind, get_args(Kind))
        self.base = pretrained_model(model)
        self.model, self.kind = model, kind
        self.present: dict[nn.Module, Tensor] = {}
        self.replacements: dict[nn.Module, Tensor] = {}
        self.recorded: dict[nn.Module, Tensor] | None = None
        self.alike: nn.Module | None = None
        self.former: dict[int, str] = {}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the attention of the model pass through here.

        Raises:
            UnsupportedError: If its attention is of a kind that takes no mask, or not behind the AttentionInterface.
        """
        register_attention(NAME, _attend)
        configs = [vars(module)["config"] for module in self.base.modules() if "config" in vars(module)]
        self.former = {id(config): config._attn_implementation or "eager" for config in configs}
        for name in self.former.values():
            if name == NAME or any(kind in name for kind in ("flash", "flex", "paged")):
                expected = "attention that takes a mask ('eager', 'sdpa' or one of diabat)"
                got = f"{name!r}; call model.set_attn_implementation('sdpa')"
                raise UnsupportedError("model", expected, got)
        former, token = switch_attention(self.base, NAME), _APPLIED.set(self)
        try:
            device = self.base.device.type
            with evaluating(self.model), torch.no_grad(), torch.autocast(device, enabled=False):
                yield
        finally:
            _APPLIED.reset(token)
            self.base.set_attn_implementation(former)
            self.present, self.alike = {}, None


def mean_of_visible(query: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of the visible values, [B, Q, H, D], for queries [B, H, Q, d] and values [B, G, K, D].

    A row that sees nothing (padding) gets the mean of all values, as softmax gives it.
    """
    length = value.shape[-2]
    if mask is None:
        visible = torch.ones(1, 1, query.shape[-2], length, dtype=torch.bool, device=value.device)
    else:
        visible = visible_in(mask[..., :length])
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
        attention = vars(sys.modules[kind.__module__]).get("eager_attention_forward")
        if attention is not None:
            return attention
    raise UnsupportedError("model", "a file with eager_attention_forward", f"that of {type(module).__name__}")


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Outputs [B, Q, H, D] of an attention with queries [B, H, Q, d], keys [B, G, K, d] and values [B, G, K, D]."""
    ablation = _APPLIED.get()
    if ablation is None:
        expected = f"{NAME!r} inside a game on heads only"
        raise UnsupportedError("attn_implementation", expected, "it in a model by itself")
    name, interface = ablation.former[id(module.config)], extra("transformers").AttentionInterface()
    attention: Attention = eager(module) if name == "eager" else interface[name]
    present = ablation.present.get(module)
    if present is None:
        heads, weights = attention(module, query, key, value, mask, **options)
        if ablation.recorded is not None:
            ablation.recorded[module] = heads
        return heads, weights
    if module is ablation.alike:
        query, key, value = query[:1], key[:1], value[:1]
        mask = None if mask is None else mask[:1]
    heads, _ = attention(module, query, key, value, mask, **options)
    if ablation.kind == "uniform":
        absent = mean_of_visible(query, value, mask)
    elif ablation.kind == "scaled":
        absent, _ = attention(module, _EPSILON * query, key, value, mask, **options)
    elif ablation.kind == "zero":
        absent = torch.zeros_like(heads)
    else:
        absent = ablation.replacements[module].to(heads)
    return torch.where(present[:, None, :, None].to(heads.device), heads, absent), None
