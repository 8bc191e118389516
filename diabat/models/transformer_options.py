"""Options of the decoder: sizes, and what its attention layers are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from diabat.attention.boltzmann import check_offset_bias, check_windows
from diabat.attention.coupled import SELF_MODES
from diabat.checks import ArgumentError, check_choice

POSITIONS = ("learned", "rope")


@dataclass(frozen=True)
class TransformerOptions:
    """Size and attention mode of the model; the defaults are the published Tiny Shakespeare model.

    Attributes:
        name: Name of the model.
        embed_dim: Width of the residual stream, divisible by ``num_heads``.
        num_heads: Heads H of every attention layer.
        num_layers: Blocks.
        ffn_dim: Hidden width of the feed-forward network, 0 for none.
        dropout: Probability in 0 .. 1 (exclusive) of dropout on the two outputs of a block.
        attention_dropout: The same for the attention weights; None takes ``dropout``.
        embedding_dropout: The same for the sum of the embeddings of symbols and positions.
        mode: ``softmax``, or the terms of the energy: ``h+J``, ``h``, ``J``, ``h+K``, ``J+K``, ``h+J+K``,
            ``K``; or ``J-self``.  See :class:`diabat.BoltzmannAttention`.
        causal: Whether position i sees positions j <= i only.
        bandwidth: w; only couplings J_jk with |j - k| <= w are parameters.  None makes all of them parameters.
        relative: Couplings between the last keys that a query sees, for sequences of any length.
        attention_window: T, the number of coupled positions, with ``relative``; None couples the whole context.
        far: With ``relative``, keys before the window: ``none`` of them is visible, or they are ``independent``.
        weights: Attention weights from the ``probability`` of a spin, or from its ``odds``.
        positions: ``learned`` embeddings, one for each position of the context, or ``rope``: rotary positions in
            every attention layer.
        offset_bias: With ``relative``, a learned bias on the scores of the last keys, by head and offset.
    """

    name: Literal["transformer"] = field(default="transformer", kw_only=True)
    embed_dim: int = 64
    num_heads: int = 1
    num_layers: int = 1
    ffn_dim: int = 128
    dropout: float = 0.1
    attention_dropout: float | None = None
    embedding_dropout: float = 0.0
    mode: str = "h+J"
    causal: bool = True
    bandwidth: int | None = None
    relative: bool = False
    attention_window: int | None = None
    far: str = "none"
    weights: str = "probability"
    positions: str = "learned"
    offset_bias: bool = False

    def __post_init__(self) -> None:
        for name, least in (("embed_dim", 1), ("num_heads", 1), ("num_layers", 1), ("ffn_dim", 0)):
            if getattr(self, name) < least:
                raise ArgumentError(name, f"expected an integer >= {least}, got {getattr(self, name)}.")
        if self.embed_dim % self.num_heads:
            raise ArgumentError(
                "embed_dim", f"expected a multiple of num_heads = {self.num_heads}, got {self.embed_dim}."
            )
        for name in ("dropout", "attention_dropout", "embedding_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ArgumentError(name, f"expected a probability in [0, 1), got {value}.")
        for name in ("bandwidth", "attention_window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(name, f"expected None or an integer >= 1, got {value}.")
        check_choice("mode", self.mode, SELF_MODES)
        check_choice("positions", self.positions, POSITIONS)
        check_windows(self.relative, self.causal, self.far, self.weights, self.mode)
        check_offset_bias(self.offset_bias, self.relative, self.mode)
        if self.attention_window is not None and not self.relative:
            raise ArgumentError(
                "attention_window", f"expected None without relative couplings, got {self.attention_window}."
            )
        if self.positions == "rope" and self.embed_dim // self.num_heads % 2:
            raise ArgumentError(
                "positions",
                f"'rope' expects an even embed_dim / num_heads, got {self.embed_dim} / {self.num_heads}.",
            )

    @property
    def attention(self) -> str:
        """Short description of the attention."""
        return self.mode

    @property
    def uses_sampler(self) -> bool:
        """Whether the attention calls a sampler for its marginals."""
        return self.mode != "softmax"
