"""A decoder-only Transformer whose attention weights come from an Ising model."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from diabat.attention.boltzmann import BoltzmannAttention
from diabat.attention.coupled import couplings_of
from diabat.attention.couplings import CouplingInit
from diabat.checks import ArgumentError, check_choice, check_number, keep_count
from diabat.compute.memory import require_memory
from diabat.lab.models.base import Model, ModelOptions, ModelState, check_state, check_symbols
from diabat.samplers.state import sampler_parameters

if TYPE_CHECKING:
    from diabat.attention.decoding import DecodingState
    from diabat.samplers.base import Sampler

_OF_ATTENTION = ("mode", "relative", "bandwidth", "offset_bias", "coupling_init", "causal", "readout", "far")


@dataclass(frozen=True)
class TransformerOptions(ModelOptions):
    """Size and attention mode of the model; the default sizes are those of the published Tiny Shakespeare model.

    Attributes:
        name: Name of the model.
        embed_dim: Width of the residual stream, divisible by ``num_heads``.
        num_heads: Heads H of every attention layer.
        num_layers: Blocks.
        ffn_dim: Hidden width of the feed-forward network, 0 for none.
        dropout: Probability in 0 .. 1 (exclusive) of dropout on the two outputs of a block.
        attention_dropout: The same for the attention weights; None takes ``dropout``.
        embedding_dropout: The same for the sum of the embeddings of symbols and positions.
        mode: ``softmax``, or the terms of the energy: ``h+J``, ``h``, ``J``, ``h+K``, ``J+K``, ``h+J+K``, ``K``; or
            ``J-self``.  See :class:`diabat.BoltzmannAttention`.
        causal: Whether position i sees positions j <= i only.
        bandwidth: w; only couplings J_jk with |j - k| <= w are parameters.  None makes all of them parameters.
        relative: Couplings between the last keys that a query sees, for sequences of any length.
        attention_window: T, the number of coupled positions, with ``relative``; None couples the whole context.
        far: With ``relative``, keys before the window: ``independent`` spins, as for None, or ``none``, not visible.
        readout: Attention weights from the ``odds`` of a spin, or from its ``probability``, as in the paper.
        positions: ``learned`` embeddings, one for each position of the context; ``rope``: rotary positions in every
            attention layer; or ``none``.
        offset_bias: With ``relative``, a learned bias on the scores of the last keys, by head and offset.
        coupling_init: Initial couplings: ``mean`` and ``std`` of J_jk for abs(j - k) <= ``max_distance``, or a number;
            None for 0.  At a rate of 3e-5, that of the paper, J hardly moves from them.
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
    far: str | None = None
    readout: str = "odds"
    positions: str = "learned"
    offset_bias: bool = False
    coupling_init: CouplingInit | float | None = None

    def __post_init__(self) -> None:
        for name, least in (("embed_dim", 1), ("num_heads", 1), ("num_layers", 1), ("ffn_dim", 0)):
            keep_count(self, name, least=least)
        for name in ("bandwidth", "attention_window"):
            keep_count(self, name, optional=True)
        for name in ("dropout", "attention_dropout", "embedding_dropout"):
            check_number(name, getattr(self, name), "[0, 1)", optional=name == "attention_dropout")
        check_choice("positions", self.positions, ("learned", "rope", "none"))
        if self.attention_window is not None and not self.relative:
            raise ArgumentError("attention_window", "None without relative couplings", self.attention_window)
        if self.positions == "rope" and self.embed_dim // self.num_heads % 2:
            got = f"{self.embed_dim} / {self.num_heads}"
            raise ArgumentError("positions", f"'rope' expects an even embed_dim / num_heads, got {got}.")

        with torch.random.fork_rng(devices=[]):  # options that contradict each other are refused now
            self.attention(1, None, device="meta")  # whose backend does not matter

    def attention(
        self, window: int, sampler: Sampler | str | None, gradient: str = "auto", device: str | None = None
    ) -> BoltzmannAttention:
        """Build the attention of a block with ``window`` coupled positions."""
        options: dict[str, Any] = {name: getattr(self, name) for name in _OF_ATTENTION}
        options["dropout"] = self.dropout if self.attention_dropout is None else self.attention_dropout
        options |= {"rotary": self.positions == "rope", "sampler": sampler, "gradient": gradient}
        return BoltzmannAttention(self.embed_dim, self.num_heads, window, device=device, **options)

    @property
    def uses_sampler(self) -> bool:
        """Whether the attention calls a sampler for its marginals."""
        return self.mode != "softmax"

    def build(
        self, vocab_size: int, num_classes: int, window: int, sampler: Sampler, gradient: str, seed: int
    ) -> Transformer:
        """Build the model, see :meth:`diabat.lab.models.ModelOptions.build`."""
        torch.manual_seed(seed)
        try:
            return Transformer(self, vocab_size, num_classes, window, sampler, gradient)
        except ArgumentError as error:
            if error.argument != "window" or self.attention_window is None:
                raise
            raise type(error)("attention_window", error.reason) from error  # the option that gave the window


