"""Output projections of the attention of a decoder, and their slices W_O[h], one per query head.

The effective weight is differentiable in every factor of it:

    W_O = W_base + Σ_adapters scaling · B A            [hidden, H d]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.evaluating import evaluating
from diabat.extras import extra
from diabat.huggingface.pretrained import attention_modules, pretrained_model, query_heads
from diabat.samplers.capabilities import UnsupportedError


@dataclass(frozen=True)
class OutputProjection:
    """The linear map behind the heads of one layer.

    Attributes:
        layer: Position of the block.
        module: The projection: nn.Linear, Conv1D of transformers, or a LoRA layer of peft around one of them.
        heads: Query heads H.
    """

    layer: int
    module: Any
    heads: int

    def slices(self) -> Tensor:
        """Effective slices W_O[h], [H, hidden, d]: the layer writes Σ_h W_O[h] o_h.

        They are differentiable in the base weight and in the active adapters, and have no LoRA dropout.

        Raises:
            UnsupportedError: If the weights are quantised or merged with an adapter, or an adapter is not plain LoRA.
        """
        adapted = hasattr(self.module, "lora_A")
        adapters = self._adapters() if adapted else []
        base = self.module.get_base_layer() if adapted else self.module
        weight: Any = vars(base)["_parameters"].get("weight")
        plain = (nn.Linear, extra("transformers.pytorch_utils").Conv1D)
        if type(base) not in plain or type(weight) is not nn.Parameter or not weight.is_floating_point():
            raise UnsupportedError(
                "model",
                f"expected floating-point weights in a Linear or Conv1D at the output projection of layer "
                f"{self.layer}, got {type(base).__name__}; load the model without quantization.",
            )
        for name in adapters:
            weight = weight + self.module.get_delta_weight(name)
        flat = weight if type(base) is nn.Linear else weight.T  # Conv1D is transposed
        return flat.unflatten(1, (self.heads, -1)).transpose(0, 1)

    def _adapters(self) -> list[str]:
        """Names of the active LoRA adapters; none if they are disabled."""
        module = self.module
        if module.merged:
            raise UnsupportedError(
                "model",
                f"expected adapters beside the weights, got one merged into the output projection of layer "
                f"{self.layer}; call model.unmerge_adapter().",
            )
        names = [name for name in module.active_adapters if name in module.lora_A]
        active = [] if module.disable_adapters else names
        variants = [
            type(module.lora_variant[name]).__name__ for name in active if name in module.lora_variant
        ]
        if variants:
            raise UnsupportedError(
                "model",
                f"expected plain LoRA at the output projection of layer {self.layer}, got {variants[0]}; train "
                "the adapter without use_dora and other variants.",
            )
        return active


def find_projections(model: Any) -> dict[int, OutputProjection]:
    """Find the output projection of every layer by running the model on two tokens, not by names.

    It is the last part of an attention module that runs, dropout aside.  Its weights are not yet checked.

    Raises:
        ValueError: If the model is not a model of transformers.
        UnsupportedError: If it has no attention modules of transformers, or no projection follows their heads.
    """
    attention, last = attention_modules(pretrained_model(model)), dict[int, tuple[nn.Module, int]]()

    def note(layer: int) -> Any:
        return lambda child, given: last.update({layer: (child, given[0].shape[-1] if given else 0)})

    hooks = [
        child.register_forward_pre_hook(note(layer))
        for layer, module in attention.items()
        for child in module.children()
        if not isinstance(child, nn.Dropout)
    ]
    try:
        with evaluating(model), torch.no_grad():
            tokens = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for layer, module in attention.items():
        (child, width), heads = last.get(layer, (None, 0)), query_heads(module)
        if child is None or not width or width % heads:
            raise UnsupportedError(
                "model", f"expected an output projection behind the attention of layer {layer}, found none."
            )
        found[layer] = OutputProjection(layer, child, heads)
    return found
