r"""Boltzmann attention of one attention module, and the function behind ``attn_implementation="boltzmann"``.

Queries, keys and values are the module's; couplings, and what is computed with them, are those of
:mod:`diabat.attention.core`.  What a query sees is read from the mask, so that static caches, padding on either side,
sliding windows, packed sequences and prompts in chunks need no rules of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from diabat.attention.core import Attention, Law, attend
from diabat.attention.coupled import CoupledLayer, coupling_parameters
from diabat.attention.couplings import WindowCouplings
from diabat.attention.visible import Visible, read_mask
from diabat.checks import ArgumentError, check_number, check_positive
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.pretrained import refuse_others
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.state import sampler_parameters

NAME = "boltzmann"
"""Of the attention implementation, and of the submodule with the couplings."""
ALWAYS_WEIGHTS = "always_weights"
"""Attribute of an attention module that does not pass ``output_attentions`` on: weights are formed unasked."""


class _Window(WindowCouplings):
    def forward(self, attended: Callable[[WindowCouplings], Any]) -> Any:
        """Attend inside of a call: parameters that accelerate has moved away are here only then."""
        return attended(self)


class BoltzmannHeads(CoupledLayer):
    """Couplings of the keys of one attention module, per query head, in float32 or float64.

    Attributes:
        couplings: J over the last keys of a query, 0 at first.

    Raises:
        ValueError: If an option is invalid.
        UnsupportedError: If the backend does not support the window or the estimator.
    """

    def __init__(
        self,
        num_heads: int,
        options: BoltzmannOptions,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        own = _Window(num_heads, options.window, bandwidth=options.bandwidth, device=device, dtype=dtype)
        self._couple(own, "h+J", **options.law())
        self.sampler.to(device=device, dtype=dtype)

    def forward(
        self,
        q: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Mix values; and normalised weights, [B, H, Q, K], or None unless they are needed.

        Queries are [B, H, Q, D], keys and values [B, H_kv, K, D]; the mask [B or 1, 1 or H, Q, K] is bool, True where a
        key is visible, or added to the scores.  ``scale`` is 1/√D if None, ``softcap`` c makes scores c tanh(s / c)
        before all else, and ``dropout`` is that of the weights.
        """
        if (scale, softcap) != (self._law.scale, self._law.softcap):  # the same in every pass of a module
            self._law = replace(self._law, scale=scale, softcap=softcap)

        def attended(couplings: WindowCouplings) -> tuple[Tensor, Tensor | None]:
            return self._attend(
                q, key, value, couplings, _visible(mask),
                dropout=dropout if self.training else 0.0, need_weights=need_weights,
            )  # fmt: skip

        return cast("tuple[Tensor, Tensor | None]", self.couplings(attended))


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
    heads, softcap = module._modules.get(NAME), kwargs.get("softcap")
    if heads is None and getattr(getattr(module, "config", None), NAME, None) is None:
        got = f"{type(module).__name__} without; call diabat.huggingface.convert(model)"
        raise UnsupportedError("attn_implementation", f"a model with couplings for {NAME!r}", got)
    refuse_others(NAME, kwargs)
    if attention_mask is None:
        use = f"from which attn_implementation {NAME!r} finds the window of every query"
        raise UnsupportedError("attention_mask", f"a mask [B, 1, Q, K], {use}", "None")
    if (shown := kwargs.get("output_attentions")) is None:
        shown = getattr(module, ALWAYS_WEIGHTS, False)
    if heads is None:  # a layer that stays softmax
        visible, dropout = _visible(attention_mask), dropout if module.training else 0.0
        law = Law(scale=scaling, softcap=softcap)
        mixed, weights = attend(Attention(law, query, key, value, visible, dropout, need_weights=shown), None)
    else:  # called, since peft may have wrapped the couplings (modules_to_save)
        mixed, weights = heads(
            query, key, value, attention_mask,
            scale=scaling, softcap=softcap, dropout=dropout, need_weights=shown,
        )  # fmt: skip
    return mixed.transpose(1, 2).contiguous(), weights


def _visible(mask: Tensor) -> Visible:
    """What a mask of transformers shows, and adds to scores."""
    return Visible.of(*read_mask("attention_mask", mask))


def parameter_groups(
    model: nn.Module, lr: float, coupling_lr: float, weight_decay: float = 0.01
) -> list[dict[str, Any]]:
    """Up to three groups of the trained parameters, for an optimiser of torch: decayed, other, couplings (``name``).

    ``Trainer(model, args, optimizers=(torch.optim.AdamW(parameter_groups(model, 2e-5, 3e-3)), None))`` takes its
    schedule from ``args`` and scales all rates by it.

    Args:
        model: A converted model, or a model of peft around one.
        lr: Rate of all parameters but the couplings.
        coupling_lr: Rate of the couplings (and of parameters that a backend learns); they are sums of few terms, and
            rates of about 3e-3 moved them in our runs, where 3e-4 did not.
        weight_decay: Of matrices; vectors (biases, norms) and couplings do not decay.

    Raises:
        ArgumentError: If a rate is invalid, or no coupling is trained.
    """
    check_positive("lr", lr)
    check_positive("coupling_lr", coupling_lr)
    check_number("weight_decay", weight_decay, "[0, inf)")
    couplings = [p for p in (*coupling_parameters(model), *sampler_parameters(model)) if p.requires_grad]
    if not couplings:
        fix = f"convert it (diabat.huggingface.convert), and give adapters of peft modules_to_save=[{NAME!r}]"
        raise ArgumentError("model", "couplings that are trained", f"none in {type(model).__name__}; {fix}")
    own = {id(p) for p in couplings}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    groups = [
        {"name": "decayed", "params": [p for p in others if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
        {"name": "other", "params": [p for p in others if p.ndim < 2], "lr": lr, "weight_decay": 0.0},
        {"name": "couplings", "params": couplings, "lr": coupling_lr, "weight_decay": 0.0},
    ]  # fmt: skip
    return [group for group in groups if group["params"]]
