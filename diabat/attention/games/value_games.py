r"""Games given by their value function: the token game of norms, and any function of coalitions.

The token game v(C) = f(‖Σ_{i ∈ C} V_i‖) is computed from the Gram matrix G = V Vᵀ alone.  With S = Σ_{i ∈ C} V_i:
‖S‖² = Σ_{i ∈ C} a_i, a_i = S·V_i = Σ_{j ∈ C} G_ij, so that adding or removing a player is scalar arithmetic,
‖S ± V_i‖² = ‖S‖² ± 2 a_i + G_ii.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from diabat.attention.games.pair_tile import Coalitions, Values
from diabat.attention.games.predecessors import predecessor_dots
from diabat.attention.games.tables import MAX_PLAYERS, all_coalitions, evaluate, value_table
from diabat.checks import ArgumentError, ArgumentTypeError, check_choice, check_count
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import behind_transforms

NONLINEARITIES = ("identity", "relu", "tanh")
Around = tuple[Values, Coalitions]


class NormGame:
    r"""v(C) = f(‖Σ_{i ∈ C} V_i‖₂), one game for every problem of the batch (arXiv:2603.18761, eq. 2).

    The derivative of the norm at 0 is taken as 0 (a subgradient).  A squared norm counts as 0 up to
    8 ulp of Σ_{i ∈ C} ‖V_i‖² + 2 max_i ‖V_i‖², the rounding of the arithmetic; v(∅) is f(0) = 0 exactly.

    Args:
        vectors: V = W_v x, floating [*batch, n, d]; half precision is computed in float32.
        f: ``identity``, ``relu`` (the same thing, since a norm is not negative) or ``tanh``.
        players: bool, broadcastable to [*batch, n]; False where there is no player (padding).  None: all.
        name: What errors call the vectors.

    Raises:
        TypeError: If the vectors are not a floating tensor.
        ValueError: If a shape, the mask or f is wrong, or a player's vector is not finite or too large to be squared.
    """

    def __init__(
        self, vectors: Tensor, f: str = "identity", players: Tensor | None = None, *, name: str = "vectors"
    ) -> None:
        if not isinstance(vectors, Tensor) or not vectors.is_floating_point():
            got = vectors.dtype if isinstance(vectors, Tensor) else type(vectors).__name__
            raise ArgumentTypeError("vectors", "a floating tensor", got)
        if vectors.ndim < 2 or vectors.shape[-2] < 1:
            raise ArgumentError("vectors", "shape [*batch, n, d] with n >= 1", list(vectors.shape))
        check_choice("f", f, NONLINEARITIES)
        self.f = f
        self.players = _players(players, vectors)
        dtype = vectors.dtype
        if dtype in (torch.float16, torch.bfloat16):
            vectors = vectors.float()
        vectors = torch.where(self.players[..., None], vectors, 0)
        self.gram = vectors @ vectors.mT
        # Taken once: every diagonal has a matrix of zeros in its derivative.
        self._sizes = self.gram.diagonal(dim1=-2, dim2=-1)  # G_ii, [*batch, n]
        self._fixed_sizes = self._sizes.detach()
        self._twice_largest = 2 * self._fixed_sizes.amax(-1, keepdim=True)
        _check_norms(name, self._fixed_sizes, dtype)

    @property
    def batch_shape(self) -> torch.Size:
        """Leading shape of the games."""
        return self.gram.shape[:-2]

    def value(self, coalitions: Tensor) -> Tensor:
        """Values of coalitions, bool [*batch, K, n] or [K, n], as [*batch, K]."""
        return self.toggles(coalitions.expand(*self.batch_shape, *coalitions.shape[-2:]))[0]

    def table(self) -> Tensor:
        """Values of all coalitions, [*batch, 2^n], n <= 20; ValueError if n > 20."""
        n = self.gram.shape[-1]
        if n > MAX_PLAYERS:
            raise ArgumentError("vectors", f"at most {MAX_PLAYERS} players for a table", n)
        few = n // 2
        low, high = (all_coalitions(k, self.gram.device).to(self.gram) for k in (few, n - few))
        G = self.gram
        squares = [
            torch.einsum("xi,...ij,xj->...x", half, part, half)
            for half, part in ((low, G[..., :few, :few]), (high, G[..., few:, few:]))
        ]
        mixed = 2 * high @ G[..., few:, :few] @ low.T
        square = mixed + squares[1][..., :, None] + squares[0][..., None, :]
        sizes = self._fixed_sizes
        small = (sizes[..., few:] @ high.T)[..., :, None] + (sizes[..., :few] @ low.T)[..., None, :]
        return self.activate(square, self._floor(small)).flatten(-2)

    def toggles(self, coalitions: Tensor) -> tuple[Tensor, Tensor]:
        """Values v(C) [*batch, K] and v(C with i toggled) [*batch, K, n] of coalitions, bool [*batch, K, n]."""
        values, _ = self.around(coalitions)
        return values.whole, values.single

    def along(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        r"""Values of the predecessors of every player in permutations, without and with the player.

        ‖S_r+1‖² = ‖S_r‖² + 2 a + G_ii by a running sum along the permutation.

        Args:
            positions: Position of every player, int64 [*batch, K, n].

        Returns:
            v(P_i) and v(P_i + i), each [*batch, K, n].
        """
        sizes = self._sizes[..., None, :].expand(positions.shape)
        dots = predecessor_dots(self.gram, positions)
        players = torch.arange(positions.shape[-1], device=positions.device)
        order = torch.empty_like(positions).scatter_(-1, positions, players.expand(positions.shape))
        rising = (2 * dots + sizes).gather(-1, order).cumsum(-1)
        fixed = self._fixed_sizes[..., None, :].expand(positions.shape)
        floor = self._floor(fixed.gather(-1, order).cumsum(-1))
        after = self.activate(rising, floor)
        before = torch.cat((torch.zeros_like(after[..., :1]), after[..., :-1]), -1)
        return before.gather(-1, positions), after.gather(-1, positions)

    def pair_values(self, around: Around, beta: Tensor, log_proposal: Tensor | None) -> Around:
        """Arguments of :func:`pairs.pair_means`, the batch flattened to N problems."""
        values, fixed = around
        count, n = fixed.sign.shape[-2:]
        flat = Values(
            self.gram.reshape(-1, n, n),
            values.square.reshape(-1, count),
            values.change.reshape(-1, count, n),
            values.whole.reshape(-1, count),
            values.single.reshape(-1, count, n),
            beta.expand(self.batch_shape).reshape(-1),
        )
        return flat, Coalitions(
            fixed.sign.reshape(-1, count, n),
            fixed.member.reshape(-1, count, n),
            fixed.floor.reshape(-1, count),
            None if log_proposal is None else log_proposal.reshape(-1, count, 3),
            self.f == "tanh",
        )

    def activate(self, square: Tensor, floor: Tensor) -> Tensor:
        """f(√square), f(0) with derivative 0 where the square is at most ``floor``."""
        positive = square > floor
        norm = torch.where(positive, torch.where(positive, square, 1).sqrt(), 0)
        return torch.tanh(norm) if self.f == "tanh" else norm

    def around(self, coalitions: Tensor) -> Around:
        """What coalitions, bool [*batch, K, n], give for players and pairs; without γ and proposals."""
        member = (coalitions & self.players[..., None, :]).to(self.gram)
        sizes = self._sizes[..., None, :]
        dots = member @ self.gram
        square = (member * dots).sum(-1)
        sign = (1 - 2 * member) * self.players[..., None, :]
        change = 2 * sign * dots + sizes
        floor = self._floor((member @ self._fixed_sizes[..., None])[..., 0])
        whole = self.activate(square, floor)
        single = self.activate(square[..., None] + change, floor[..., None])
        values = Values(self.gram, square, change, whole, single, square)
        return values, Coalitions(sign, member, floor, None, self.f == "tanh")

    def _floor(self, total: Tensor) -> Tensor:
        """What Σ_{i ∈ C} ‖V_i‖² = total leaves of a vanishing squared norm in floating point."""
        twice = self._twice_largest if total.ndim < self.gram.ndim else self._twice_largest[..., None]
        return 8 * torch.finfo(self.gram.dtype).eps * (total + twice)


def _players(players: Tensor | None, vectors: Tensor) -> Tensor:
    shape = vectors.shape[:-1]
    if players is None:
        return torch.ones(shape, dtype=torch.bool, device=vectors.device)
    if not isinstance(players, Tensor) or players.dtype != torch.bool:
        got = players.dtype if isinstance(players, Tensor) else type(players).__name__
        raise ArgumentError("players", "a bool tensor", got)
    try:
        return players.expand(shape)
    except RuntimeError:
        expected = f"a shape that broadcasts to {list(shape)}"
        raise ArgumentError("players", expected, list(players.shape)) from None


def _check_norms(name: str, sizes: Tensor, dtype: torch.dtype) -> None:
    """Raise UnsupportedError unless sums of vectors can be squared, and are held by their ``dtype``.

    ``sizes`` are squared norms ‖V_i‖², [*batch, n], in the precision of the squares.
    """
    # ‖Σ V_i‖² <= n Σ ‖V_i‖².  The room is for derivatives and for the exponents that values end up in.
    largest = torch.finfo(dtype).max
    limit = min(torch.finfo(sizes.dtype).max / 2**24, largest * largest)
    bound = behind_transforms(name, sizes.sum(-1) * sizes.shape[-1])
    if not bool((bound <= limit).all()):
        expected = f"vectors V_i small enough to be squared and added up in {str(dtype)[6:]}"
        got = f"{float(bound.max()):.3g}"
        raise UnsupportedError(name, f"{expected}, n Σ ‖V_i‖² of at most {limit:.3g}", got)


_CHUNK = 1 << 12


class FunctionGame:
    """v given by a function; the batch, if there is one, shares the sampled coalitions.

    Differentiable in whatever the function's values depend on.  An estimate of all pairs calls it on about
    K n²/2 coalitions and keeps their values.

    Args:
        value: Takes bool masks [M, n], returns floating values [*batch, M]; called with M up to 4096.
        num_players: n.
        device: Of the masks.

    Raises:
        TypeError: If the value is not callable.
        ValueError: If n is not an integer >= 1.
    """

    def __init__(
        self, value: Callable[[Tensor], Tensor], num_players: int, device: torch.device | str = "cpu"
    ) -> None:
        if not callable(value):
            raise ArgumentTypeError("value", "a function of masks", type(value).__name__)
        num_players = check_count("num_players", num_players)
        self._value = value
        self.players = torch.ones(num_players, dtype=torch.bool, device=device)

    def value(self, coalitions: Tensor) -> Tensor:
        """Values of coalitions, bool [..., n], as [*batch, ...]."""
        masks = coalitions.reshape(-1, coalitions.shape[-1])
        values = torch.cat([evaluate(self._value, part) for part in masks.split(_CHUNK)], -1)
        return values.unflatten(-1, coalitions.shape[:-1])

    def table(self) -> Tensor:
        """Values of all coalitions, [*batch, 2^n], n <= 20."""
        return value_table(self._value, self.players.shape[-1])

    def toggles(self, coalitions: Tensor) -> tuple[Tensor, Tensor]:
        """Values v(C) [*batch, K] and v(C with i toggled) [*batch, K, n] of coalitions, bool [K, n]."""
        eye = torch.eye(coalitions.shape[-1], dtype=torch.bool, device=coalitions.device)
        return self.value(coalitions), self.value(coalitions[:, None] ^ eye)

    def along(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the predecessors of every player in permutations [K, n], without and with the player."""
        count, n = positions.shape
        lengths = torch.arange(n + 1, device=positions.device)[:, None]
        prefixes = self.value(positions[:, None] < lengths)  # [*batch, K, n + 1]
        where = positions.expand(*prefixes.shape[:-2], count, n)
        return prefixes[..., :-1].gather(-1, where), prefixes[..., 1:].gather(-1, where)

    def double_toggles(self, coalitions: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """v(C with i and j toggled) for given pairs [P] of coalitions [K, n], [*batch, K, P]."""
        n = coalitions.shape[-1]
        both = torch.zeros(len(rows), n, dtype=torch.bool, device=coalitions.device)
        pairs = torch.arange(len(rows), device=coalitions.device)
        both[pairs, rows] = both[pairs, columns] = True
        return self.value(coalitions[:, None] ^ both)