class Block(nn.Module):
    """Pre-LN block: x + attention(LN(x)), then x + FFN(LN(x)) unless ``ffn_dim`` is 0."""

    def __init__(
        self, options: TransformerOptions, window: int, sampler: str | Sampler, gradient: str
    ) -> None:
        super().__init__()
        width = options.embed_dim
        self.attention_norm = nn.LayerNorm(width)
        self.attention = options.attention(options.attention_window or window, sampler, gradient)
        self.dropout = nn.Dropout(options.dropout)
        self.ffn: nn.Sequential | None = None
        if options.ffn_dim:
            self.ffn = nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, options.ffn_dim),
                nn.GELU(),
                nn.Linear(options.ffn_dim, width),
                nn.Dropout(options.dropout),
            )

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D]."""
        return self.added(x, self.attention(self.attention_norm(x), key_padding_mask=key_padding_mask))

    def prefill(self, x: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, DecodingState]:
        """Map a prompt [B, L, D], and return the state from which :meth:`step` continues."""
        attended, state = self.attention.prefill(self.attention_norm(x), key_padding_mask)
        return self.added(x, attended), state

    def step(self, x: Tensor, state: DecodingState | None) -> tuple[Tensor, DecodingState]:
        """Map one token of every sequence, [B, D]."""
        attended, state = self.attention.step(self.attention_norm(x), state)
        return self.added(x, attended), state

    def added(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the output of the attention, then that of the feed-forward network, to the residual stream ``x``."""
        x = x + self.dropout(attended)
        return x if self.ffn is None else x + self.ffn(x)


