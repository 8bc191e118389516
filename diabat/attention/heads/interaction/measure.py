"""How the heads of a trained decoder interact: couplings, and the information that their outputs share.

    result = HeadInteractions(model, layers=[19]).measure(batches)
    result[19].omega, result[19].rho, result[19].G, result[19].gamma

Players are query heads, also where they share a key/value head.  The equations are in
:mod:`diabat.attention.heads.interaction.coupling` and :mod:`diabat.attention.heads.interaction.total_correlation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.heads.interaction.coupling import (
    AGGREGATIONS,
    Aggregation,
    coupling_of_sums,
    gradient_sums,
    interaction,
    interaction_strength,
    reachable_coupling,
    weight_coupling,
    written_coupling,
)
from diabat.attention.heads.interaction.outputs import HeadGradients, HeadOutputs
from diabat.attention.heads.interaction.targets import counted_tokens, total_cross_entropy
from diabat.attention.heads.interaction.total_correlation import (
    HeadInformation,
    diagonal_correlation,
    head_information,
)
from diabat.checks import ArgumentError, ArgumentTypeError, check_choice, check_flag

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
        diagonal_correlation: Mean correlation of equal features of two heads.
        information: Total correlation, free riding and redundancy of the head outputs; None if it was not wanted, or
            there are not more tokens than features.
    """

    layer: int
    tokens: int
    cross_entropy: float
    omega: Tensor
    rho: Tensor
    written: Tensor
    reachable: Tensor
    diagonal_correlation: Tensor
    information: HeadInformation | None

    @property
    def G(self) -> Tensor:  # noqa: N802 - the paper's name
        """G = ω ∘ ρ (eq. 6)."""
        return interaction(self.omega, self.rho)

    @property
    def gamma(self) -> float:
        """Γ = ‖G - I‖_F."""
        return float(interaction_strength(self.G))

    @property
    def invariant_G(self) -> Tensor:  # noqa: N802
        """ω' ∘ ρ', the same in every basis of a head."""
        return interaction(self.written, self.reachable)

    @property
    def invariant_gamma(self) -> float:
        """‖ω' ∘ ρ' - I‖_F."""
        return float(interaction_strength(self.invariant_G))


Interactions = dict[int, LayerInteraction]
"""Interactions by layer."""


