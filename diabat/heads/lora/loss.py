"""GAME-LoRA in any training loop: one scalar whose value is the cross-entropy and whose gradient is that of the game.

    gradient = ∇CE + Σ_k w_k λ_k s(t) c_k ∇L_k

w are Nash weights relative to that of the cross-entropy (1 for ``combination="sum"``), s the schedule, and c the
normalisation by a running mean (1 except for Barlow Twins).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diabat.checks import ArgumentError, check_count, check_flag, check_number, check_positive
from diabat.heads.lora.couplings import interaction, interaction_strength, normalised, weight_coupling
from diabat.heads.lora.gradients import HeadProducts, TaskGradients, mean_over_ranks
from diabat.heads.lora.losses import (
    counted_tokens,
    cross_head_barlow_twins,
    disagreement,
    log_det_barrier,
    nash_weights,
    negative_entropy,
    pair_weights,
    token_matrix,
)
from diabat.heads.lora.options import GameOptions, Loss
from diabat.heads.lora.outputs import Captured, HeadOutputs
from diabat.ising import without_autocast
from diabat.samplers.capabilities import UnsupportedError


class _Forward(NamedTuple):
    """A forward pass of a micro-batch: bool [B, T], False at padding and where there is no target; None for all."""

    heads: Captured
    mask: Tensor | None
    targets: Tensor | None


class GameLoss:
    """The losses of GAME-LoRA around a model, with their running state.

    In a training loop:

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
        weights: Nash weights of the last solution by loss, relative to that of the cross-entropy; empty before the
            first.
        ema: Running mean of Barlow Twins.

    Raises:
        ArgumentError: A layer is out of range, or has one head.
        UnsupportedError: A loss has nothing to move, or the projection is merged, quantised or not plain LoRA.
    """

    def __init__(self, model: nn.Module, options: GameOptions, total_steps: int) -> None:
        if not isinstance(options, GameOptions):
            raise ArgumentError("options", "GameOptions", type(options).__name__)
        total_steps = check_count("total_steps", total_steps)
        self.model, self.options, self.total_steps = model, options, total_steps
        self._heads = HeadOutputs(model, options.measured())
        self._gradients, self._products = TaskGradients(model), HeadProducts()
        for layer in options.layers_of("ldb"):
            if not self._heads.slices(layer).requires_grad:
                place = f"the output projection of layer {layer}, which the log-det barrier moves"
                fix = "add its name to target_modules, or take 'ldb' out of losses"
                raise UnsupportedError("model", f"an adapter or trained weights at {place}", f"none; {fix}")
        self.reset()

    def reset(self) -> None:
        """Begin anew: the state before the first step."""
        self.steps = 0
        self.weights: dict[str, float] = {}
        self.ema = self.options.ema_target
        self._begin_step({})
        self._forward: _Forward | None = None
        self._log: dict[str, list[float]] = defaultdict(list)

    def _begin_step(self, products: Mapping[int, Tensor]) -> None:
        self._products.begin(products)
        self._values: dict[str, list[float]] = defaultdict(list)
        self._twins: list[float] = []  # Barlow Twins of the micro-batches
        self._gradients.clear()

    @contextmanager
    def capture(self, batch: Mapping[str, Any]) -> Iterator[None]:
        """Watch the forward pass with gradients in the block; forwards without gradients are ignored.

        In the batch, ``attention_mask`` [B, T] excludes padding; ``labels`` are for the entropy.

        Raises:
            ArgumentError: The mask is not [B, T].
            UnsupportedError: The model checkpoints activations reentrantly.
        """
        padded = batch.get("attention_mask") is not None
        padding = token_matrix(batch, "attention_mask").bool() if padded else None
        targets = counted_tokens(batch) if "entropy" in self.options.losses else None
        with self._heads.capture(logits=targets is not None) as heads:
            yield
        for layer in self._heads.projections:
            heads.outputs(layer)  # refuses a block without a forward
        for layer in (*self.options.layers_of("abt"), *self.options.layers_of("disagreement")):
            if heads.is_leaf(layer):
                place = f"the outputs of the heads of layer {layer}, which a loss on them moves"
                got = "none; add adapters to the projections of queries, keys and values"
                raise UnsupportedError("model", f"trained parameters below {place}", got)
        if targets is not None and heads.logits is None:
            expected = "a forward that computes logits, which the loss 'entropy' needs"
            got = "none; trainers that fuse the head with the loss, such as SFTTrainer, have no logits"
            raise UnsupportedError("model", expected, got)
        self._forward = _Forward(heads, padding, targets)

    def loss(self, cross_entropy: Tensor, *, micro_batches: int = 1, last: bool = True) -> Tensor:
        """Return a scalar with the value of the cross-entropy and the gradient of the game.

        Under gradient accumulation every micro-batch gives its part in the cross-entropy of the step, and all of them
        together its gradient.  The log-det barrier and the Nash weights are computed in the last one, from the
        gradients of all.

        Raises:
            ArgumentError: No forward was captured since the last call, a loss is not finite, or the gradient of the
                cross-entropy is zero.
        """
        micro_batches = check_count("micro_batches", micro_batches)
        check_flag("last", last)
        forward, self._forward = self._forward, None
        if forward is None:
            expected = "a forward with gradients inside capture() before each loss()"
            raise ArgumentError("cross_entropy", expected, "none")
        nash = self.options.combination == "nash" and bool(self.options.losses)
        solve = nash and (self.steps % self.options.nash_every == 0 or not self.weights)
        products = self._measure(cross_entropy, forward, solve)
        with without_autocast(cross_entropy):
            couplings = {
                layer: interaction(weight_coupling(self._heads.slices(layer)), normalised(products[layer]))
                for layer in self._heads.projections
            }
            losses = self._losses(forward, couplings, micro_batches, last)
            gamma = torch.stack([interaction_strength(G) for G in couplings.values()]).mean()
        factors = self._note(cross_entropy, losses, gamma, micro_batches)
        if solve:
            return self._bargained(cross_entropy, losses, factors, last)
        total = cross_entropy
        for name, value in losses.items():
            weight = factors[name] * self.weights.get(name, 1.0)
            if weight and value.requires_grad:
                total = total + weight * value.to(total.dtype)
        return cross_entropy.detach() + (total - total.detach())

    def step(self) -> None:
        """End an optimiser step: call it after ``optimizer.step()``."""
        products = self._products.last | self._products.sums()
        self.ema = self._running_mean()
        for name, values in self._values.items():
            self._log[name].append(sum(values))
        self._begin_step(products)
        self.steps += 1

    def metrics(self) -> dict[str, float]:
        """Means since the last call: each loss, Γ (mean over layers), and the weight of each gradient."""
        means = {f"game/{name}": sum(values) / len(values) for name, values in self._log.items()}
        self._log.clear()
        return means

    def state_dict(self) -> dict[str, Any]:
        """State at the end of a step, as JSON holds it: steps, weights, running mean, ⟨g_i, g_j⟩ by layer, options."""
        return {
            "options": json.loads(json.dumps(asdict(self.options))),  # lists for tuples
            "steps": self.steps,
            "weights": dict(self.weights),
            "ema": self.ema,
            "products": {str(layer): sums.tolist() for layer, sums in self._products.last.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; one that is no such state, or of other options, is refused and changes nothing."""
        shapes = {p.layer: (p.heads, p.heads) for p in self._heads.projections.values()}
        try:
            former = dict(state["options"])
            products = {int(k): torch.tensor(v, dtype=torch.float64) for k, v in state["products"].items()}
            check_count("steps", state["steps"], least=0)
            check_positive("ema", state["ema"])
            for name, weight in state["weights"].items():
                check_number(f"weights.{name}", weight, "[0, inf)")
            weights = {name: float(weight) for name, weight in state["weights"].items()}
            if {layer: tuple(sums.shape) for layer, sums in products.items()} not in ({}, shapes):
                others = f"products of other layers than {list(shapes)}"
                raise ValueError(f"{others}, or of other numbers of heads")
            if not all(bool(sums.isfinite().all()) for sums in products.values()):
                raise ValueError("products that are not finite")
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise ArgumentError("game_state", "what state_dict() returned", reason) from None
        for name, value in self.state_dict()["options"].items():
            if former.get(name) != value:
                expected = f"the options of the run, {name} {value!r}"
                raise ArgumentError("game_state", expected, f"{former.get(name)!r:.40}")
        self.reset()
        self.steps, self.weights, self.ema = state["steps"], weights, float(state["ema"])
        self._products.begin(products)

    def _measure(self, cross_entropy: Tensor, forward: _Forward, solve: bool) -> Mapping[int, Tensor]:
        """Add ⟨g_i, g_j⟩ of this micro-batch to the sums of the step, and return those that ρ comes from.

        ρ is that of this step because of the option, or because there is no step before.
        """
        (heads, mask, _), products = forward, self._products
        onward, fresh = list(heads.onward.values()), self.options.rho == "fresh" or not products.last
        if solve:
            products.add(heads, mask, self._gradients.add("ce", cross_entropy, onward))
        elif fresh:
            gradients = torch.autograd.grad(cross_entropy, onward, retain_graph=True, allow_unused=True)
            products.add(heads, mask, gradients)
        else:  # for the next step
            products.watch(heads, mask)
        return products.sums() if fresh else products.last

    def _losses(
        self, forward: _Forward, couplings: Mapping[int, Tensor], micro_batches: int, last: bool
    ) -> dict[str, Tensor]:
        """The losses with G by layer, each the mean over its layers; the barrier in the last micro-batch of a step."""
        options, heads, losses = self.options, forward.heads, dict[str, Tensor]()

        def twins(layer: int) -> Tensor:
            shape = (options.weighting, options.floor, options.slope, options.threshold)
            weights = pair_weights(couplings[layer], *shape)
            return cross_head_barlow_twins(heads.outputs(layer), weights, forward.mask, options.target)

        of_layer: dict[Loss, Callable[[int], Tensor]] = {
            "abt": twins,
            "disagreement": lambda at: disagreement(heads.outputs(at), forward.mask),
            "ldb": lambda at: log_det_barrier(couplings[at], options.epsilon),
        }
        # The barrier, which is of the step, comes last.
        for loss in sorted(options.losses, key=lambda one: one == "ldb"):
            if loss == "entropy":
                assert heads.logits is not None  # which capture() has checked
                losses[loss] = negative_entropy(heads.logits, forward.targets) / micro_batches
            elif loss != "ldb" or last:
                value = torch.stack([of_layer[loss](layer) for layer in options.layers_of(loss)]).mean()
                losses[loss] = value if loss == "ldb" else value / micro_batches
        return losses

    def _note(
        self, cross_entropy: Tensor, losses: Mapping[str, Tensor], gamma: Tensor, micro_batches: int
    ) -> dict[str, float]:
        """Record values, take them into the running mean, and return λ_k s(t) c_k of each loss."""
        values = torch.stack([v.detach().double() for v in (cross_entropy, *losses.values(), gamma)])
        _, *parts, mean_gamma = mean_over_ranks(values).tolist()
        for name, value in zip(["cross-entropy", *losses], values.tolist()[:-1], strict=True):
            if not math.isfinite(value):
                raise ArgumentError("loss", f"a finite {name}", value)
        factors = self.options.factors(min(self.steps / self.total_steps, 1.0))
        for name, value in zip(losses, parts, strict=True):
            self._values[name].append(value)
            if name == "abt":
                self._twins.append(value * micro_batches)
                factors["abt"] *= self.options.ema_target / self._running_mean()
        self._values["gamma"] = [mean_gamma]
        for name in self.options.losses:
            self._values[f"weight_{name}"] = [factors[name] * self.weights.get(name, 1.0)]
        return factors

    def _running_mean(self) -> float:
        """ema_t = decay · L_t + (1 - decay) · ema_{t-1} (below eq. 34), L_t the mean of the micro-batches so far."""
        if not self._twins:
            return self.ema
        decay = self.options.ema_decay
        mean = decay * sum(self._twins) / len(self._twins) + (1 - decay) * self.ema
        if not mean > 0:
            raise ArgumentError("loss", "a positive running mean to divide by", mean)
        return mean

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
        weights, opposed = nash_weights(gramian)
        if not weights[0]:
            expected = "a gradient that is not zero"
            raise ArgumentError("cross_entropy", expected, "zero for every trained parameter")
        weights = weights / weights[0]
        self.weights = dict(zip(names[1:], weights[1:].tolist(), strict=True))
        for name, weight in self.weights.items():
            self._values[f"weight_{name}"] = [factors[name] * weight]
        self._values["opposed"] = [float(opposed)]
        combined = (weights * scales).to(rows) @ rows
        return self._gradients.surrogate(cross_entropy, combined)
