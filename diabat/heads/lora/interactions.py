"""How the heads of a trained decoder interact.

    result = HeadInteractions(model, layers=[19]).measure(batches)
    result[19].omega, result[19].rho, result[19].G, result[19].gamma

Players are query heads, also where they share a key/value head.  The equations are in
:mod:`diabat.heads.lora.couplings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diabat.attention.evaluating import evaluating
from diabat.checks import ArgumentError, ArgumentTypeError
from diabat.heads.lora import couplings
from diabat.heads.lora.losses import counted_tokens, total_cross_entropy
from diabat.heads.lora.outputs import HeadOutputs

Batch = Mapping[str, Any]
_TARGETS = ("labels", "shift_labels", "num_items_in_batch")


@dataclass(frozen=True, eq=False)
class LayerInteraction:
    """The interaction of the H query heads of one layer; matrices are float64 [H, H] on the CPU.

    Attributes:
        layer: Position of the block.
        tokens: How many tokens were counted.
        cross_entropy: Mean over them, in nats.
        omega: ω, cosines of the output slices (eq. 4).
        rho: ρ, cosines of the gradients at the head outputs (eq. 5).
        written: ω', cosines of what the heads write; the same in every basis of a head.
        reachable: ρ', cosines of the gradients that the heads can reach; the same in every basis of a head.
        covariance: That of the H d features over the tokens, [H d, H d].
    """

    layer: int
    tokens: int
    cross_entropy: float
    omega: Tensor
    rho: Tensor
    written: Tensor
    reachable: Tensor
    covariance: Tensor

    @property
    def G(self) -> Tensor:  # noqa: N802 - the paper's name
        """G = ω ∘ ρ (eq. 6)."""
        return couplings.interaction(self.omega, self.rho)

    @property
    def gamma(self) -> float:
        """Γ = ‖G - I‖_F."""
        return float(couplings.interaction_strength(self.G))

    @property
    def invariant_G(self) -> Tensor:  # noqa: N802
        """ω' ∘ ρ', the same in every basis of a head."""
        return couplings.interaction(self.written, self.reachable)

    @property
    def invariant_gamma(self) -> float:
        """‖ω' ∘ ρ' - I‖_F."""
        return float(couplings.interaction_strength(self.invariant_G))


class HeadInteractions:
    """Measure how the heads of a decoder interact on batches of texts.

    Model, layers and errors are those of :class:`~diabat.heads.lora.outputs.HeadOutputs`.
    """

    def __init__(self, model: Any, layers: Sequence[int] | None = None) -> None:
        self.outputs = HeadOutputs(model, layers)

    def measure(self, batches: Batch | Iterable[Batch]) -> dict[int, LayerInteraction]:
        """Measure one batch, or several as if they were one; the interactions by layer.

        Padded tokens and those without a target are left out.  The model runs in evaluation mode and is left as it
        was found, with its gradients.

        Args:
            batches: ``input_ids``, ``labels``, and optionally ``attention_mask`` and what else the model takes, as a
                data collator of Hugging Face returns them; or several of these.

        Raises:
            ValueError: If there is no batch, one has no target, or a gradient is not finite.
        """
        if not isinstance(batches, Iterable):
            raise ArgumentTypeError("batches", "a mapping or several", type(batches).__name__)
        sums: dict[int, _Sums] = {}
        with _measured(self.outputs.model):
            for batch in [batches] if isinstance(batches, Mapping) else batches:
                for layer, added in self._sums(batch):
                    former = sums.get(layer)
                    sums[layer] = added if former is None else _Sums(*map(add, former, added))
        if not sums:
            raise ArgumentError("batches", "one batch or more", "none")
        return {layer: self._result(layer, total) for layer, total in sums.items()}

    def _sums(self, batch: Batch) -> Iterator[tuple[int, _Sums]]:
        """Sums of every layer over the counted tokens of a batch."""
        model = self.outputs.model
        counted = counted_tokens(batch).to(model.device)
        others = {key: value for key, value in batch.items() if key not in _TARGETS}
        inputs = {key: v.to(model.device) if isinstance(v, Tensor) else v for key, v in others.items()}
        with self.outputs.capture() as captured:
            logits = model(**inputs, use_cache=False).logits
        # The sum, so that every token has the same weight in all batches.
        loss = total_cross_entropy(logits, batch, counted)
        for layer, gradients in captured.gradients(loss, retain_graph=False).items():
            parts = (captured.outputs(layer).detach(), gradients.heads, gradients.residual)
            outputs, g, r = (part[counted.to(part.device)].double() for part in parts)
            if not bool(torch.isfinite(g).all() & torch.isfinite(r).all()):
                expected = "finite gradients at the heads"
                raise ArgumentError("batch", expected, f"others in layer {layer}; use dtype=float32")
            o = outputs.flatten(1)  # [N, H d]
            yield (
                layer,
                _Sums(
                    len(o), float(loss.detach()), o.sum(0), o.T @ o, couplings.gradient_products(g), r.T @ r
                ),
            )

    def _result(self, layer: int, sums: _Sums) -> LayerInteraction:
        slices = self.outputs.slices(layer).detach()
        tokens, mean = sums.tokens, sums.mean / sums.tokens
        covariance = (sums.moments - tokens * mean[:, None] * mean) / max(tokens - 1, 1)
        matrices = (
            couplings.weight_coupling(slices),
            couplings.normalised(sums.gradients),
            couplings.written_coupling(slices, sums.moments),
            couplings.reachable_coupling(slices, sums.residual),
            covariance,
        )
        return LayerInteraction(layer, tokens, sums.cross_entropy / tokens, *(m.cpu() for m in matrices))


class _Sums(NamedTuple):
    """Sums over the counted tokens of one layer, float64."""

    tokens: int
    cross_entropy: float
    mean: Tensor  # Σ o, [H d]
    moments: Tensor  # Σ o oᵀ, [H d, H d]
    gradients: Tensor  # Σ g_i·g_j, [H, H]
    residual: Tensor  # Σ r rᵀ, [hidden, hidden]


@contextmanager
def _measured(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and no parameter in the graph; put back afterwards."""
    trained = [parameter.requires_grad_(False) for parameter in model.parameters() if parameter.requires_grad]
    try:
        with evaluating(model), torch.enable_grad():
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
