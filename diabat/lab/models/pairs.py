"""A classifier of sentences: an encoder, a pooling of the states of its tokens, a feed-forward network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from diabat.attention.couplings import CouplingInit
from diabat.attention.layer import IsingLayer, require_within_limits
from diabat.attention.multihead import BoltzmannMultiheadAttention
from diabat.attention.neurogame import NeuroGameAttention
from diabat.checks import ArgumentError, check_choice, check_number, keep_count
from diabat.compute.memory import require_memory
from diabat.ising import without_autocast
from diabat.lab.models.base import Model, ModelOptions, check_symbols
from diabat.lab.models.transformer import Block, TransformerOptions
from diabat.lab.tasks.base import PADDING, SEPARATOR, Answers

if TYPE_CHECKING:
    from diabat.samplers.base import Sampler

POOLINGS = ("neurogame", "boltzmann", "softmax", "mean")
_OF_THE_GAME = (
    *("mode", "temperature", "learn_temperature", "weighting"),
    *("num_coalitions", "eval_coalitions", "f", "normalisation"),
)


class MeanPooling(nn.Module):
    """Mean of the states [B, T, D] of the tokens that are not padding, bool [B, T], as [B, D]."""

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Pool."""
        return (self.weights(x, key_padding_mask)[:, 0, None] @ x)[:, 0]

    def weights(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """1/n at every token, [B, 1, T]."""
        present = (~key_padding_mask).to(x.dtype)
        return (present / present.sum(-1, keepdim=True))[:, None]


class QueryPooling(nn.Module):
    r"""Attention with one learned query over the tokens: softmax, or Boltzmann with J between positions.

    P(s) ∝ exp( Σ_i h_i s_i + Σ_{i<j} J_ij s_i s_j ), h_i = q · k_i / sqrt(d), and weights alpha_i / Σ_j alpha_j with
    alpha_i = P(s_i = +1), for each head.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
        window: Largest number of tokens T.
        options: Others of :class:`diabat.BoltzmannMultiheadAttention`, such as ``mode`` and ``sampler``.
    """

    def __init__(self, embed_dim: int, num_heads: int, window: int, **options: Any) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, embed_dim))
        self.attention = BoltzmannMultiheadAttention(
            embed_dim, num_heads, batch_first=True, window=window, **options
        )

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Pool states [B, T, D] without padding, bool [B, T], to [B, D]."""
        return self._attended(x, key_padding_mask, need_weights=False)[0][:, 0]

    def weights(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Normalised weights of each head, [B, H, T]."""
        weights = self._attended(x, key_padding_mask, need_weights=True)[1]
        assert weights is not None
        return weights[:, :, 0]

    def _attended(self, x: Tensor, padding: Tensor, *, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        query = self.query.expand(len(x), -1, -1).to(x)
        return self.attention(query, x, x, padding, need_weights, average_attn_weights=False)


Pooling = NeuroGameAttention | QueryPooling | MeanPooling


@dataclass(frozen=True)
class PairClassifierOptions(ModelOptions):
    """Size and pooling of the model.

    Attributes:
        name: Name of the model.
        embed_dim: Width D, divisible by ``num_heads``.
        num_heads: Heads H of the encoder and of the pooling.
        num_layers: Blocks of the encoder, bidirectional softmax attention; 0 pools the embeddings.
        ffn_dim: Hidden width of the feed-forward network of a block, 0 for none.
        hidden: Hidden width of the classifier.
        dropout: Probability in 0 .. 1 (exclusive) of dropout in blocks and classifier.
        pooling: ``neurogame``: the game of :class:`diabat.NeuroGameAttention`; a learned query with ``boltzmann`` or
            ``softmax`` weights; or the ``mean``.
        mode: Of ``neurogame``: ``h+J``, ``h`` or ``uniform``; of ``boltzmann`` that of
            :class:`diabat.BoltzmannMultiheadAttention`.
        pooling_dropout: Dropout of the weights of the pooling.
        temperature: γ of ``neurogame`` at the start.
        learn_temperature: Train log γ of each head.
        weighting: Of the coalitions of ``neurogame``, ``gibbs`` or ``uniform``.
        num_coalitions: Coalitions K of ``neurogame`` in training.
        eval_coalitions: K in evaluation.
        f: Of the value of a coalition, ``identity``, ``relu`` or ``tanh``.
        normalisation: Of the indices, ``l1``, ``sum`` or ``none``.
        coupling_init: Initial couplings of ``boltzmann``: ``mean`` and ``std`` of J_jk for abs(j - k) <=
            ``max_distance``, or a number; None for 0.
    """

    answers: ClassVar[Answers] = "sequence"

    name: Literal["pairs"] = field(default="pairs", kw_only=True)
    embed_dim: int = 64
    num_heads: int = 2
    num_layers: int = 2
    ffn_dim: int = 128
    hidden: int = 64
    dropout: float = 0.1
    pooling: str = "neurogame"
    mode: str = "h+J"
    pooling_dropout: float = 0.0
    temperature: float = 0.25
    learn_temperature: bool = False
    weighting: str = "gibbs"
    num_coalitions: int = 15
    eval_coalitions: int = 25
    f: str = "identity"
    normalisation: str = "l1"
    coupling_init: CouplingInit | float | None = None

    def __post_init__(self) -> None:
        for name in ("embed_dim", "num_heads", "hidden"):
            keep_count(self, name)
        for name in ("num_layers", "ffn_dim"):
            keep_count(self, name, least=0)
        for name in ("dropout", "pooling_dropout"):
            check_number(name, getattr(self, name), "[0, 1)")
        check_choice("pooling", self.pooling, POOLINGS)
        # The pooling refuses its options now.
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            self.pool(1, None)
        _ = self.encoder

    @property
    def encoder(self) -> TransformerOptions:
        """Options of the blocks of the encoder."""
        sizes = {name: getattr(self, name) for name in ("embed_dim", "num_heads", "ffn_dim", "dropout")}
        return TransformerOptions(**sizes, mode="softmax", causal=False)

    def pool(self, window: int, sampler: Sampler | str | None, gradient: str = "auto") -> Pooling:
        """Build the pooling of up to ``window`` tokens."""
        width, heads = self.embed_dim, self.num_heads
        options: dict[str, Any] = {"sampler": sampler, "gradient": gradient, "dropout": self.pooling_dropout}
        if self.pooling == "mean":
            return MeanPooling()
        if self.pooling == "neurogame":
            options |= {name: getattr(self, name) for name in _OF_THE_GAME}
            return NeuroGameAttention(width, heads, **options)
        mode = self.mode if self.pooling == "boltzmann" else "softmax"
        return QueryPooling(width, heads, window, mode=mode, coupling_init=self.coupling_init, **options)

    @property
    def described(self) -> str:
        """The pooling, with its mode if it has one."""
        return f"{self.pooling} {self.mode}" if self.pooling in ("neurogame", "boltzmann") else self.pooling

    @property
    def uses_sampler(self) -> bool:
        """Whether the pooling calls a sampler for its marginals."""
        return self.pooling in ("neurogame", "boltzmann") and ("J" in self.mode or "K" in self.mode)

    def build(
        self, vocab_size: int, num_classes: int, window: int, sampler: Sampler, gradient: str, seed: int
    ) -> PairClassifier:
        """Build the model, see :meth:`diabat.lab.models.ModelOptions.build`."""
        torch.manual_seed(seed)
        return PairClassifier(self, vocab_size, num_classes, window, sampler, gradient)


class PairClassifier(Model):
    """Symbols [B, T] of sentences to class logits [B, 1, C].

    Embeddings of symbols, of positions in a sentence, and of the first and second sentence; bidirectional pre-LN
    blocks with a final LayerNorm; the pooling; and a network with one hidden layer.  Weights drawn
    from one seed are the same for all poolings, but for those of the pooling.

    Args:
        options: Size and pooling.
        vocab_size: Number of symbols; 0 is padding, which stands behind the sentences, 1 separates them.
        num_classes: Number of classes C.
        window: Largest number of tokens.
        sampler: Backend of the pooling, by name or as an object; None for mean field as in the paper.
        gradient: Gradient estimator of the pooling.
    """

    options: PairClassifierOptions

    def __init__(
        self,
        options: PairClassifierOptions,
        vocab_size: int,
        num_classes: int,
        window: int,
        sampler: str | Sampler | None = None,
        gradient: str = "auto",
    ) -> None:
        super().__init__()
        width, dropout = options.embed_dim, options.dropout
        numbers = width * (options.num_layers * (4 * width + 2 * options.ffn_dim) + vocab_size + window)
        require_memory(16 * numbers, f"weights of {vocab_size} symbols, {window} positions", "embed_dim")
        self.options, self.window = options, window
        self.symbols = nn.Embedding(vocab_size, width)
        self.positions, self.segments = nn.Embedding(window, width), nn.Embedding(2, width)
        self.blocks = nn.ModuleList(
            Block(options.encoder, window, "exact", "auto") for _ in range(options.num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Sequential(
            nn.LayerNorm(width),  # a game of new weights has small outputs
            nn.Dropout(dropout),
            nn.Linear(width, options.hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(options.hidden, num_classes),
        )
        self.pooling = options.pool(window, sampler, gradient)

    def forward(self, symbols: Tensor) -> Tensor:
        """Logits [B, 1, C] of symbols, int64 [B, T], no more tokens than the window (else ValueError)."""
        x, padding = self.states(symbols)
        with without_autocast(x):  # norms of coalitions and marginals are inaccurate in half precision
            logits: Tensor = self.classifier(self.pooling(x, padding))
        return logits[:, None]

    def states(self, symbols: Tensor) -> tuple[Tensor, Tensor]:
        """States of the tokens, [B, L, D] of the longest sequence, and which are padding, bool [B, L]."""
        check_symbols("symbols", symbols, "[B, T]")
        length = int((symbols != PADDING).sum(-1).max())
        if length > self.window:
            raise ArgumentError("symbols", f"at most window = {self.window} tokens", length)
        symbols = symbols[:, :length]
        padding, separator = symbols == PADDING, symbols == SEPARATOR
        second = separator.cumsum(-1).clamp(max=1)
        places = torch.arange(length, device=symbols.device) - second * separator.long().argmax(
            -1, keepdim=True
        )
        x = self.symbols(symbols) + self.positions(places) + self.segments(second)
        for block in self.blocks:
            x = block(x, padding)
        return self.norm(x).to(self.symbols.weight.dtype), padding

    def attention_layers(self) -> list[IsingLayer]:
        """Return the layer of the pooling with fields and couplings, if it has one."""
        layer = self.pooling.attention if isinstance(self.pooling, QueryPooling) else self.pooling
        return [layer] if isinstance(layer, IsingLayer) else []

    def check_lengths(self, symbols: Tensor, batch_size: int) -> None:
        """Refuse sequences of which a batch of the longest is beyond the sampler of a game."""
        if isinstance(self.pooling, NeuroGameAttention) and self.options.uses_sampler:
            longest = (symbols != PADDING).sum(-1).sort(descending=True).values[:batch_size]
            require_within_limits(self.pooling.sampler, longest, self.options.num_heads, "sampler:")
