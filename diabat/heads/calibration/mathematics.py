"""Game-theoretic attention calibration (GAC) on attention maps.

For the map A [Q, K] of one head, with rows that see only some of the columns:

    a[t]     = Σ_{k sees t} A[k, t] / |{k : k sees t}|                 average of a column              (9)
    S        = {t : a[t] > α, t is not the first token}                focused columns                  (10)
    Â[k, s]  = β A[k, s]                                               s in S                           (11)
    Â[k, t]  = A[k, t] + g[k, t] (1 - β) Σ_{s in S} A[k, s]            t visible to k and not in S      (12)

with g[k, t] = A[k, t] / Σ_{i not in S} A[k, i] (proportional) or 1 / |{i not in S : k sees i}| (uniform), so that
rows sum to one.  A row with nothing outside S to give to, or with no weight there, stays as it is.

Source: Qu et al., "Cooperative or Competitive?  Understanding the Interaction between Attention Heads From A Game
Theory Perspective", section 4.2.  Equation 9 as printed averages a row, which is 1/m for every m; the column is meant.
Which rows enter the average is not said: docs/heads-commands.md states the readings.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_choice, check_count, check_number

ROWS = ("running", "prompt")
REDISTRIBUTIONS = ("proportional", "uniform")
CALIBRATED = "diabat_calibrated"
"""Attribute of an attention module that is calibrated, with its calibration."""


@dataclass(frozen=True)
class Calibration:
    """Which heads of a model are calibrated, and how.

    Attributes:
        salient: The layers that are calibrated, and for each the query heads that are left as they are: its salient
            group.  All other heads of these layers are calibrated; () calibrates all.
        alpha: A column is focused if its average exceeds this, in [0, 1].
        beta: What is left of a focused weight, in [0, 1]; 1 changes nothing.
        rows: Which rows enter an average: ``running``, those up to the present one, or ``prompt``, all of the pass
            and those before it (the paper).  With ``prompt`` later tokens change earlier rows.
        redistribution: ``proportional`` to the weights or ``uniform`` over the visible columns that are not focused.

    Raises:
        ArgumentError: No layer, an invalid layer or head, or a number or a name that is out of range.
    """

    salient: Mapping[int, Collection[int]]
    alpha: float = 0.1
    beta: float = 0.1
    rows: str = "running"
    redistribution: str = "proportional"

    def __post_init__(self) -> None:
        if not isinstance(self.salient, Mapping) or not self.salient:
            expected = "a mapping of at least one layer to its salient heads"
            raise ArgumentError("salient", expected, f"{self.salient!r}")
        chosen = {layer: _heads(layer, self.salient[layer]) for layer in self.salient}
        object.__setattr__(self, "salient", dict(sorted(chosen.items())))
        for name in ("alpha", "beta"):
            check_number(name, getattr(self, name), "[0, 1]")
            object.__setattr__(self, name, float(getattr(self, name)))
        check_choice("rows", self.rows, ROWS)
        check_choice("redistribution", self.redistribution, REDISTRIBUTIONS)

    def as_dict(self) -> dict[str, Any]:
        """The arguments as JSON can hold them; layers become strings."""
        return asdict(self) | {"salient": {str(layer): list(heads) for layer, heads in self.salient.items()}}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Calibration:
        """Undo `as_dict`; ArgumentError for a key that is missing or unknown, or a value as for the constructor."""
        known = set(cls.__dataclass_fields__)
        if set(content) != known:
            expected = f"the keys {', '.join(sorted(known))}"
            raise ArgumentError("calibration", expected, ", ".join(sorted(content)))
        salient = content["salient"]
        if isinstance(salient, Mapping):
            # What is no layer stays as it is, for the constructor to refuse.
            digits = {name: re.fullmatch("0|[1-9][0-9]{0,17}", str(name)) for name in salient}
            salient = {int(name) if digits[name] else name: salient[name] for name in salient}
        return cls(**{**content, "salient": salient})


def _heads(layer: Any, heads: Any) -> tuple[int, ...]:
    # Tensors and arrays are neither; bytes are a sequence of integers.
    if isinstance(heads, str | bytes | bytearray) or not isinstance(heads, Sequence | Set):
        raise ArgumentError("salient", f"the heads of layer {layer} as a list", f"{heads!r:.60}")
    for number in (layer, *heads):
        check_count("salient", number, least=0)
    if len(set(heads)) < len(heads):
        raise ArgumentError("salient", f"every head of layer {layer} once", list(heads))
    return tuple(sorted(heads))


class ColumnSums(NamedTuple):
    """What the rows so far gave to each column t; enough to go on with the next rows.

    ``total`` is Σ A[k, t] over the rows that see t, float32 or float64 [B, H, K]; ``rows`` the number of those rows,
    [B, 1 or H, K]; ``first`` whether t is the first token of its sequence, bool [B, 1 or H, K].
    """

    total: Tensor
    rows: Tensor
    first: Tensor

    def last(self, columns: int) -> ColumnSums:
        """Those of the last columns: a sliding window forgets columns on the left."""
        start = self.total.shape[-1] - columns
        if start < 0:
            raise ArgumentError("columns", f"at most {self.total.shape[-1]}", columns)
        return ColumnSums(*(part[..., start:] for part in self))

    def select(self, index: Tensor) -> ColumnSums:
        """Those of some sequences of the batch, in this order: beams are reordered so."""
        return ColumnSums(*(part[index.to(part.device)] for part in self))


def calibrate(
    weights: Tensor, visible: Tensor, calibration: Calibration, past: ColumnSums | None = None
) -> tuple[Tensor, ColumnSums]:
    """Calibrate attention maps, equations (9) to (12) above.

    Row q belongs to column K - Q + q.  A row that does not see its own column is padding: it stays as it is and
    enters no average.  The first token, which is exempt, is one whose row sees nothing but itself: the first that is
    no padding, in a packed batch the first of each document.  It may receive weight.

    Args:
        weights: A, rows that sum to one and are 0 where nothing is visible, [B, H, Q, K].  Half precision is
            computed in float32 and rounded once.
        visible: Which columns a row may see, bool [B, 1 or H, Q, K].
        calibration: α, β, rows and redistribution.
        past: Sums of earlier rows over the first K - Q columns, or None if Q = K.

    Returns:
        Â in the dtype of ``weights``, and the sums after these rows.

    Raises:
        ArgumentError: If ``past`` does not fit.
    """
    old = weights.shape[-1] - weights.shape[-2]
    if old != (0 if past is None else past.total.shape[-1]):
        raise ArgumentError("past", f"sums of {old} columns", past and past.total.shape[-1])
    maps = weights.to(torch.promote_types(weights.dtype, torch.float32))
    own = visible.diagonal(old, -2, -1)
    seen = visible & own.unsqueeze(-1)
    first = seen.sum(-1) == 1
    if past is not None:
        first = torch.cat((past.first, first), -1)
    totals, rows = _sums(maps.detach(), seen, past, running=calibration.rows == "running")
    # Heads share a mask: what a sum has to exceed is small, and infinite where nothing can be focused.
    least = (calibration.alpha * rows.to(maps.dtype)).masked_fill(~seen | first.unsqueeze(-2), torch.inf)
    changed = redistribute(maps, seen, totals > least, calibration.beta, calibration.redistribution)
    return changed.to(weights.dtype), ColumnSums(totals[..., -1, :], rows[..., -1, :], first)


def _sums(maps: Tensor, seen: Tensor, past: ColumnSums | None, *, running: bool) -> tuple[Tensor, Tensor]:
    """Sums of columns and numbers of rows: up to each row [.., Q, K], or over all of them [.., 1, K]."""
    weights = maps * seen
    if running:
        totals, rows = weights.cumsum(-2), seen.cumsum(-2)
    else:
        totals, rows = weights.sum(-2, keepdim=True), seen.sum(-2, keepdim=True)
    if past is not None:
        new = (0, maps.shape[-2])
        totals += torch.nn.functional.pad(past.total, new).unsqueeze(-2)
        rows += torch.nn.functional.pad(past.rows, new).unsqueeze(-2)
    return totals, rows


def redistribute(maps: Tensor, seen: Tensor, focused: Tensor, beta: float, how: str) -> Tensor:
    """Equations (11) and (12): take 1 - β of the focused weights and give it to the other visible columns.

    Maps A are [B, H, Q, K], the columns that a row sees bool [B, 1 or H, Q, K], and those among them that lose bool
    [B, H, Q, K].  A row of Â without another column to give to is as it was.
    """
    none = maps.new_zeros(())
    taken = maps.where(focused, none)
    moved = (1 - beta) * taken.sum(-1, keepdim=True)  # [B, H, Q, 1]
    if how == "uniform":
        others = seen & ~focused
        count = others.sum(-1, keepdim=True)
        return maps - (1 - beta) * taken.where(count > 0, none) + others * (moved / count.clamp(min=1))
    # One factor per row, β or (rest + moved) / rest, which a denormal rest would let overflow.
    rest = (maps - taken).sum(-1, keepdim=True)
    possible = rest >= torch.finfo(maps.dtype).tiny
    one = torch.ones_like(rest)
    less, more = one.mul(beta).where(possible, one), 1 + moved / rest.where(possible, one)
    return maps * torch.where(focused, less, more.where(possible, one))
