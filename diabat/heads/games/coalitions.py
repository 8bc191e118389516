"""The game on attention heads: v(S) is how well a model does with the heads of the players in S, the others ablated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diabat.attention.games.value_games import FunctionGame
from diabat.checks import ArgumentError, ArgumentTypeError, check_count
from diabat.compute.memory import require_memory
from diabat.heads.calibration.mathematics import CALIBRATED
from diabat.heads.games.ablation import Kind
from diabat.heads.games.decoder import Groups, Head, player_groups
from diabat.heads.games.dividends import Dividends, small_coalitions
from diabat.heads.games.questions import Sample, digest, tokenised
from diabat.heads.games.replay import Replay
from diabat.heads.games.store import ValueStore
from diabat.heads.games.values import value_of
from diabat.huggingface.model_digest import model_digest
from diabat.huggingface.pretrained import query_heads
from diabat.samplers.capabilities import UnsupportedError

Progress = Callable[[int, int], None]


class HeadCoalitions(FunctionGame):
    r"""Mean over samples of v_x(S), the value of sample x when only the players in S attend.

    Takes part in everything that `diabat.attention.games` does with a game.  What has been computed is kept, so that no
    coalition is evaluated twice, also by games of other players (:meth:`of`).  The model is left as it was found.

    Args:
        model: A causal language model of transformers whose attention is behind the AttentionInterface.
        samples: Dicts of ``prompt``, ``messages`` or ``input_ids``, with ``choices`` and ``answer`` as the value needs
            them; see :mod:`diabat.heads.games.questions`.
        layer: Players are the key/value groups of this layer, or of each of these layers, counted from 0; of all
            layers, if there are no ``players`` either.
        players: Instead of ``layer``: groups of heads (layer, head), also across layers.
        value: ``log_odds``, ``option_log_odds``, ``option_log_likelihood``, ``perplexity``, or a function of the
            logits [C, T, vocabulary] and the sample that returns C values.
        tokenizer: That of the model, for texts.
        ablation: What an absent head gives: the mean of the visible values (``uniform``), attention with logits times
            1e-5 (``scaled``), nothing (``zero``), its mean output over all positions of all samples (``mean``), or its
            output for the ``corrupted`` prompt of the sample.
        heads_per_player: With ``layer``: players of so many consecutive heads instead of key/value groups.
        batch_size: Coalitions in one forward pass, which is what bounds the memory.
        dtype: What the model's parameters have to be in; None takes any.
        store: A file that keeps the values; games of the same model, samples, value and ablation go on from it.
        progress: Called with the evaluations done and their total, (samples times new coalitions) of one request.

    Attributes:
        groups: Heads (layer, head) of every player.
        samples: The samples as read.
        progress: As given; may be set.
        store: The values that are known.

    Raises:
        UnsupportedError: If the model has no attention that can be switched, or its parameters another dtype.
        ValueError: If an argument is out of range, players overlap, a sample does not suit the value or is longer than
            the model can read, or the store belongs to another model or game.
        OSError: If the store cannot be read.
        ImportError: If the extra ``hf`` is not installed.
    """

    def __init__(
        self,
        model: Any,
        samples: Iterable[Mapping[str, Any]],
        *,
        layer: int | Sequence[int] | None = None,
        players: Iterable[Iterable[Head]] | None = None,
        value: str | Callable[[Tensor, Mapping[str, Any]], Tensor] = "log_odds",
        tokenizer: Any = None,
        ablation: Kind = "uniform",
        heads_per_player: int | None = None,
        batch_size: int = 16,
        dtype: torch.dtype | None = torch.float32,
        store: str | PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        batch_size = check_count("batch_size", batch_size)
        self._replay = Replay(model, ablation)
        kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
        if dtype is not None and kinds - {dtype}:
            got, wanted = ", ".join(sorted(str(kind)[6:] for kind in kinds - {dtype})), str(dtype)[6:]
            fix = f"load it with dtype=torch.{wanted} (half precision moves dividends), or pass dtype=None"
            raise UnsupportedError("model", f"parameters in {wanted}", f"{got}; {fix}")
        self._play(player_groups(self._replay.attention, layer, players, heads_per_player))
        kept = {"corrupted": ablation == "corrupted", "more": not isinstance(value, str)}
        self.samples = tokenised(samples, tokenizer, self._replay.vocabulary, **kept)
        self._value_of_sample = value_of(value)
        for index, sample in enumerate(self.samples):
            self._value_of_sample.check(sample, f"samples[{index}]", self._replay.positions)
        self._batch_size, self.progress = batch_size, progress
        heads = {layer: query_heads(module) for layer, module in self._replay.attention.items()}
        path, identity = (None, {}) if store is None else (Path(store), self._identity())
        self.store = ValueStore(heads, len(self.samples), path, identity)

    def of(
        self,
        layer: int | Sequence[int] | None = None,
        *,
        players: Iterable[Iterable[Head]] | None = None,
        heads_per_player: int | None = None,
    ) -> HeadCoalitions:
        """Return the game of other players, with the same samples and the values that are known; arguments as above."""
        game = copy.copy(self)
        game._replay = copy.copy(self._replay)
        game._play(player_groups(self._replay.attention, layer, players, heads_per_player))
        return game

    @property
    def num_players(self) -> int:
        """Number n of players."""
        return len(self.groups)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the model that have attention."""
        return tuple(self._replay.attention)

    def heads(self, players: Iterable[int]) -> list[Head]:
        """Heads (layer, head) of players."""
        return sorted(head for player in players for head in self.groups[player])

    def value(self, coalitions: Tensor) -> Tensor:
        """Mean values of coalitions, bool [..., n], as float64 [...]."""
        masks = coalitions.reshape(-1, coalitions.shape[-1])
        return self.sample_values(masks).mean(0).reshape(coalitions.shape[:-1])

    def table(self) -> Tensor:
        """Mean values of all coalitions, float64 [2^n]; bit i of the index: player i is present."""
        return self.sample_table().mean(0)

    def sample_table(self) -> Tensor:
        """Values of all coalitions by sample, float64 [samples, 2^n]; ValueError above 20 players."""
        return self.sample_values(small_coalitions(self.num_players))

    def sample_values(self, coalitions: Tensor) -> Tensor:
        """Values of coalitions, bool [M, n], by sample: float64 [samples, M].

        Raises:
            TypeError: If the coalitions are no bool tensor.
            UnsupportedError: If a block of the model needs more than the states of the block before it.
            ValueError: If the coalitions have another shape, or a value is not finite.
        """
        columns = self._columns(coalitions)
        return torch.from_numpy(self.store.values[:, columns])

    def values_on(self, coalitions: Tensor, samples: Tensor) -> Tensor:
        """Value of each coalition, bool [M, n], on one sample, whose position is in int64 [M]: float64 [M].

        Errors are those of :meth:`sample_values`.
        """
        wanted = samples.cpu().numpy()
        columns = self._columns(coalitions, wanted)
        return torch.from_numpy(self.store.values[wanted, columns])

    def dividends(self, max_size: int | None = None) -> Dividends:
        """Harsanyi dividends with standard errors: of all coalitions, or of those of at most ``max_size`` players.

        The latter are exact as well, and take only the coalitions of at most ``max_size`` players.

        Raises:
            ValueError: If the size is out of range, or there are more than 20 players and none is given.
        """
        masks = small_coalitions(self.num_players, max_size)
        return Dividends.of(self.sample_values(masks), self.num_players, max_size)

    def _columns(self, coalitions: Tensor, wanted: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Columns [M] of coalitions, evaluated on all samples, or each on the ``wanted`` one only."""
        if not isinstance(coalitions, Tensor) or coalitions.dtype != torch.bool:
            got = coalitions.dtype if isinstance(coalitions, Tensor) else type(coalitions).__name__
            raise ArgumentTypeError("coalitions", "a bool tensor", got)
        shape, n = list(coalitions.shape), self.num_players
        if len(shape) != 2 or shape[1] != n:
            raise ArgumentError("coalitions", f"shape [M, {n}]", shape)
        size = 16 * len(self.samples) * len(coalitions)
        require_memory(size, "values of all samples and coalitions", "coalitions")
        columns = self.store.columns(self.groups, coalitions)
        missing = [
            np.unique(columns[np.isnan(row[columns]) & (True if wanted is None else wanted == index)])
            for index, row in enumerate(self.store.values)
        ]
        total = sum(map(len, missing))
        if total:
            distinct, at = np.unique(columns, return_index=True)
            masks = {
                int(column): coalitions[int(row)].cpu() for column, row in zip(distinct, at, strict=True)
            }
            try:
                with self._replay.applied():
                    self._fill(missing, masks, total)
            finally:
                self.store.save()
        return columns

    def _play(self, groups: Groups) -> None:
        self.groups = self._replay.groups = groups
        super().__init__(self.value, len(groups))

    def _fill(self, missing: list[NDArray[np.int64]], masks: dict[int, Tensor], total: int) -> None:
        """Evaluate the columns that each sample lacks."""
        done, replay = 0, self._replay
        if replay.kind == "mean" and not replay.replacements:  # the same for games of other players
            replay.replacements |= replay.average(sample.tokens for sample in self.samples)
        for index, (sample, columns) in enumerate(zip(self.samples, missing, strict=True)):
            forward = self._on(sample)
            for start in range(0, len(columns), self._batch_size):
                part = columns[start : start + self._batch_size]
                present = torch.stack([masks[int(column)] for column in part])
                values = self._value_of_sample.of(partial(forward, present), sample).cpu().numpy()
                if not np.isfinite(values).all():
                    got = values[~np.isfinite(values)][0]
                    raise ArgumentError("value", "finite values", f"{got} of sample {index}")
                self.store.put(index, part, values)
                self.store.save(now=False)
                done += len(part)
                if self.progress is not None:
                    self.progress(done, total)

    def _identity(self) -> dict[str, str]:
        """What values belong to, besides the coalition."""
        replay, model = self._replay, model_digest(self._replay.model)
        if not model["weights"]:
            raise UnsupportedError("store", "a model whose weights are in memory", "one without")
        # How attention is computed, and what a calibration changes in it.
        attention = [replay.model.config._attn_implementation]
        attention += [repr(vars(m)[CALIBRATED]) for m in replay.model.modules() if CALIBRATED in vars(m)]
        return {
            **model,
            "attention": "; ".join(attention),
            "samples": digest(self.samples),
            "value": self._value_of_sample.name,
            "ablation": replay.kind,
        }

    def _on(self, sample: Sample) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """The model on coalitions ``present`` of one sample; what a sequence leaves before the first player is kept."""
        replay = self._replay
        kept: dict[tuple[int, ...], tuple[Tensor, dict[nn.Module, Tensor]]] = {}

        def forward(present: Tensor, tokens: Tensor, keep: Tensor) -> Tensor:
            key, corrupted = tuple(tokens.tolist()), sample.corrupted
            if key not in kept:
                if corrupted is not None:  # the tokens of a choice follow it, too
                    counterpart = torch.cat((corrupted, tokens[len(corrupted) :]))[: len(tokens)]
                    replay.replacements = replay.outputs(counterpart)
                replay.check(tokens)
                kept[key] = replay.prefix(tokens), replay.replacements
            states, replay.replacements = kept[key]
            return replay.suffix(states, tokens, present, keep)

        return forward
