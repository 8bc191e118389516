"""Output projections of the attention of a decoder, and their slices W_O[h], one per query head.

The effective weight is differentiable in every factor of it:

    W_O = W_base + Σ_adapters scaling · B A            [hidden, H d]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.heads.ablation import Ablation
from diabat.attention.heads.decoder import find_decoder, forward_logits
from diabat.extras import extra
from diabat.samplers.base import UnsupportedError


@dataclass(frozen=True)
class OutputProjection:
    """The linear map behind the heads of one layer.

    Attributes:
        layer: Position of the block.
        module: The projection: nn.Linear, Conv1D of transformers, or a LoRA layer of peft around one of them.
        heads: Query heads H.
        head_dim: d, the size of the output of one head: the input size of the module divided by H.
    """

    layer: int
    module: nn.Module
    heads: int
    head_dim: int

    def check(self) -> None:
        """Refuse what has no effective weight.

        Raises:
            UnsupportedError: If the weights are quantised or merged with an adapter, or an adapter is not plain LoRA.
        """
        if type(self.module) not in _plain() and isinstance(
            self.module, extra("peft.tuners.lora.layer").LoraLayer
        ):
            self._check_adapters()
        base = self.base()
        weight = vars(base)["_parameters"].get("weight")
        if type(base) not in _plain() or type(weight) is not nn.Parameter or not weight.is_floating_point():
            raise UnsupportedError(
                "model",
                f"expected floating-point weights in a Linear or Conv1D at the output projection of layer "
                f"{self.layer}, got {type(base).__name__}; load the model without quantization.",
            )

    def slices(self) -> Tensor:
        """Effective slices W_O[h], [H, hidden, d]: the layer writes Σ_h W_O[h] o_h.

        They are differentiable in the base weight and in the active adapters, and have no LoRA dropout.

        Raises:
            UnsupportedError: If there is none; see :meth:`check`.
        """
        self.check()
        module: Any = self.module
        weight: Tensor = self.base().weight
        for name in self.adapters():
            weight = weight + module.get_delta_weight(name)
        return self.split(weight)

    def base(self) -> Any:
        """Return the module that holds the base weight: the projection itself, or the one below its adapters."""
        module: Any = self.module
        return module.get_base_layer() if hasattr(module, "get_base_layer") else module

    def split(self, weight: Tensor) -> Tensor:
        """Slices [H, hidden, d] of a weight of the module, or of a gradient of it, in the layout of the module."""
        flat = weight if type(self.base()) is nn.Linear else weight.T  # Conv1D is transposed
        return flat.unflatten(1, (self.heads, self.head_dim)).transpose(0, 1)

    def adapters(self) -> tuple[str, ...]:
        """Names of the active LoRA adapters of the projection; none if it has none or they are disabled."""
        module: Any = self.module
        if type(module) in _plain() or module.disable_adapters:
            return ()
        return tuple(name for name in module.active_adapters if name in module.lora_A)

    def _check_adapters(self) -> None:
        module: Any = self.module
        if module.merged:
            raise UnsupportedError(
                "model",
                f"expected adapters beside the weights, got one merged into the output projection of layer "
                f"{self.layer}; call model.unmerge_adapter().",
            )
        variants = [
            type(kind).__name__ for name, kind in module.lora_variant.items() if name in self.adapters()
        ]
        if variants:
            raise UnsupportedError(
                "model",
                f"expected plain LoRA at the output projection of layer {self.layer}, got {variants[0]}; train "
                "the adapter without use_dora and other variants.",
            )


def find_projections(model: Any) -> dict[int, OutputProjection]:
    """Find the output projection of every layer by running the model on two tokens, not by names.

    It is the first part of an attention module that runs after the attention itself.

    Args:
        model: A causal language model of transformers, or a PEFT model around one.

    Returns:
        The projections by layer, not yet checked.

    Raises:
        ValueError: If the model is not a model of transformers.
        UnsupportedError: If its attention is not behind the AttentionInterface, or no projection follows it.
    """
    ablation = Ablation(model)
    decoder = find_decoder(ablation)
    attended: set[nn.Module] = set()
    behind: dict[
        nn.Module, tuple[nn.Module, int]
    ] = {}  # by attention module: what runs next, and its input size

    def note(parent: nn.Module, child: nn.Module) -> Any:
        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            if parent in attended and parent not in behind:
                first = arguments[0] if arguments else None
                behind[parent] = (child, first.shape[-1] if isinstance(first, Tensor) else 0)

        return child.register_forward_pre_hook(hook)

    hooks = [note(site.module, child) for site in decoder.sites.values() for child in site.module.children()]
    try:
        ablation.watcher = attended.add
        with ablation.applied():
            forward_logits(model, decoder.head, torch.zeros(1, 2, dtype=torch.int64), torch.tensor([-1]))
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for layer, site in decoder.sites.items():
        following, width = behind.get(site.module, (None, 0))
        if following is None or not width or width % site.heads:
            raise UnsupportedError(
                "model", f"expected an output projection behind the attention of layer {layer}, found none."
            )
        found[layer] = OutputProjection(layer, following, site.heads, width // site.heads)
    return found


def _plain() -> tuple[type[nn.Module], ...]:
    return nn.Linear, extra("transformers.pytorch_utils").Conv1D
