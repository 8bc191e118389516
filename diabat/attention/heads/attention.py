"""The attention of a model with some of its heads absent, behind the attention interface of transformers.

While a :class:`Switch` is open, every attention of its model passes through it.  Heads that are present are computed by
the implementation that the model had before, whatever it does (soft caps, sinks, calibration); absent ones get

    uniform   ĥ = Σ_k v_k [k visible] / Σ_k [k visible]
    scaled    ĥ = softmax(ε q kᵀ/√d + mask) v      (arXiv:2505 GAC, eq. 4), by the model's own implementation
    dropped   ĥ = 0
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diabat.checks import ArgumentError, check_choice, check_positive
from diabat.extras import extra
from diabat.samplers.base import UnsupportedError

Absent = Literal["uniform", "scaled", "dropped"]
Attention = Callable[..., tuple[Tensor, Tensor | None]]
ABSENT = ("uniform", "scaled", "dropped")
NAME = "diabat_coalitions"

_OPEN: ContextVar[Switch | None] = ContextVar("diabat_coalitions", default=None)


class Switch:
    """While it is open the heads of a model can be absent; afterwards the model is as it was.

    The model is then in evaluation mode, without gradients and autocast.  The attention of other models is not touched.

    Args:
        model: A causal language model of transformers, or a PEFT model around one.
        absent: What an absent head gives; see the module.
        epsilon: ε of ``scaled``.

    Attributes:
        present: bool [C, H] by attention module: which heads the C rows of the batch have.  All, where there is none.
        alike: The attention module whose inputs are the same in all rows, if there is one: computed for one row.
        seen: Called with (module, query, key) of every attention that runs, if not None.

    Raises:
        ValueError: If an option is out of range, or the model is none of transformers.
    """

    def __init__(self, model: Any, absent: Absent = "uniform", epsilon: float = 1e-5) -> None:
        check_choice("absent", absent, ABSENT)
        check_positive("epsilon", epsilon)
        kind = extra("transformers").PreTrainedModel
        if not isinstance(model, nn.Module) or not any(isinstance(part, kind) for part in model.modules()):
            raise ArgumentError("model", f"expected a model of transformers, got {type(model).__name__}.")
        self.model: Any = model
        self.absent, self.epsilon = absent, epsilon
        self.present: dict[nn.Module, Tensor] = {}
        self.alike: nn.Module | None = None
        self.seen: Callable[[nn.Module, Tensor, Tensor], None] | None = None
        self._own: dict[nn.Module, Attention] = {}
        self._by_config: dict[int, str] = {}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let the attention of the model pass through here.

        Raises:
            UnsupportedError: If the attention of the model is of a kind that takes no mask.
        """
        _register()
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
        training = [(module, module.training) for module in self.model.modules()]
        token = _OPEN.set(self)
        try:
            self.model.eval()
            self.model.set_attn_implementation(NAME)
            with torch.no_grad(), torch.autocast(self.model.device.type, enabled=False):
                yield
        finally:
            _OPEN.reset(token)
            self.model.set_attn_implementation(before)
            for module, mode in training:
                module.training = mode
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
        if self.seen is not None:
            self.seen(module, query, key)
        attention = self._attention_of(module)
        present = self.present.get(module)
        if present is None:
            return attention(module, query, key, value, attention_mask, **options)
        if module is self.alike:
            query, key, value = query[:1], key[:1], value[:1]
            attention_mask = None if attention_mask is None else attention_mask[:1]
        heads, _ = attention(module, query, key, value, attention_mask, **options)
        if self.absent == "uniform":
            without = uniform(query, value, attention_mask)
        elif self.absent == "scaled":
            without, _ = attention(module, self.epsilon * query, key, value, attention_mask, **options)
        else:
            without = torch.zeros_like(heads)
        return torch.where(present[:, None, :, None].to(heads.device), heads, without), None

    def _attention_of(self, module: nn.Module) -> Attention:
        """What the model would have called."""
        if module not in self._own:
            name = self._by_config.get(id(module.config), self._by_config[id(self.model.config)])
            library = extra("transformers")
            self._own[module] = eager(module) if name == "eager" else library.AttentionInterface()[name]
        return self._own[module]


def uniform(query: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
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


def _register() -> None:
    library = extra("transformers")
    masking = extra("transformers.masking_utils")
    library.AttentionInterface.register(NAME, _attend)
    # Without it the mask is None, and attention is silently not causal.
    library.AttentionMaskInterface.register(NAME, masking.eager_mask)


def _attend(module: nn.Module, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    switch = _OPEN.get()
    if switch is None:
        raise UnsupportedError(
            "attn_implementation",
            f"expected {NAME!r} inside a game on heads only, got it in a model by itself.",
        )
    return switch.attend(module, *arguments, **options)
