"""Division of a batch into chunks that keep shared couplings shared, and assembly of their results.

The flat batch of N problems is read as [G, Q]: G distinct sets of couplings, and Q problems that share each of them
(the same number for all, because leading dimensions broadcast).  A chunk is a box of it: some problems of one J, or
all problems of some J.  So J is sliced, never expanded.  The boxes depend on shapes and chunk size only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import Ising, flat_index


class Chunks:
    """A batch of problems in boxes of at most ``size`` problems.

    Args:
        ising: The batch, detached.
        size: Problems per chunk, at least 1.

    Attributes:
        boxes: The problems of each chunk, as rows of the flat batch: int64 [q], or [g, q] for several J.
    """

    def __init__(self, ising: Ising, size: int) -> None:
        self.ising = ising
        batch, J, K = ising.batch_shape, ising.couplings, ising.three_body
        rows = ising.coupling_index().argsort(stable=True).reshape(ising.num_couplings, -1)  # [G, Q]
        if size < rows.shape[1]:
            self.boxes = [box for group in rows for box in group.split(size)]
        else:
            boxes = rows.split(size // rows.shape[1])
            self.boxes = [box if len(box) > 1 else box[0] for box in boxes]
        self._interactions = [
            None if t is None else (t, flat_index(t.shape[:-order], batch)) for t, order in ((J, 2), (K, 3))
        ]

    def problem(self, box: Tensor) -> Ising:
        """The problems of a box: fields [q, n] with one J [n, n], or [g, q, n] with J [g, 1, n, n]."""
        n, parts = self.ising.num_spins, list[Tensor | None]()
        for order, interaction in zip((2, 3), self._interactions, strict=True):
            if interaction is None:
                parts.append(None)
                continue
            distinct, which = interaction[0].reshape(-1, *(n,) * order), _members(interaction[1][box])
            parts.append(distinct[which] if which.ndim else distinct[int(which)])
        visible = None if self.ising.visible is None else self.cut(self.ising.visible_mask, box)
        J, K = parts
        return Ising(self.cut(self.ising.fields, box), J, visible, K, check=False)

    def cut(self, values: Tensor, box: Tensor) -> Tensor:
        """Values per spin [*batch, n] of the problems of a box."""
        return values.reshape(-1, values.shape[-1])[box.to(values.device)]

    def assemble(
        self, parts: Sequence[tuple[tuple[slice, ...], Tensor, NDArray]], front: tuple[int, ...] = ()
    ) -> Tensor:
        """Assemble results of boxes.

        Args:
            parts: For each chunk its slices of the ``front`` dimensions, its box, and an array [*front, *box,
                *tail].
            front: Sizes of the dimensions before the batch, such as the reads.

        Returns:
            [*front, *batch, *tail], on the device of the problem.
        """
        _, box, first = parts[0]
        tail = first.shape[len(front) + box.ndim :]
        out = np.empty((*front, self.ising.num_problems, *tail), dtype=first.dtype)
        for where, rows, array in parts:
            place: Any = (*where, rows.numpy())
            out[place] = array
        shape = (*front, *self.ising.batch_shape, *tail)
        return torch.from_numpy(out).reshape(shape).to(self.ising.fields.device)

    def add_couplings(self, parts: Sequence[tuple[Tensor, NDArray]]) -> Tensor:
        """Sum derivatives with respect to J, [n, n] or [g, 1, n, n] for each box, into the shape of J."""
        interaction = self._interactions[0]
        assert interaction is not None
        J, index = interaction
        out = torch.zeros_like(J, device="cpu").reshape(-1, *J.shape[-2:])
        for box, array in parts:
            gradient = torch.from_numpy(array).reshape(-1, *J.shape[-2:])
            out.index_add_(0, _members(index[box]).reshape(-1), gradient.to(out))
        return out.reshape(J.shape).to(J.device)


def _members(which: Tensor) -> Tensor:
    """Distinct couplings of a box: one number if all problems share it, else one for each group, [g, 1]."""
    first = which.flatten()[0]
    return first if bool((which == first).all()) else which[:, :1]
