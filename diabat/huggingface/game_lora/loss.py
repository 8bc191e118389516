"""GAME-LoRA in any training loop: one scalar whose value is the cross-entropy and whose gradient is that of the game.

    gradient = ∇CE + Σ_k w_k λ_k s(t) c_k ∇L_k

w are Nash weights relative to that of the cross-entropy (1 for ``combination="sum"``), s the schedule, and c the
normalisation by a running mean (1 except for Barlow Twins).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.heads.game_lora.bargaining import nash_weights
from diabat.attention.heads.game_lora.schedule import RunningScale, three_phases
from diabat.attention.heads.interaction.coupling import (
    coupling_of_sums,
    gradient_sums,
    interaction,
    weight_coupling,
)
from diabat.attention.heads.interaction.outputs import HeadOutputs
from diabat.attention.heads.interaction.targets import counted_tokens
from diabat.checks import ArgumentError, check_count, check_flag
from diabat.huggingface.enabling import pretrained_model
from diabat.huggingface.game_lora.gradients import TaskGradients, mean_over_ranks
from diabat.huggingface.game_lora.options import GameOptions
from diabat.huggingface.game_lora.state import checked_state, state_of
from diabat.huggingface.game_lora.tasks import (
    Seen,
    barrier,
    batch_losses,
)
from diabat.samplers.base import UnsupportedError


class GameLoss:
    """The losses of GAME-LoRA around a model, with their running state.

        game = GameLoss(model, GameOptions(layers=[1]), total_steps=len(batches))
        for batch in batches:
            with game.capture(batch):
                ce = model(**batch).loss
            game.loss(ce).backward()
            optimizer.step()
            optimizer.zero_grad()
            game.step()

    Args:
        model: A causal language model of transformers, with LoRA adapters or trained as a whole.
        options: Losses, layers, weights.
        total_steps: Optimiser steps of the training, for the schedule.

    Attributes:
        steps: Optimiser steps done.
        total_steps: As given.
        weights: Nash weights of the last solution by loss, relative to that of the cross-entropy; empty before the
            first.

    Raises:
        ArgumentError: A layer is out of range, or has one head.
        UnsupportedError: A loss has nothing to move, or the projection is merged, quantised or not plain LoRA.
    """

    def __init__(self, model: nn.Module, options: GameOptions, total_steps: int) -> None:
        if not isinstance(options, GameOptions):
            raise ArgumentError("options", f"expected GameOptions, got {type(options).__name__}.")
        check_count("total_steps", total_steps)
        self.model, self.options, self.total_steps = model, options, total_steps
        self._heads = HeadOutputs(model, options.measured())
        self._gradients = TaskGradients(model)
        for layer in options.layers_of("ldb"):
            if not self._heads.slices(layer).requires_grad:
                raise UnsupportedError(
                    "model",
                    f"expected an adapter at the output projection of layer {layer}, which the log-det barrier moves, "
                    f"got none; add its name to target_modules, or take 'ldb' out of losses.",
                )
        self.reset()

    def reset(self) -> None:
        """Begin anew: the state before the first step."""
        self.steps = 0
        self.weights: dict[str, float] = {}
        self._scale = RunningScale(self.options.ema_decay, self.options.ema_target, self.options.ema_target)
        self._products: dict[int, Tensor] = {}  # of the last step
        self._begin_step()
        self._seen: Seen | None = None
        self._log: dict[str, list[float]] = defaultdict(list)

    def _begin_step(self) -> None:
        self._sums: dict[int, Tensor] = {}  # of this step
        self._values: dict[str, list[float]] = defaultdict(list)
        self._gradients.clear()

    @contextmanager
    def capture(self, batch: Mapping[str, Any]) -> Iterator[None]:
        """Watch the forward pass with gradients in the block; forwards without gradients are ignored.

        Args:
            batch: What the model gets: ``attention_mask`` [B, T] excludes padding; ``labels`` for the entropy.

        Raises:
            ArgumentError: The mask is not [B, T].
            UnsupportedError: The model checkpoints activations reentrantly.
        """
        mask = _token_mask(batch)
        onward: dict[int, Tensor] = {}
        logits: list[Tensor] = []
        with self._heads.capture() as captured:
            # Behind those of capture(), so that the losses on outputs branch off before the path to the logits.
            moved = self.options.layers_of("abt") + self.options.layers_of("disagreement")
            hooks = [
                p.module.register_forward_pre_hook(_branch(onward, p.layer, p.layer in moved))
                for p in self._heads.projections.values()
            ]
            if "entropy" in self.options.losses:
                hooks.append(_logits_hook(self.model, logits))
            try:
                yield
            finally:
                for hook in hooks:
                    hook.remove()
        layers = self._heads.projections
        self._seen = Seen(
            {layer: captured.outputs(layer) for layer in layers},
            onward,
            mask,
            _only(logits) if "entropy" in self.options.losses else None,
            counted_tokens(batch) if "entropy" in self.options.losses else None,
        )

    def loss(self, cross_entropy: Tensor, *, micro_batches: int = 1, last: bool = True) -> Tensor:
        """Return a scalar with the value of the cross-entropy and the gradient of the game.

        Under gradient accumulation every micro-batch gives its part, and all of them together the gradient of the
        step.  The log-det barrier and the Nash weights are computed in the last one, from the gradients of all.

        Args:
            cross_entropy: Part of this micro-batch in the cross-entropy of the step, of the captured forward.
            micro_batches: Micro-batches of the step.
            last: Whether this is the last of them.

        Raises:
            ArgumentError: No forward was captured since the last call, a loss is not finite, or the gradient of the
                cross-entropy is zero.
        """
        check_count("micro_batches", micro_batches)
        check_flag("last", last)
        seen, self._seen = self._seen, None
        if seen is None:
            raise ArgumentError(
                "cross_entropy",
                "expected a forward with gradients inside capture() before each loss(), got none.",
            )
        solve = self._solves()
        self._measure(cross_entropy, seen, solve)
        with torch.autocast(cross_entropy.device.type, enabled=False):
            couplings = self._couplings()
            losses = {name: value / micro_batches for name, value in
                      batch_losses(self.options, seen, couplings).items()}  # fmt: skip
            if last and "ldb" in self.options.losses:
                losses["ldb"] = barrier(self.options, couplings)
        factors = self._note(cross_entropy, losses, couplings, micro_batches)
        if solve:
            return self._bargained(cross_entropy, losses, factors, last)
        total = cross_entropy
        for name, value in losses.items():
            weight = factors[name] * self.weights.get(name, 1.0)
            if weight and value.requires_grad:
                total = total + weight * value.to(total.dtype)
        return cross_entropy.detach() + (total - total.detach())

    def step(self) -> None:
        """End an optimiser step: call it after ``optimizer.step()``.

        Raises:
            ArgumentError: The gradients at the heads were not finite.
        """
        self._products |= self._mean_sums()
        self._scale.finish()
        for name, values in self._values.items():
            self._log[name].append(sum(values))
        self._begin_step()
        self.steps += 1

    def metrics(self) -> dict[str, float]:
        """Means since the last call: each loss, Γ (mean over layers), and the weight of each gradient."""
        found = {f"game/{name}": sum(values) / len(values) for name, values in self._log.items()}
        self._log.clear()
        return found

    def state_dict(self) -> dict[str, Any]:
        """State at the end of a step, of numbers, texts and lists only: steps, weights, running mean, ρ, options."""
        return state_of(self.options, self.steps, self.weights, self._scale.ema, self._products)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ArgumentError: It is not a state of this class, or of other options.
        """
        read = checked_state(
            state, self.options, {p.layer: p.heads for p in self._heads.projections.values()}
        )
        self.reset()
        self.steps, self.weights, self._scale.ema = read.steps, read.weights, read.ema
        self._products = read.products

    def _solves(self) -> bool:
        """Whether Nash weights are solved in this step."""
        if self.options.combination == "sum" or not self.options.losses:
            return False
        return self.steps % self.options.nash_every == 0 or not self.weights

    def _measure(self, cross_entropy: Tensor, seen: Seen, solve: bool) -> None:
        """Add ⟨g_i, g_j⟩ of this micro-batch to the sums of the step, now or when its gradients pass."""
        onward = list(seen.onward.values())
        if solve:
            found = self._gradients.add("ce", cross_entropy, onward)
        elif self._fresh():
            found = torch.autograd.grad(cross_entropy, onward, retain_graph=True, allow_unused=True)
        else:
            for layer, tensor in seen.onward.items():
                tensor.register_hook(_adder(self, layer, seen.mask))
            return
        for layer, gradient in zip(seen.onward, found, strict=True):
            if gradient is None:
                raise ArgumentError(
                    "cross_entropy",
                    f"expected a loss of the captured forward, got one without layer {layer}.",
                )
            self._add_products(layer, gradient, seen.mask)

    def _fresh(self) -> bool:
        return self.options.rho == "fresh" or not self._products

    def _add_products(self, layer: int, gradient: Tensor, mask: Tensor | None) -> None:
        rows = gradient.detach().unflatten(-1, (self._heads.projections[layer].heads, -1))  # [B, T, H, d]
        products = gradient_sums(rows if mask is None else rows[mask])
        self._sums[layer] = self._sums[layer] + products if layer in self._sums else products

    def _mean_sums(self) -> dict[int, Tensor]:
        """Products of the step so far, over all processes."""
        found = {layer: mean_over_ranks(products) for layer, products in sorted(self._sums.items())}
        for layer, products in found.items():
            if not torch.isfinite(products).all():
                raise ArgumentError(
                    "loss", f"expected finite gradients at the heads of layer {layer}, got NaN or infinity."
                )
        return found

    def _couplings(self) -> dict[int, Tensor]:
        """G = ω ∘ ρ by layer, [H, H], differentiable in the projections."""
        products = self._mean_sums() if self._fresh() else self._products
        return {
            layer: interaction(weight_coupling(self._heads.slices(layer)), coupling_of_sums(products[layer]))
            for layer in self._heads.projections
        }

    def _note(
        self,
        cross_entropy: Tensor,
        losses: Mapping[str, Tensor],
        couplings: Mapping[int, Tensor],
        micro_batches: int,
    ) -> dict[str, float]:
        """Record values, take them into the running mean, and return λ_k s(t) c_k of each loss."""
        gamma = torch.stack(
            [(g - torch.eye(len(g), device=g.device)).norm() for g in couplings.values()]
        ).mean()
        values = torch.stack([v.detach().double() for v in (cross_entropy, *losses.values(), gamma)])
        _, *parts, strength = mean_over_ranks(values).tolist()
        _check_finite(dict(zip(["cross-entropy", *losses], values.tolist()[:-1], strict=True)))
        options, progress = self.options, min(self.steps / self.total_steps, 1.0)
        schedule = three_phases(progress, options.warmup, options.cooldown)
        factors = {
            "ldb": options.ldb_weight * schedule,
            "abt": options.abt_weight * schedule,
            "disagreement": options.disagreement_weight,
            "entropy": options.entropy_weight,
        }
        for name, value in zip(losses, parts, strict=True):
            self._values[name].append(value)
            if name == "abt":
                factors["abt"] *= self._scale.factor(value * micro_batches)
        self._values["gamma"] = [strength]
        for name in options.losses:
            self._values[f"weight_{name}"] = [factors[name] * self.weights.get(name, 1.0)]
        return factors

    def _bargained(
        self, cross_entropy: Tensor, losses: Mapping[str, Tensor], factors: Mapping[str, float], last: bool
    ) -> Tensor:
        """Add up the gradients of every task, and solve for their weights in the last micro-batch."""
        for name, value in losses.items():
            self._gradients.add(name, value)
        if not last:
            return self._gradients.surrogate(cross_entropy, None)
        names, rows = self._gradients.rows()
        scales = torch.tensor([factors.get(name, 1.0) for name in names], dtype=torch.float64)
        gramian = (rows.double() @ rows.double().T).cpu()
        before = self.options.multipliers == "before"
        found = nash_weights(gramian * scales * scales[:, None] if before else gramian)
        if not found.weights[0]:
            raise ArgumentError(
                "cross_entropy", "expected a gradient that is not zero, got zero for every trained parameter."
            )
        weights = found.weights / found.weights[0]
        self.weights = dict(zip(names[1:], weights[1:].tolist(), strict=True))
        for name, weight in self.weights.items():
            self._values[f"weight_{name}"] = [factors[name] * weight]
        self._values["opposed"] = [float(found.opposed is not None)]
        combined = (weights * scales).to(rows) @ rows
        return self._gradients.surrogate(cross_entropy, combined)


