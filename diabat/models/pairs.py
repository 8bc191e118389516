"""A classifier of sentence pairs: encoder, pooling over tokens, feed-forward network (arXiv:2603.18761, §3.12)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Union

import torch
from torch import Tensor, nn

from diabat.attention.layer import visible_positions
from diabat.attention.pooling import BoltzmannPooling, QueryHeads, mix
from diabat.checks import ArgumentError, did_you_mean
from diabat.tasks.nli_tokens import PairBatch, PairSplit

if TYPE_CHECKING:
    from diabat.attention.neurogame import NeuroGameAttention
    from diabat.samplers.base import Sampler


class MeanPooling(nn.Module):
    """Mean of the token states; it has no parameters."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at padding."""
        return mix(self.weights(x, key_padding_mask)[:, 0], x)

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, 1, T], which sum to 1."""
        seen = visible_positions(x, key_padding_mask).to(x.dtype)
        return (seen / seen.sum(-1, keepdim=True))[:, None]


class ProjectedMeanPooling(nn.Module):
    r"""Mean pooling between the two projections of NeuroGame attention: z = W_O (1/n) Σ_i W_v x_i, without bias.

    A control: the effect of the projections without a game.

    Args:
        embed_dim: D.
        value_std: Standard deviation of the entries of W_v at the start.
    """

    def __init__(self, embed_dim: int, value_std: float) -> None:
        super().__init__()
        self.mean = MeanPooling()
        self.value = nn.Linear(embed_dim, embed_dim, bias=False)
        self.output_projection = nn.Linear(embed_dim, embed_dim, bias=False)
        nn.init.normal_(self.value.weight, std=value_std)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at padding."""
        pooled: Tensor = self.output_projection(self.value(self.mean(x, key_padding_mask)))
        return pooled

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, 1, T], which sum to 1."""
        return self.mean.weights(x, key_padding_mask)


class SoftmaxPooling(nn.Module):
    r"""Attention pooling with a learned query per head.

    z = W_O concat_h Σ_i softmax_i(q_h · k_hi / sqrt(d)) v_hi, with k = W_K x, v = W_V x and d = D/H.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads = QueryHeads(embed_dim, num_heads)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at padding."""
        return self.heads.combine(self.weights(x, key_padding_mask), x)

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, H, T], which sum to 1."""
        scores = self.heads.scores(x)
        hidden = ~visible_positions(x, key_padding_mask)[:, None]
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hidden, 0)


POOLINGS = ("neurogame", "mean", "softmax", "boltzmann", "projected_mean")
Pooling = Union["NeuroGameAttention", MeanPooling, SoftmaxPooling, BoltzmannPooling, ProjectedMeanPooling]
HEAD = ("pooling.", "classifier.")
"""Prefixes of the names of the parameters outside the encoder."""


@dataclass(frozen=True)
class PairModelOptions:
    """Options of the model; the defaults are the published NeuroGame Transformer, as far as it is described.

    Attributes:
        name: Name of the model.
        encoder: Name of a Hugging Face model, a folder, or ``package:NAME/FOLDER``.
        tokenizer: The same for the tokenizer; None takes the encoder's.
        pretrained: Load the encoder's weights; False draws them at random.
        encoder_config: Changes of the encoder's configuration, by key.
        local_files_only: Never access the Hugging Face hub.
        freeze_encoder: Do not train the encoder, only the rest.
        pooling: ``neurogame``, ``mean``, ``softmax``, ``boltzmann`` or ``projected_mean``.
        mode: Of ``neurogame``: ``h+J``, or a control, ``h`` (J_ij = 0) or ``uniform`` (α_i = 1/2).
        num_heads: Heads of the pooling; ``mean`` and ``projected_mean`` have none.
        special_tokens: Whether tokens such as [CLS] and [SEP] take part in the pooling.
        value_function: f of the coalition value v(C) = f(‖Σ_{i in C} W_v x_i‖): identity, relu or tanh.
        weighting: ``gibbs`` (the paper's self-normalised weights) or ``uniform`` (true Shapley values).
        temperature: γ, dimensionless.
        learn_temperature: Train γ, one per head.
        coalitions: K while training.
        eval_coalitions: K otherwise.
        ffn_dim: Hidden width of the classifier's network.
        ffn_layers: Hidden layers m of it.
        dropout: Probability in 0 .. 1 (exclusive) of dropout before each layer of the classifier.
    """

    name: Literal["pairs"] = field(default="pairs", kw_only=True)
    encoder: str = "bert-base-uncased"
    tokenizer: str | None = None
    pretrained: bool = True
    encoder_config: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    local_files_only: bool = False
    freeze_encoder: bool = False
    pooling: str = "neurogame"
    mode: Literal["h+J", "h", "uniform"] = "h+J"
    num_heads: int = 4
    special_tokens: bool = True
    value_function: str = "identity"
    weighting: Literal["gibbs", "uniform"] = "gibbs"
    temperature: float = 0.25
    learn_temperature: bool = False
    coalitions: int = 15
    eval_coalitions: int = 25
    ffn_dim: int = 256
    ffn_layers: int = 1
    dropout: float = 0.15

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            hint = did_you_mean(self.pooling, POOLINGS)
            raise ArgumentError(
                "pooling", f"expected one of {', '.join(POOLINGS)}, got '{self.pooling}'.{hint}"
            )
        if self.mode != "h+J" and self.pooling != "neurogame":
            raise ArgumentError("mode", f"expected 'h+J' with pooling '{self.pooling}', got '{self.mode}'.")
        for name in ("num_heads", "coalitions", "eval_coalitions", "ffn_dim"):
            if getattr(self, name) < 1:
                raise ArgumentError(name, f"expected an integer >= 1, got {getattr(self, name)}.")
        if self.ffn_layers < 0:
            raise ArgumentError("ffn_layers", f"expected an integer >= 0, got {self.ffn_layers}.")
        if not 0 <= self.dropout < 1:
            raise ArgumentError("dropout", f"expected a probability in [0, 1), got {self.dropout}.")
        if not 0 < self.temperature < float("inf"):
            raise ArgumentError("temperature", f"expected a finite number > 0, got {self.temperature}.")

    @property
    def attention(self) -> str:
        """Short description of the pooling."""
        return f"{self.pooling} pooling" + ("" if self.mode == "h+J" else f", mode {self.mode}")

    @property
    def uses_sampler(self) -> bool:
        """Whether the pooling calls a sampler for its marginals."""
        return self.pooling in ("neurogame", "boltzmann") and self.mode == "h+J"


