"""A classifier of sentence pairs: encoder, pooling over tokens, feed-forward network (arXiv:2603.18761, §3.12)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from diabat.attention.neurogame import PAPER_MEAN_FIELD, NeuroGameAttention
from diabat.attention.pooling import BoltzmannPooling
from diabat.checks import ArgumentError, check_choice, check_count, check_number, check_positive
from diabat.ising import without_autocast
from diabat.models.base import Model, ModelOptions
from diabat.models.encoder import load_encoder, positions_of
from diabat.models.poolings import MeanPooling, ProjectedMeanPooling, SoftmaxPooling
from diabat.tasks.base import ExampleKind
from diabat.tasks.hub import load_tokenizer
from diabat.tasks.nli_tokens import PairBatch, PairSplit

if TYPE_CHECKING:
    from diabat.samplers.base import Sampler

POOLINGS = ("neurogame", "mean", "softmax", "boltzmann", "projected_mean")
"""How a model of sentence pairs makes one vector of its tokens."""
Pooling = NeuroGameAttention | MeanPooling | SoftmaxPooling | BoltzmannPooling


@dataclass(frozen=True)
class PairModelOptions(ModelOptions):
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

    examples: ClassVar[ExampleKind] = "pairs"
    sampler: ClassVar[Mapping[str, Any]] = {"backend": "mean_field", **PAPER_MEAN_FIELD}
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
        check_choice("pooling", self.pooling, POOLINGS)
        if self.mode != "h+J" and self.pooling != "neurogame":
            raise ArgumentError("mode", f"expected 'h+J' with pooling '{self.pooling}', got '{self.mode}'.")
        for name in ("num_heads", "coalitions", "eval_coalitions", "ffn_dim"):
            check_count(name, getattr(self, name))
        check_count("ffn_layers", self.ffn_layers, least=0)
        check_number("dropout", self.dropout, "[0, 1)")
        check_positive("temperature", self.temperature)

    @property
    def attention(self) -> str:
        """Short description of the pooling."""
        return f"{self.pooling} pooling" + ("" if self.mode == "h+J" else f", mode {self.mode}")

    @property
    def uses_sampler(self) -> bool:
        """Whether the pooling calls a sampler for its marginals."""
        return self.pooling in ("neurogame", "boltzmann") and self.mode == "h+J"

    def load_tokenizer(self) -> Any:
        """Load the tokenizer; the argument of an error is ``tokenizer`` or ``encoder``."""
        argument = "encoder" if self.tokenizer is None else "tokenizer"
        name = self.tokenizer or self.encoder
        return load_tokenizer(name, local_files_only=self.local_files_only, argument=argument)

    def build(
        self, vocab_size: int, num_classes: int, window: int, sampler: Sampler, gradient: str, seed: int
    ) -> PairClassifier:
        """Load the encoder and build the model, see :meth:`diabat.models.ModelOptions.build`."""
        torch.manual_seed(seed)
        encoder = load_encoder(
            self.encoder, pretrained=self.pretrained, changes=self.encoder_config,
            local_files_only=self.local_files_only,
        )  # fmt: skip
        limit = positions_of(encoder)
        if limit is not None and window > limit:
            raise ArgumentError("window", f"expected at most {limit}, the encoder's positions, got {window}.")
        rows = encoder.get_input_embeddings().num_embeddings  # type: ignore[operator, union-attr, unused-ignore]  # a module, says transformers
        if vocab_size > rows:
            expected = f"at most {rows} tokens as the encoder has"
            raise ArgumentError("tokenizer", f"expected {expected}, got {vocab_size}.")
        # Reseed: poolings of one seed start with the same classifier, whatever the encoder has drawn.
        torch.manual_seed(seed)
        return PairClassifier(self, encoder, num_classes, window, sampler, gradient)


class PairClassifier(Model):
    """Encoder, pooling and classifier.

    Args:
        options: Pooling, classifier and the rest.
        encoder: The encoder, from :func:`diabat.models.encoder.load_encoder`; D is the width of its states.
        num_classes: C.
        window: Largest number of tokens of a pair.
        sampler: Backend of the poolings that have an Ising model.
        gradient: Gradient estimator of the backend.
    """

    options: PairModelOptions
    mixes = True

    def __init__(
        self,
        options: PairModelOptions,
        encoder: nn.Module,
        num_classes: int,
        window: int,
        sampler: str | Sampler = "mean_field",
        gradient: str = "auto",
    ) -> None:
        super().__init__()
        self.options, self.window = options, window
        self.encoder = encoder
        width = int(encoder.config.hidden_size)  # type: ignore[union-attr, arg-type]  # a module, says torch
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
        return self.classify(self.encode(batch), self.mask(batch), mixed)

    def encode(self, batch: PairBatch) -> Tensor:
        """Compute the token states in the dtype of the weights, [B, T, D]."""
        if (length := batch.tokens.shape[1]) > self.window:
            raise ArgumentError("batch", f"expected at most window = {self.window} positions, got {length}.")
        segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
        with torch.no_grad() if self.options.freeze_encoder else nullcontext():
            out = self.encoder(input_ids=batch.tokens, attention_mask=(~batch.padding).long(), **segments)
        states: Tensor = out.last_hidden_state
        return states.to(next(self.classifier.parameters()).dtype)

    def mask(self, batch: PairBatch) -> Tensor:
        """Positions that the pooling ignores, bool [B, T]."""
        return batch.padding if self.options.special_tokens else batch.padding | batch.special

    def classify(self, states: Tensor, mask: Tensor, mixed: tuple[float, Tensor] | None = None) -> Tensor:
        """Pool token states [B, T, D] over the positions that the mask (bool [B, T]) leaves, and classify."""
        # Norms of coalitions and fixed points are inaccurate in half precision, and cheap in float32.
        with without_autocast(states):
            pooled: Tensor = self.pooling(states, mask)
            if mixed is not None:
                share, partners = mixed
                pooled = share * pooled + (1 - share) * pooled[partners]
            logits: Tensor = self.classifier(pooled)
        return logits

    def attention_layers(self) -> list[BoltzmannPooling]:
        """Return the layers that have fields and couplings."""
        return [self.pooling] if isinstance(self.pooling, BoltzmannPooling) else []

    def check_batches(self, examples: PairSplit, batches: Sequence[Tensor]) -> None:
        """Refuse passes that exceed the limits of the sampler; only NeuroGame pooling has such limits."""
        if not isinstance(self.pooling, NeuroGameAttention):
            return
        able = self.pooling.sampler.capabilities
        if able.max_spins is None and able.max_states is None:
            return
        lengths = examples.lengths if self.options.special_tokens else examples.ordinary_lengths
        passes = [lengths[batch] for batch in batches if len(batch)]
        longest = max(passes, key=lambda some: float(some.double().exp2().sum()))
        self.pooling.require_lengths(longest, begin="sampler:")


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