def _branch(onward: dict[int, Tensor], layer: int, moved: bool) -> Any:
    """Forward pre-hook that hands on a view of the head outputs, and keeps it."""

    def branch(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        flat = arguments[0]
        if not torch.is_grad_enabled() or layer in onward:
            return None
        if moved and flat.is_leaf:
            raise UnsupportedError(
                "model",
                f"expected trained parameters below the outputs of the heads of layer {layer}, which a loss on them "
                "moves, got none; add adapters to the projections of queries, keys and values.",
            )
        onward[layer] = flat.view_as(flat)
        return (onward[layer], *arguments[1:])

    return branch


def _adder(game: GameLoss, layer: int, mask: Tensor | None) -> Any:
    return lambda gradient: game._add_products(layer, gradient, mask)


def _logits_hook(model: nn.Module, found: list[Tensor]) -> Any:
    def keep(_: nn.Module, arguments: tuple[Any, ...], logits: Tensor) -> None:
        if torch.is_grad_enabled() and not found:
            found.append(logits)

    return pretrained_model(model).get_output_embeddings().register_forward_hook(keep)


def _only(logits: list[Tensor]) -> Tensor:
    if not logits:
        raise UnsupportedError(
            "model",
            "expected a forward that computes logits, which the loss 'entropy' needs, got none; trainers that fuse the "
            "head with the loss, such as SFTTrainer, have no logits.",
        )
    return logits[0]


def _token_mask(batch: Mapping[str, Any]) -> Tensor | None:
    mask = batch.get("attention_mask")
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        got = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError("attention_mask", f"expected a tensor [B, T], got {got}.")
    return mask.bool()


def _check_finite(values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise ArgumentError("loss", f"expected a finite {name}, got {value}.")