class PairClassifier(nn.Module):
    """Encoder, pooling and classifier.

    Args:
        options: Pooling, classifier and the rest.
        encoder: The encoder, from :func:`diabat.models.encoder.load_encoder`.
        width: Width D of its states.
        num_classes: C.
        window: Largest number of tokens of a pair.
        sampler: Backend of the poolings that have an Ising model.
        gradient: Gradient estimator of the backend.
    """

    def __init__(
        self,
        options: PairModelOptions,
        encoder: nn.Module,
        width: int,
        num_classes: int,
        window: int,
        sampler: str | Sampler = "mean_field",
        gradient: str = "auto",
    ) -> None:
        super().__init__()
        self.options, self.window = options, window
        self.encoder = encoder
        self.pooling = _pooling(options, width, window, sampler, gradient)
        self.classifier = _classifier(options, width, num_classes)
        if options.freeze_encoder:
            self.encoder.requires_grad_(False)

    def train(self, mode: bool = True) -> PairClassifier:
        """Set the mode; a frozen encoder never uses dropout."""
        super().train(mode)
        if self.options.freeze_encoder:
            self.encoder.eval()
        return self

    def forward(self, batch: PairBatch, mixed: tuple[float, Tensor] | None = None) -> Tensor:
        """Compute logits.

        Args:
            batch: B pairs.
            mixed: Share λ and partners (int64 [B]) of mixup: the classifier gets λ z + (1 - λ) z[partners] instead of
                the pooled representations z [B, D].

        Returns:
            Logits in the dtype of the weights, also under autocast, [B, C].
        """
        return self.classify(self.encode(batch), self.hidden_positions(batch), mixed)

    def classify(self, states: Tensor, hidden: Tensor, mixed: tuple[float, Tensor] | None = None) -> Tensor:
        """Pool token states [B, T, D] over the positions that are not hidden (bool [B, T]), and classify."""
        with full_precision(states):
            pooled: Tensor = self.pooling(states, hidden)
            if mixed is not None:
                share, partners = mixed
                pooled = share * pooled + (1 - share) * pooled[partners]
            logits: Tensor = self.classifier(pooled)
        return logits

    def encode(self, batch: PairBatch) -> Tensor:
        """Compute the token states in the dtype of the weights, [B, T, D]."""
        if batch.tokens.shape[1] > self.window:
            raise ArgumentError(
                "batch", f"expected at most window = {self.window} positions, got {batch.tokens.shape[1]}."
            )
        segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
        with torch.no_grad() if self.options.freeze_encoder else nullcontext():
            out = self.encoder(input_ids=batch.tokens, attention_mask=(~batch.padding).long(), **segments)
        states: Tensor = out.last_hidden_state
        return states.to(next(self.classifier.parameters()).dtype)

    def hidden_positions(self, batch: PairBatch) -> Tensor:
        """Positions that the pooling ignores, bool [B, T]."""
        return batch.padding if self.options.special_tokens else batch.padding | batch.special

    def pooled_lengths(self, split: PairSplit) -> Tensor:
        """Number of tokens of each pair that the pooling uses, int64 [N] on the CPU."""
        return split.lengths if self.options.special_tokens else split.ordinary_lengths

    def attention_layers(self) -> list[BoltzmannPooling]:
        """Return the layers that have fields and couplings."""
        return [self.pooling] if isinstance(self.pooling, BoltzmannPooling) else []


def full_precision(states: Tensor) -> torch.autocast:
    """Context without autocast on the device of the states, for the pooling."""
    # Norms of coalitions and fixed points are inaccurate in half precision, and cheap in float32.
    return torch.autocast(states.device.type, enabled=False)


def _pooling(
    options: PairModelOptions, width: int, window: int, sampler: str | Sampler, gradient: str
) -> Pooling:
    if options.pooling == "mean":
        return MeanPooling()
    if options.pooling == "projected_mean":
        return ProjectedMeanPooling(width, options.temperature / (8 * math.sqrt(width)))
    if options.pooling == "softmax":
        return SoftmaxPooling(width, options.num_heads)
    if options.pooling == "boltzmann":
        return BoltzmannPooling(width, options.num_heads, window, sampler=sampler, gradient=gradient)
    from diabat.attention.neurogame import NeuroGameAttention

    return NeuroGameAttention(
        width,
        options.num_heads,
        sampler,
        gradient=gradient,
        temperature=options.temperature,
        learn_temperature=options.learn_temperature,
        weighting=options.weighting,
        num_coalitions=options.coalitions,
        eval_coalitions=options.eval_coalitions,
        f=options.value_function,
        mode=options.mode,
    )


def _classifier(options: PairModelOptions, width: int, num_classes: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Dropout(options.dropout)]
    for _ in range(options.ffn_layers):
        layers += [nn.Linear(width, options.ffn_dim), nn.GELU(), nn.Dropout(options.dropout)]
        width = options.ffn_dim
    return nn.Sequential(*layers, nn.Linear(width, num_classes))
