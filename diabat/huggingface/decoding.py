"""Activation decoding, a baseline of GAME-LoRA (app. A.3.1); the other one is ``guidance_scale`` of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.heads.pretrained import pretrained_model
from diabat.checks import ArgumentError, is_integer, is_number


class ActivationDecoding:
    """Divide logits by T' = 1 - w where the hidden states of the prompt have little entropy, H < τ (ActDec).

    H is the mean over prompt tokens and monitored layers of the entropy, in nats, of softmax(head(norm(h))).  The paper
    names hidden states of context tokens and not the distribution whose entropy it takes; this is the usual one.  A
    temperature does not change the largest logit, so that greedy decoding stays as it is (table 1 has the score of
    the baseline in three of six rows).

        model.generate(**prompt, do_sample=True, logits_processor=LogitsProcessorList([decoding]))

    Args:
        model: A causal language model of transformers.
        prompt: ``input_ids`` [B, T], and optionally ``attention_mask``.
        layers: Monitored layers, counted from 0; None for the middle third.
        threshold: τ in nats.
        sharpness: w in [0, 1).

    Attributes:
        entropy: H, [B].
        temperature: T', [B].

    Raises:
        ArgumentError: An option is out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        prompt: dict[str, Tensor],
        layers: Sequence[int] | None = None,
        threshold: float = 2.0,
        sharpness: float = 0.5,
    ) -> None:
        for name, value, most in (("threshold", threshold, float("inf")), ("sharpness", sharpness, 1.0)):
            if not is_number(value) or not 0 <= value < most:
                raise ArgumentError(name, f"expected a number in [0, {most:g}), got {value!r}.")
        self.entropy = _entropy(pretrained_model(model), prompt, layers)
        self.temperature = torch.where(self.entropy < threshold, 1 - sharpness, 1.0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [B, V] divided by the temperatures, as a logits processor of transformers."""
        if len(scores) != len(self.temperature):
            raise ArgumentError(
                "scores", f"expected {len(self.temperature)} rows, got {len(scores)}; use no beams."
            )
        return scores / self.temperature.to(scores)[:, None]


@torch.no_grad()
def _entropy(base: Any, prompt: dict[str, Tensor], layers: Sequence[int] | None) -> Tensor:
    """Mean entropy [B] of what the hidden states of some layers would predict, over prompt tokens and layers."""
    head, leaves = base.get_output_embeddings(), [m for m in base.modules() if not list(m.children())]
    ran: list[nn.Module] = []
    hooks = [m.register_forward_hook(lambda m, *_: ran.append(m)) for m in leaves if m is not head]
    was = base.training
    base.eval()
    try:
        hidden = base(**prompt, output_hidden_states=True, use_cache=False).hidden_states[1:-1]
    finally:
        base.train(was)
        for hook in hooks:
            hook.remove()
    norm = ran[-1]  # what runs last before the head
    count = len(hidden) + 1  # the states of the last block are only given behind the norm
    chosen = range(count // 3, max(2 * count // 3, count // 3 + 1)) if layers is None else layers
    if not chosen or not all(is_integer(layer) and 0 <= layer < len(hidden) for layer in chosen):
        raise ArgumentError("layers", f"expected layers in 0 .. {len(hidden) - 1}, got {list(chosen)}.")
    mask = prompt.get("attention_mask", torch.ones_like(prompt["input_ids"])).double()
    total = torch.zeros(len(mask), dtype=torch.float64, device=mask.device)
    for layer in chosen:
        logs = head(norm(hidden[layer])).double().log_softmax(-1)  # [B, T, V]
        total += (-(logs.exp() * logs).sum(-1) * mask).sum(1) / mask.sum(1)
    return total / len(chosen)