class Transformer(Model):
    """Symbols to class logits, one per position: embeddings, pre-LN blocks, a final LayerNorm, a linear head.

    Initialisation: every matrix and embedding is N(0, 0.02²), biases are 0, LayerNorms are 1 and 0,
    couplings and learnable anneals are left as the attention layer made them.  The draws of a parameter depend
    on torch's global seed and on its name only, so that models of all modes built from one seed start from the
    same weights.

    Args:
        options: Size and mode.
        vocab_size: Number of input symbols.
        num_classes: Number of classes C.
        window: The context: longest sequence, unless couplings are relative and positions rotary, when any length is
            possible; and the number of spins of an attention problem, unless ``options.attention_window`` is given.
        sampler: Backend of every attention layer, by name or as an object.
        gradient: Gradient estimator of every attention layer.
    """

    options: TransformerOptions

    def __init__(
        self,
        options: TransformerOptions,
        vocab_size: int,
        num_classes: int,
        window: int,
        sampler: str | Sampler = "exact",
        gradient: str = "auto",
    ) -> None:
        super().__init__()
        width, depth, ffn_dim = options.embed_dim, options.num_layers, options.ffn_dim
        numbers = width * (depth * (4 * width + 2 * ffn_dim) + vocab_size + window + num_classes)
        # With gradients and both moments of the optimiser, float32; the attention layer checks its couplings itself.
        sizes = f"embed_dim = {width}, num_layers = {depth}, ffn_dim = {ffn_dim} and {vocab_size} symbols"
        require_memory(16 * numbers, f"weights of {sizes}", "embed_dim")
        seed = int(torch.randint(2**31, ()))
        self.options = options
        self.window = window
        self.symbols = nn.Embedding(vocab_size, options.embed_dim)
        self.positions = nn.Embedding(window, options.embed_dim) if options.positions == "learned" else None
        self.embedding_dropout = nn.Dropout(options.embedding_dropout)
        self.blocks = nn.ModuleList(
            Block(options, window, sampler, gradient) for _ in range(options.num_layers)
        )
        self.norm = nn.LayerNorm(options.embed_dim)
        self.head = nn.Linear(options.embed_dim, num_classes)
        _initialise(self, seed)

    def forward(self, symbols: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Compute logits [B, T, C] in the dtype of the weights.

        Args:
            symbols: int64 [B, T], T <= window (else ValueError); any T with relative couplings and rotary positions.
            key_padding_mask: bool [B, T], True at padding, which no position attends to.
        """
        self._require_within_context("symbols", symbols.shape[-1])
        x = self.embedded(symbols)
        for block in self.blocks:
            x = block(x, key_padding_mask)
        return self.logits(x)

    def prefill(self, symbols: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, ModelState]:
        """Compute the logits [B, L, C] of a prompt, and the state from which :meth:`step` continues.

        Args:
            symbols: int64 [B, L], L as in :meth:`forward`.
            key_padding_mask: bool [B, L], True at padding; of prompts of different lengths on the left.

        Raises:
            ValueError: If the couplings are not relative, a shape or dtype is wrong, or the prompt is longer than the
                context.
        """
        self._require_relative()
        check_symbols("symbols", symbols, "[B, L]")
        self._require_within_context("symbols", symbols.shape[-1])
        x, states = self.embedded(symbols), []
        for block in self.all_blocks():
            x, state = block.prefill(x, key_padding_mask)
            states.append(state)
        return self.logits(x), ModelState(tuple(states))

    def step(self, token: Tensor, state: ModelState | None = None) -> tuple[Tensor, ModelState]:
        """Compute the logits [B, C] behind one new token, the last ones of :meth:`forward` over all tokens so far.

        With learned positions a sequence ends at the context; with rotary ones it is of any length.

        Args:
            token: The new symbol of every sequence, int64 [B].
            state: State of the tokens before it, which does not change; None for the first token.

        Raises:
            ValueError: If the couplings are not relative, a shape or dtype is wrong, or the context is full.
        """
        self._require_relative()
        check_symbols("token", token, "[B]")
        check_state(state, len(self.blocks))
        position = 0
        if self.positions is not None and state is not None:  # rotary positions stay on the device
            position = int(state.position)
            self._require_within_context("token", position + 1)
        x, states = self.embedded(token[:, None], position)[:, 0], []
        for index, block in enumerate(self.all_blocks()):
            x, new = block.step(x, None if state is None else state.layers[index])
            states.append(new)
        return self.logits(x), ModelState(tuple(states))

    def embedded(self, symbols: Tensor, first: int = 0) -> Tensor:
        """Embeddings [B, L, D] of symbols [B, L] at the positions first, first + 1, ..."""
        x = self.symbols(symbols)
        if self.positions is not None:
            x = x + self.positions.weight[first : first + symbols.shape[-1]]
        return self.embedding_dropout(x)

    def logits(self, x: Tensor) -> Tensor:
        """Logits [*, C] of the output of the last block, [*, D]."""
        return self.head(self.norm(x))

    @property
    def longest(self) -> int | None:
        """Largest number of positions; None for any."""
        return self.window if self.positions is not None or not self.options.relative else None

    def _require_within_context(self, argument: str, length: int) -> None:
        if self.longest is not None and length > self.longest:
            raise ArgumentError(argument, f"at most window = {self.window} positions", length)

    def _require_relative(self) -> None:
        if not self.options.relative:
            raise ArgumentError("relative", "True to decode token by token", "False")

    def all_blocks(self) -> list[Block]:
        """Return the blocks, first one first."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def attention_layers(self) -> list[BoltzmannAttention]:
        """Return the attention layers, first block first."""
        return [module for module in self.modules() if isinstance(module, BoltzmannAttention)]


@torch.no_grad()
def _initialise(model: nn.Module, seed: int) -> None:
    kept = {module.weight for module in model.modules() if isinstance(module, nn.LayerNorm)}
    kept |= {*sampler_parameters(model)}
    kept |= {p for part in couplings_of(model).values() for p in part.parameters()}
    for name, parameter in model.named_parameters():
        if parameter in kept:
            continue
        if parameter.ndim < 2:
            parameter.zero_()
            continue
        # Each parameter has its own random stream on the CPU: the same on every device and for every model.
        # (torch's CPU generator uses only the low 32 bits of a seed, hence the hash of both.)
        stream = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        parameter.copy_(0.02 * torch.randn(parameter.shape, generator=stream, dtype=parameter.dtype))
