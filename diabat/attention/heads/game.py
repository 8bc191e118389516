"""The game on attention heads: v(S) is how well a model does with the heads of the players in S, the others absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.attention.games.tables import MAX_PLAYERS, all_coalitions
from diabat.attention.games.value_games import FunctionGame
from diabat.attention.heads.attention import Absent
from diabat.attention.heads.decoder import Site
from diabat.attention.heads.dividends import Dividends, low_order_coalitions, standard_error
from diabat.attention.heads.known import KnownValues, packed, weights_digest
from diabat.attention.heads.players import Groups, Head, given_groups, key_value_groups
from diabat.attention.heads.replay import Replay
from diabat.attention.heads.samples import digest, read_samples
from diabat.attention.heads.values import Value, value_of
from diabat.checks import ArgumentError, ArgumentTypeError, check_count
from diabat.compute.memory import require_memory
from diabat.samplers.base import UnsupportedError

Progress = Callable[[int, int], None]


class HeadCoalitions(FunctionGame):
    r"""Mean over samples of v_x(S), the value of sample x when only the players in S attend.

    Takes part in everything that `diabat.attention.games` does with a game.  What has been computed is kept, so that no
    coalition is evaluated twice.  The model is left as it was found.

    Args:
        model: A causal language model of transformers whose attention is behind the AttentionInterface.
        samples: Dicts of ``text`` (with ``tokenizer``) or ``input_ids``; for values of choices also ``choices`` (texts
            or token ids) and ``label`` (a choice or its position); for ``f1`` also ``answers``.
        layer: Players are the key/value groups of this layer, or of each of these layers, counted from 0.
        players: Instead of ``layer``: groups of heads (layer, head), also across layers.
        value: ``log_odds``, ``option_log_odds``, ``option_log_likelihood``, ``perplexity``, ``f1``, a
            :class:`~diabat.attention.heads.values.Value`, or a function of the logits [C, T, vocabulary] and the sample
            that returns C values.
        tokenizer: That of the model, for texts.
        absent: What an absent head gives: the mean of the visible values (``uniform``), attention with logits times
            ε (``scaled``), or nothing (``dropped``).
        epsilon: ε.
        heads_per_player: With ``layer``: players of so many consecutive heads instead of key/value groups.
        batch_size: Coalitions in one forward pass, which is what bounds the memory.
        dtype: What the model's parameters have to be in; None takes any.
        store: A file that keeps the values, and from which the same game goes on.
        progress: Called with the evaluations done and their total, (samples times new coalitions) of one request.

    Attributes:
        groups: Heads (layer, head) of every player.
        players: bool [n], all True, as every game has it.
        samples: The samples as read.

    Raises:
        UnsupportedError: If the model has no attention that can be switched, or its parameters another dtype.
        ValueError: If an argument is out of range, players overlap, or a sample does not suit the value.
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
        value: str | Value | Callable[[Tensor, Mapping[str, Any]], Tensor] = "log_odds",
        tokenizer: Any = None,
        absent: Absent = "uniform",
        epsilon: float = 1e-5,
        heads_per_player: int | None = None,
        batch_size: int = 16,
        dtype: torch.dtype | None = torch.float32,
        store: str | PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_count("batch_size", batch_size)
        self._replay = Replay(model, absent, epsilon)
        _check_dtype(model, dtype)
        self.groups = _groups(self._replay.decoder.sites, layer, players, heads_per_player)
        self._replay.groups = self.groups
        self.samples = read_samples(samples, tokenizer, self._replay.decoder.vocabulary)
        self._value_of_sample = value_of(value, tokenizer)
        for index, sample in enumerate(self.samples):
            self._value_of_sample.check(sample, f"samples[{index}]")
        self._batch_size, self._progress = batch_size, progress
        super().__init__(self._means, len(self.groups))
        path = None if store is None else Path(store)
        identity = {} if path is None else self._identity(model, absent, epsilon)
        self._known = KnownValues(len(self.samples), (len(self.groups) + 7) // 8, path, identity)

    @property
    def num_players(self) -> int:
        """Number n of players."""
        return len(self.groups)

    def heads(self, players: Iterable[int]) -> list[Head]:
        """Heads (layer, head) of players."""
        return sorted(head for player in players for head in self.groups[player])

    def value(self, coalitions: Tensor) -> Tensor:
        """Mean values of coalitions, bool [..., n], as float64 [...]."""
        masks = coalitions.reshape(-1, coalitions.shape[-1])
        return self._means(masks).reshape(coalitions.shape[:-1])

    def table(self) -> Tensor:
        """Mean values of all coalitions, float64 [2^n]; bit i of the index: player i is present.

        Raises:
            ValueError: If there are more than 20 players.
        """
        return self.sample_table().mean(0)

    def sample_table(self) -> Tensor:
        """Values of all coalitions by sample, float64 [samples, 2^n]; errors as in :meth:`table`."""
        self._check_full()
        return self.sample_values(all_coalitions(self.num_players))

    def sample_values(self, coalitions: Tensor) -> Tensor:
        """Values of coalitions, bool [M, n], by sample: float64 [samples, M].

        Raises:
            TypeError: If the coalitions are no bool tensor.
            UnsupportedError: If a block of the model needs more than the states of the block before it.
            ValueError: If the coalitions have another shape, or a value is not finite.
        """
        self._check_masks(coalitions)
        size = 8 * len(self.samples) * len(coalitions)
        require_memory(2 * size, "values of all samples and coalitions", "coalitions")
        columns = self._known.columns(packed(coalitions))
        missing = [np.unique(columns[np.isnan(row[columns])]) for row in self._known.values]
        total = sum(map(len, missing))
        if total:
            masks = _first_of(coalitions, columns)
            try:
                with self._replay.switch.opened():
                    self._replay.check(self.samples[0].tokens)
                    self._fill(missing, masks, total)
            finally:
                self._known.save()
        return torch.from_numpy(self._known.values[:, columns])

    def estimate(self, coalitions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean over samples of the values of coalitions, bool [M, n], and its standard error, float64 [M] each.

        The standard error is infinite with one sample.
        """
        values = self.sample_values(coalitions)
        return values.mean(0), standard_error(values)

    def dividends(self, order: int | None = None) -> Dividends:
        """Harsanyi dividends with standard errors: of all coalitions, or of those of at most ``order`` players.

        The latter are exact as well, and take only the coalitions of at most ``order`` players.

        Raises:
            ValueError: If the order is out of range, or there are more than 20 players and none is given.
        """
        if order is None:
            self._check_full()
            return Dividends.of_tables(self.sample_table())
        masks = low_order_coalitions(self.num_players, order)
        return Dividends.of_low_order(self.sample_values(masks), self.num_players, order)

    def _means(self, masks: Tensor) -> Tensor:
        return self.sample_values(masks).mean(0)

    def _fill(self, missing: list[NDArray[np.int64]], masks: dict[int, Tensor], total: int) -> None:
        """Evaluate the columns that each sample lacks."""
        done = 0
        for index, (sample, columns) in enumerate(zip(self.samples, missing, strict=True)):
            forward = _OnSample(self._replay)
            for start in range(0, len(columns), self._batch_size):
                part = columns[start : start + self._batch_size]
                forward.present = torch.stack([masks[int(column)] for column in part])
                values = self._value_of_sample(forward, sample).cpu().numpy()
                if not np.isfinite(values).all():
                    raise ArgumentError(
                        "value",
                        f"expected finite values, got {values[~np.isfinite(values)][0]} of sample {index}.",
                    )
                self._known.put(index, part, values)
                self._known.save(now=False)
                done += len(part)
                if self._progress is not None:
                    self._progress(done, total)

    def _check_full(self) -> None:
        if self.num_players > MAX_PLAYERS:
            raise ArgumentError(
                "players",
                f"expected at most {MAX_PLAYERS} for a full table, got {self.num_players}; use dividends(order=3).",
            )

    def _check_masks(self, coalitions: Tensor) -> None:
        if not isinstance(coalitions, Tensor) or coalitions.dtype != torch.bool:
            got = coalitions.dtype if isinstance(coalitions, Tensor) else type(coalitions).__name__
            raise ArgumentTypeError("coalitions", f"expected a bool tensor, got {got}.")
        if coalitions.ndim != 2 or coalitions.shape[1] != self.num_players:
            raise ArgumentError(
                "coalitions", f"expected shape [M, {self.num_players}], got {list(coalitions.shape)}."
            )

    def _identity(self, model: Any, absent: str, epsilon: float) -> dict[str, str]:
        return {
            "model": weights_digest(model),
            "samples": digest(self.samples),
            "players": repr(self.groups),
            "absent": f"{absent} {epsilon if absent == 'scaled' else ''}",
            "value": self._value_of_sample.name,
            "attention": str(model.config._attn_implementation),
        }


class _OnSample:
    """The model on batches of coalitions of one sample; the prefix of a sequence is kept."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._prefixes: dict[tuple[int, ...], Tensor] = {}
        self.present = torch.empty(0)

    def logits(self, tokens: Tensor, keep: Tensor) -> Tensor:
        key = tuple(tokens.tolist())
        if key not in self._prefixes:
            self._prefixes[key] = self._replay.prefix(tokens)
        return self._replay.suffix(self._prefixes[key], tokens, self.present, keep)

    def generate(self, tokens: Tensor, max_new_tokens: int) -> Tensor:
        return self._replay.generate(tokens, self.present, max_new_tokens)


def _groups(
    sites: Mapping[int, Site],
    layer: int | Sequence[int] | None,
    players: Iterable[Iterable[Head]] | None,
    heads_per_player: int | None,
) -> Groups:
    if layer is not None and players is None:
        return key_value_groups(sites, layer, heads_per_player)
    if players is None or layer is not None:
        raise ArgumentError("layer", "expected either layer or players, got both or neither.")
    if heads_per_player is not None:
        raise ArgumentError("heads_per_player", "expected None with players, which say it themselves.")
    return given_groups(sites, players)


def _first_of(coalitions: Tensor, columns: NDArray[np.int64]) -> dict[int, Tensor]:
    """Mask of every column."""
    found, at = np.unique(columns, return_index=True)
    return {int(column): coalitions[int(row)].cpu() for column, row in zip(found, at, strict=True)}


def _check_dtype(model: Any, dtype: torch.dtype | None) -> None:
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if dtype is not None and kinds - {dtype}:
        got = ", ".join(sorted(str(kind)[6:] for kind in kinds - {dtype}))
        raise UnsupportedError(
            "model",
            f"expected parameters in {str(dtype)[6:]}, got {got}; load it with dtype=torch.{str(dtype)[6:]} (half "
            "precision moves dividends), or pass dtype=None.",
        )