class HeadInteractions:
    """Measure how the heads of a decoder interact on batches of texts.

    Args:
        model: A causal language model of transformers, or a PEFT model around one; see :class:`HeadOutputs`.
        layers: Positions of blocks, counted from 0; None for all.
        aggregation: How the tokens make ρ: ``concatenated``, ``per_token`` or ``mean_gradient``; the couplings ω' and
            ρ' are always those of concatenated tokens.
        information: Compute the information that heads share, an eigendecomposition of [H d, H d] per layer.

    Raises:
        ValueError: If a layer or an option is out of range.
        UnsupportedError: If the model is not one that can be measured; see :class:`HeadOutputs`.
    """

    def __init__(
        self,
        model: Any,
        layers: Sequence[int] | None = None,
        *,
        aggregation: Aggregation = "concatenated",
        information: bool = True,
    ) -> None:
        check_choice("aggregation", aggregation, AGGREGATIONS)
        check_flag("information", information)
        self.outputs = HeadOutputs(model, layers)
        self.aggregation, self.information = aggregation, information

    @property
    def layers(self) -> tuple[int, ...]:
        """Positions of the blocks."""
        return self.outputs.layers

    def measure(
        self, batches: Batch | Iterable[Batch], progress: Callable[[int], None] | None = None
    ) -> Interactions:
        """Measure one batch, or several as if they were one.

        Padded tokens and those without a target are left out.  The model runs in evaluation mode and is left as it
        was found, with its gradients.

        Args:
            batches: ``input_ids``, ``labels``, and optionally ``attention_mask`` and what else the model takes, as a
                data collator of Hugging Face returns them; or several of these.
            progress: Called with the number of batches done after each.

        Returns:
            Interactions by layer.

        Raises:
            ValueError: If there is no batch, one has no target, or a gradient is not finite.
        """
        (sums,) = self._sums(batches, 1, progress)
        return self._results(sums)

    def measure_halves(
        self, batches: Iterable[Batch], progress: Callable[[int], None] | None = None
    ) -> tuple[Interactions, Interactions, Interactions]:
        """Measure the batches of even position, those of odd position, and all of them, in one pass.

        Coalitions found in one half are tested on the other:
        :func:`diabat.attention.heads.interaction.coalition_tests.held_out`.

        Args:
            batches: Two or more, as for :meth:`measure`.
            progress: Called with the number of batches done after each.

        Raises:
            ValueError: As :meth:`measure` does, or if there is one batch only.
        """
        if isinstance(batches, Mapping):
            raise ArgumentError("batches", "expected two batches or more, got one.")
        even, odd = self._sums(batches, 2, progress)
        both = {layer: even[layer] + odd[layer] for layer in self.layers}
        return self._results(even), self._results(odd), self._results(both)

    def _sums(
        self, batches: Batch | Iterable[Batch], parts: int, progress: Callable[[int], None] | None
    ) -> list[dict[int, _Sums]]:
        """Sums over every ``parts``-th batch."""
        if not isinstance(batches, Mapping) and not isinstance(batches, Iterable):
            raise ArgumentTypeError(
                "batches", f"expected a mapping or several, got {type(batches).__name__}."
            )
        sums = [{layer: _Sums() for layer in self.layers} for _ in range(parts)]
        several = [batches] if isinstance(batches, Mapping) else batches
        done = 0
        with _measured(self.outputs.model):
            for done, batch in enumerate(several, 1):
                self._add(batch, sums[(done - 1) % parts])
                if progress is not None:
                    progress(done)
        if done < parts:
            needed = "one batch" if parts == 1 else "two batches"
            raise ArgumentError("batches", f"expected {needed} or more, got {done or 'none'}.")
        return sums

    def _results(self, sums: Mapping[int, _Sums]) -> Interactions:
        return {layer: self._result(layer, found) for layer, found in sums.items()}

    def _add(self, batch: Batch, sums: dict[int, _Sums]) -> None:
        model = self.outputs.model
        counted = counted_tokens(batch).to(model.device)
        inputs = {
            key: value.to(model.device) if isinstance(value, Tensor) else value
            for key, value in batch.items()
            if key not in _TARGETS
        }
        with self.outputs.capture() as captured:
            logits = model(**inputs, use_cache=False).logits
        # The sum, so that every token has the same weight in all batches.
        loss = total_cross_entropy(logits, batch, counted)
        gradients = captured.gradients(loss, retain_graph=False)
        for layer, found in gradients.items():
            outputs = captured.outputs(layer).detach()
            heads = outputs[counted.to(outputs.device)]  # [N, H, d]
            selected = _selected(found, counted, layer)
            sums[layer] += _Sums.of(heads, selected, float(loss.detach()), self.aggregation)

    def _result(self, layer: int, sums: _Sums) -> LayerInteraction:
        slices = self.outputs.slices(layer).detach()
        heads, tokens = len(slices), sums.tokens
        mean = sums.mean / tokens
        covariance = (sums.moments - tokens * mean[:, None] * mean) / max(tokens - 1, 1)
        information = None
        if self.information and tokens > len(covariance) + 1:
            information = head_information(covariance, heads, tokens)
        return LayerInteraction(
            layer,
            tokens,
            sums.cross_entropy / tokens,
            weight_coupling(slices).cpu(),
            coupling_of_sums(sums.gradients, self.aggregation).cpu(),
            written_coupling(slices, sums.moments).cpu(),
            reachable_coupling(slices, sums.residual).cpu(),
            diagonal_correlation(covariance, heads).cpu(),
            information,
        )


def _zero() -> Tensor:
    return torch.zeros(())


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the counted tokens of one layer, float64."""

    tokens: int = 0
    cross_entropy: float = 0.0
    mean: Tensor = field(default_factory=_zero)  # Σ o, [H d]
    moments: Tensor = field(default_factory=_zero)  # Σ o oᵀ, [H d, H d]
    gradients: Tensor = field(default_factory=_zero)  # what ρ is made of
    residual: Tensor = field(default_factory=_zero)  # Σ r rᵀ, [hidden, hidden]

    @classmethod
    def of(cls, heads: Tensor, gradients: HeadGradients, loss: float, aggregation: Aggregation) -> _Sums:
        """Sums of N tokens, with head outputs [N, H, d] and gradients [N, ...]."""
        flat, residual = heads.double().flatten(1), gradients.residual.double()
        rho = gradient_sums(gradients.heads, aggregation)
        return cls(len(heads), loss, flat.sum(0), flat.T @ flat, rho, residual.T @ residual)

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(*(vars(self)[f.name] + vars(other)[f.name] for f in fields(self)))


def _selected(found: HeadGradients, counted: Tensor, layer: int) -> HeadGradients:
    heads = found.heads[counted.to(found.heads.device)]
    residual = found.residual[counted.to(found.residual.device)]
    if not bool(torch.isfinite(heads).all() & torch.isfinite(residual).all()):
        raise ArgumentError(
            "batch",
            f"expected finite gradients at the heads, got others in layer {layer}; use dtype=float32.",
        )
    return HeadGradients(heads, residual)


@contextmanager
def _measured(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and no parameter in the graph; put back afterwards."""
    training = [(module, module.training) for module in model.modules()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        for parameter in trained:
            parameter.requires_grad_(False)
        with torch.enable_grad():
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for module, mode in training:
            module.training = mode
