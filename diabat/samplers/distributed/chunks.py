"""Division of a batch into chunks that keep shared couplings shared, and assembly of their results.

The batch is read as [G, Q]: G distinct sets of couplings, and Q problems that share each of them (the same
number for all, because leading dimensions broadcast).  A chunk is a box of it: some problems of one J, or all
problems of some J.  So J is sliced, never expanded.  The boxes depend on shapes and chunk size only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import Ising, flat_index

Box = tuple[slice, slice]
"""Rows of G and of Q."""


class Chunks:
    """A batch of problems in boxes of at most ``size`` problems.

    Args:
        ising: The batch, detached.
        size: Problems per chunk, at least 1.

    Attributes:
        boxes: The chunks, in the order of [G, Q].
    """

    def __init__(self, ising: Ising, size: int) -> None:
        self.ising = ising
        lead = ising.lead
        own = [axis for axis, extent in enumerate(lead) if extent > 1]
        self._lead = lead
        self._order = [*own, *(axis for axis in range(len(lead)) if axis not in own)]
        groups = lead.numel()
        self._shape = (groups, ising.num_problems // groups)  # [G, Q]
        self._fields = self._rows(ising.fields)
        self._visible = (
            None if ising.visible is None else self._rows(ising.visible.expand(ising.fields.shape))
        )
        self.boxes = _boxes(*self._shape, size)

    def problem(self, box: Box) -> Ising:
        """The problems of a box: fields [q, n] with one J [n, n], or [g, q, n] with J [g, 1, n, n]."""
        visible = None if self._visible is None else self._cut(self._visible, box)
        J = self._interaction(self.ising.couplings, self._pair_rows, box, 2)
        K = self._interaction(self.ising.three_body, self._triple_rows, box, 3)
        return Ising(self._cut(self._fields, box), J, visible, K, check=False)

    def cotangent(self, v: Tensor, box: Box) -> Tensor:
        """Slice values per spin [*batch, n] like the fields."""
        return self._cut(self._rows(v), box)

    def assemble(
        self, parts: Sequence[tuple[tuple[slice, ...], Box, NDArray]], front: tuple[int, ...]
    ) -> Tensor:
        """Assemble results of boxes.

        Args:
            parts: For each chunk its slices of the ``front`` dimensions, its box, and an array [*front, q,
                *tail] or [*front, g, q, *tail].
            front: Sizes of the dimensions before the batch, such as the reads.

        Returns:
            [*front, *batch, *tail], on the device of the problem.
        """
        ahead, (_, box, first) = len(front), parts[0]
        tail = first.shape[ahead + (2 if self._several(box) else 1) :]
        out = np.empty((*front, *self._shape, *tail), dtype=first.dtype)
        for where, (g, q), array in parts:
            block = out[(*where, g, q)]
            block[...] = array.reshape(block.shape)
        batch = self.ising.batch_shape
        permuted = torch.from_numpy(out).reshape((*front, *(batch[axis] for axis in self._order), *tail))
        back = [ahead + self._order.index(axis) for axis in range(len(batch))]
        rest = range(ahead + len(batch), permuted.ndim)
        return permuted.permute((*range(ahead), *back, *rest)).contiguous().to(self.ising.fields.device)

    def add_couplings(self, parts: Sequence[tuple[Box, NDArray]]) -> Tensor:
        """Sum derivatives with respect to J, [n, n] or [g, 1, n, n] for each box, into the shape of J."""
        J = self.ising.couplings
        assert J is not None
        n = J.shape[-1]
        out = torch.zeros(J.shape[:-2].numel(), n, n, dtype=J.dtype)
        for (g, _), array in parts:
            gradient = torch.from_numpy(array).reshape(-1, n, n)
            out.index_add_(0, _members(self._pair_rows, g), gradient.to(out))
        return out.reshape(J.shape).to(J.device)

    @cached_property
    def _pair_rows(self) -> Tensor:
        return self._interaction_rows(self.ising.couplings, 2)

    @cached_property
    def _triple_rows(self) -> Tensor:
        return self._interaction_rows(self.ising.three_body, 3)

    def _interaction_rows(self, value: Tensor | None, order: int) -> Tensor:
        """int64 [G], index of each group into the distinct couplings (or three-body terms)."""
        if value is None:
            return torch.zeros(self._shape[0], dtype=torch.long)
        return flat_index(value.shape[:-order], self._lead)

    def _interaction(self, value: Tensor | None, rows: Tensor, box: Box, order: int) -> Tensor | None:
        if value is None:
            return None
        distinct = value.reshape(-1, *value.shape[-order:])
        mine = _members(rows, box[0])
        if len(mine) == 1:
            return distinct[int(mine[0])]
        return distinct[mine.to(distinct.device)].unsqueeze(1)

    def _rows(self, value: Tensor) -> Tensor:
        """[*batch, n] -> [G, Q, n]."""
        return value.permute(*self._order, -1).reshape(*self._shape, value.shape[-1])

    def _cut(self, rows: Tensor, box: Box) -> Tensor:
        cut = rows[box]
        return cut if self._several(box) else cut[0]

    @staticmethod
    def _several(box: Box) -> bool:
        return bool(box[0].stop - box[0].start > 1)


def _members(rows: Tensor, groups: slice) -> Tensor:
    """The rows of some groups, or a single row if all groups share it."""
    mine = rows[groups]
    return mine[:1] if bool((mine == mine[0]).all()) else mine


def _boxes(groups: int, problems: int, size: int) -> list[Box]:
    """Boxes of at most ``size`` problems: parts of one group, or as many whole groups as fit."""
    if size < problems:
        starts = range(0, problems, size)
        return [(slice(g, g + 1), slice(q, min(q + size, problems))) for g in range(groups) for q in starts]
    step = size // problems
    return [(slice(g, min(g + step, groups)), slice(0, problems)) for g in range(0, groups, step)]
