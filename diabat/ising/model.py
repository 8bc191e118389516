"""The class of all problems, and what its tensors mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, permutations
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from diabat.checks import as_float, is_number
from diabat.ising.arguments import (
    check_edges,
    check_states,
    read_fields,
    read_interaction,
    read_offset,
    read_spins,
    read_visible,
)
from diabat.ising.checks import DTYPES, IsingError, check_clamped, check_tensor, check_within, is_within
from diabat.ising.edges import DENSE_SPINS, Edges, best_form, edges_of, no_edges
from diabat.ising.saved import SavedProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    Values = Tensor | np.ndarray | Sequence[Any]

# Numbers of one intermediate result while the energies of many reads are computed from edges: 64 MiB in float64.
_AT_ONCE = 1 << 23
_TERMS = ("fields", "couplings", "three_body")


@dataclass(frozen=True, eq=False, init=False)
class Ising(SavedProblem):
    """A batch of Ising models on n spins.

    Numpy arrays, nested lists, Series and DataFrames of pandas, integers and half precision are converted: float64
    stays, lists get torch's default dtype, all else float32; couplings and edges get the dtype of the fields.  Dense
    float32 and float64 tensors are not converted into each other, but refused.

    Args:
        fields: h, float32 or float64 [*batch, n]; dimensionless (divided by temperature).
        couplings: J, same dtype, [*lead, n, n], symmetric with zero diagonal: one J, one per head, or one per
            problem (``lead`` broadcasts against ``batch``); None is J = 0.  :class:`diabat.Edges`, or a sparse COO or
            CSR tensor [n, n], are held as edges; backends that take none expand them up to
            ``diabat.ising.edges.DENSE_SPINS`` spins.
        visible: bool, broadcastable to [*batch, n]; None means all True.  An invisible spin has no field and no
            coupling, and its probability of +1 is reported as 0.
        three_body: K, same dtype, [*lead, n, n, n], invariant under every permutation of its last three indices and
            zero where two of them coincide.  None means K = 0.
        offset: c, a number, or same dtype, broadcastable to [*batch].  None means c = 0.
        check: Convert and validate; False saves the work where J is symmetric by construction.

    Attributes:
        clamped: Values ±1 of the spins that :meth:`clamp` fixed, 0 for all others, int8 [*batch, n]; None if none is.

    Raises:
        IsingError: If an argument has the wrong type, shape, dtype or device, is not finite, or if J or K is
            not symmetric with an empty diagonal.
    """

    fields: Tensor
    matrix: Tensor | None
    edges: Edges | None
    visible: Tensor | None
    three_body: Tensor | None
    offset: Tensor | None
    check: bool
    clamped: Tensor | None = None

    def __init__(
        self,
        fields: Values,
        couplings: Values | Edges | None = None,
        visible: Values | None = None,
        three_body: Values | None = None,
        offset: Values | float | None = None,
        check: bool = True,
    ) -> None:
        h: Any = fields
        J: Any = couplings
        K: Any = three_body
        c: Any = offset
        edges: Edges | None = None
        if isinstance(J, Edges):
            J, edges = None, J
        if check:
            h = read_fields(h)
            J = read_interaction("couplings", J, h, order=2, labelled=fields)
            K = read_interaction("three_body", K, h, order=3)
            visible, c = read_visible(visible, h), read_offset(c, h)
        if isinstance(J, Tensor) and J.layout != torch.strided:
            J, edges = None, edges_of(J, h.shape[-1])
        elif couplings is None and K is None and h.shape[-1] > DENSE_SPINS:
            edges = no_edges(h)  # a matrix of zeros may not fit into memory
        if edges is not None:
            edges = edges.mapped(lambda values: values.to(h.dtype))
            if check:
                check_edges(edges.index, edges.values, h)
        vars(self).update(
            fields=h, matrix=J, edges=edges, visible=visible, three_body=K, offset=c, check=check
        )

    @classmethod
    def from_dict(
        cls, fields: Mapping[Any, float], couplings: Mapping[tuple[Any, Any], float] | None = None
    ) -> tuple[Ising, list[Hashable]]:
        """Build one problem from ``{label: h}`` and ``{(a, b): J}``.

        **The sign is diabat's**: positive fields favour +1, positive couplings agreement.  For dictionaries of dimod,
        which minimises +Σ h s + Σ J s s, use ``from_bqm(dimod.BinaryQuadraticModel.from_ising(h, J))``.

        Args:
            fields: h of each spin; a spin that appears in couplings only has h = 0.
            couplings: J of each pair, in either order.

        Returns:
            The problem with fields [n], float64, and the label of each spin: those of ``fields`` first, in their order.

        Raises:
            IsingError: If there is no spin, a value is not a finite number, a key is not a pair of two different
                spins, or a pair is given twice.
        """
        couplings = {} if couplings is None else couplings
        for name, values in (("fields", fields), ("couplings", couplings)):
            if not isinstance(values, Mapping):
                raise IsingError(name, "a mapping", type(values).__name__)
            for key, value in values.items():
                if not is_number(value):
                    raise IsingError(f"{name}[{key!r}]", "a real number", type(value).__name__)
        for pair in couplings:
            if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] == pair[1]:
                raise IsingError("couplings", "pairs (a, b) of two different spins as keys", f"{pair!r}")
            if pair[::-1] in couplings:
                raise IsingError("couplings", "every pair once", f"{pair[::-1]} and {pair}")
        labels = list(dict.fromkeys([*fields, *chain.from_iterable(couplings)]))
        if not labels:
            raise IsingError("fields", "at least one spin", "none")
        place = {label: j for j, label in enumerate(labels)}
        h = torch.tensor([as_float(fields.get(label, 0)) for label in labels], dtype=torch.float64)
        edges = Edges([(place[a], place[b]) for a, b in couplings], [as_float(J) for J in couplings.values()])
        return cls(h, best_form(edges, len(labels))), labels

    @property
    def couplings(self) -> Tensor | None:
        """J as a matrix, [*lead, n, n]; edges are expanded at every access.  None for no edges of many spins.

        Raises:
            ArgumentError: If edges of more than ``diabat.ising.edges.DENSE_SPINS`` spins would be expanded.
        """
        if self.edges is None or (not self.edges.count and self.num_spins > DENSE_SPINS):
            return self.matrix
        return self.edges.matrix(self.num_spins)

    @property
    def held_couplings(self) -> Tensor | Edges | None:
        """J as it is held, a matrix or edges; None where there is none."""
        return self.matrix if self.edges is None else self.edges

    def dense(self) -> Ising:
        """The problem with :attr:`couplings` in place of edges, differentiably; itself if it has no edges."""
        return self if self.edges is None else self._replaced(matrix=self.couplings, edges=None, check=False)

    def without_constants(self) -> Ising:
        """Return the problem as backends solve it: no offset, and clamped spins only invisible; itself if it is so."""
        if self.offset is None and self.clamped is None:
            return self
        return self._replaced(offset=None, clamped=None)

    @property
    def num_spins(self) -> int:
        """Number n of spins, visible or not."""
        return self.fields.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """Leading shape ``batch`` of the fields."""
        return self.fields.shape[:-1]

    @property
    def num_problems(self) -> int:
        """Number of problems in the batch."""
        return math.prod(self.batch_shape)

    @property
    def lead(self) -> torch.Size:
        """Broadcast leading shape of J and K, padded with ones in front to the number of dimensions of the batch."""
        lead = torch.Size() if self.matrix is None else self.matrix.shape[:-2]
        lead = lead if self.edges is None else self.edges.lead
        if self.three_body is not None:
            lead = torch.Size(np.broadcast_shapes(lead, self.three_body.shape[:-3]))
        missing = self.fields.ndim - 1 - len(lead)
        return torch.Size((1,) * missing + lead) if missing else lead

    @property
    def num_couplings(self) -> int:
        """Number C of distinct (J, K) of the batch; 1 if it has neither."""
        return math.prod(self.lead)

    def coupling_index(self) -> Tensor:
        """Index of each problem of the flat batch into the C distinct (J, K), int64 [N], on the CPU."""
        return flat_index(self.lead, self.batch_shape)

    @property
    def visible_mask(self) -> Tensor:
        """Visibility as bool [*batch, n], a copy: results that carry it never alias the caller's mask."""
        if self.visible is None:
            return torch.ones_like(self.fields, dtype=torch.bool)
        return self.visible.expand(self.fields.shape).clone()

    def pair_fields(self, spins: Tensor) -> Tensor:
        """Σ_k J_jk s_k of spins or magnetizations [*sample, *batch, n], 0 for invisible ones; 0 without couplings.

        The gradient of a matrix J is symmetric.
        """
        if self.edges is not None:
            return self.edges.local_fields(spins)
        if self.matrix is None:
            return torch.zeros_like(spins)
        return torch.einsum("...jk,...k->...j", (self.matrix + self.matrix.mT) / 2, spins)

    def energy(self, spins: Values) -> Tensor:
        """Energy E(s) = -(c + Σ h s + Σ_{j<k} J s s + Σ_{j<k<l} K s s s) over the visible spins.

        Args:
            spins: ±1 of any dtype, [*sample, *batch, n], as tensor, array, list or DataFrame; ignored where invisible.

        Returns:
            Energy in the dtype of ``fields``, [*sample, *batch].

        Raises:
            IsingError: If ``spins`` has the wrong type or shape, or a visible spin is not ±1.
        """
        spins = read_spins(spins, self.fields)
        check_states(spins.to(self.fields.device), self.visible_mask)
        return -self._exponent(spins)

    def _exponent(self, spins: Tensor) -> Tensor:
        """-E of states, whose free spins may be 0."""
        if self.edges is not None and spins.ndim > self.fields.ndim:
            step = max(1, _AT_ONCE // (self.num_problems * max(self.edges.count, self.num_spins)))
            if step < len(spins):
                return torch.cat([self._exponent(part) for part in spins.split(step)])
        s = spins.to(self.fields) * self.visible_mask
        exponent = (self.fields * s).sum(-1)
        if self.edges is not None:
            exponent = exponent + self.edges.exponent(s)
        elif self.matrix is not None:
            exponent = exponent + torch.einsum("...jk,...j,...k->...", _apart(self.matrix, 2), s, s) / 2
        if self.three_body is not None:
            K = _apart(self.three_body, 3)
            exponent = exponent + torch.einsum("...jkl,...j,...k,...l->...", K, s, s, s) / 6
        if self.offset is not None:
            exponent = exponent + self.offset
        return exponent

    def log_prob(self, spins: Values, log_partition: Tensor | float | None) -> Tensor:
        """Log-probability of states, with a log Z that you choose; differentiable in h, J, K and c.

            log P(s) = c + Σ h s + Σ_{j<k} J s s + Σ_{j<k<l} K s s s - log Z,        ∂ log P / ∂h_j = s_j - <s_j>

        log Z has no default, since no method suits every problem.  ``log_partition`` of moments of ``exact`` and
        ``banded`` is exact and differentiable, that of ``tempering``, on request, an estimate without a gradient.
        After :meth:`clamp` this is log P(s_free | s_clamped), and -inf where a clamped spin has another value.

        Args:
            spins: As of :meth:`energy`.
            log_partition: log Z of this problem: a number, or in the dtype of ``fields``, broadcastable to [*batch].

        Returns:
            log P in the dtype of ``fields``, [*sample, *batch].

        Raises:
            IsingError: If ``spins`` has the wrong type or shape, or a visible spin is not ±1; if ``log_partition`` is
                None or does not fit, or has no gradient where h, J, K or c have one: the result would lack its part.

        Source: Koller and Friedman, Probabilistic Graphical Models (2009), chapter 20.
        """
        if log_partition is None:
            expected = "log Z, as 'exact', 'banded' and, on request, 'tempering' compute it"
            raise IsingError("log_partition", expected, "None")
        spins = read_spins(spins, self.fields).to(self.fields.device)
        exponent, log_z = -self.energy(spins), log_partition
        if not torch._C._are_functorch_transforms_active():  # which hide values and gradients
            log_z = cast("Tensor", read_offset(log_z, self.fields, "log_partition"))
            if torch.is_grad_enabled() and self.detach() is not self and not log_z.requires_grad:
                got = "none; use moments of 'exact' or 'banded', or problem.detach() for values"
                raise IsingError("log_partition", "a gradient as in fields", got)
        log_p = exponent - log_z
        if self.clamped is None:
            return log_p
        agrees = ((self.clamped == 0) | (spins == self.clamped)).all(-1)
        return torch.where(agrees, log_p, -math.inf)

    def clamp(self, spins: Values) -> Ising:
        """Return the problem of the free spins, P(s_free | s_clamped), with the other spins fixed at given values.

            h'_j = h_j + Σ_c J_jc s_c + Σ_{c<d} K_jcd s_c s_d,        J'_jk = J_jk + Σ_c K_jkc s_c

        With its offset E'(s) = E(s) for every s that agrees with ``spins``, and log Z is that of these states.  Clamped
        spins are invisible to backends; reads, probabilities and correlations show them at their values.

        Args:
            spins: -1 and +1 where a spin is clamped, 0 where it is free; int8 or float, broadcast against the
                fields [*batch, n]: one problem can be clamped in many ways.  Values of invisible spins are ignored.

        Returns:
            A problem of the same dtype with the broadcast batch, differentiable in h, J and K.  J is shared as
            before unless there is a K.

        Raises:
            IsingError: If ``spins`` has the wrong type or shape, a value other than -1, 0 and +1, or the opposite of
                the value at which a spin is already clamped.
        """
        spins = read_spins(spins, self.fields)
        shape = check_clamped(spins, self.fields, self.clamped)
        visible = self.visible_mask
        held = torch.where(visible, spins.to(self.fields), 0)
        fields, couplings = self.fields.expand(shape) + self.pair_fields(held), self.held_couplings
        if self.three_body is not None:  # the mean over the indices, for a symmetric gradient of K
            couplings, K = self.couplings, _apart(self.three_body, 3)
            parts = [torch.einsum(f"...{''.join(p)},...l->...jk", K, held) for p in permutations("jkl")]
            response = torch.stack(parts).mean(0)
            fields = fields + torch.einsum("...jk,...k->...j", response, held) / 2
            couplings = response if couplings is None else couplings + response
        values = held.to(torch.int8).expand(shape)
        clamped = values if self.clamped is None else torch.where(visible, values, self.clamped)
        free = Ising(
            fields, couplings, visible & (held == 0), self.three_body, self._exponent(held), check=False
        )
        return free._replaced(clamped=clamped)

    def detach(self) -> Ising:
        """Return the same problem detached from the autograd graph; the problem itself if it has no graph."""
        attached = any(t is not None and t.requires_grad for t in (*self.terms, self.offset))
        return self._mapped(Tensor.detach, self.visible) if attached else self

    def check_size(self, limit: float) -> None:
        """Refuse an unchecked problem without data or with numbers that are not finite or exceed a finite limit.

        Fields of invisible spins are not checked.

        Raises:
            IsingError: With the first such number and its index; or if fields are neither float32 nor float64.
        """
        if self.fields.dtype not in DTYPES:
            raise IsingError("fields", "dtype float32 or float64", self.fields.dtype)
        if self.visible is not None and self.visible.is_meta:
            check_tensor("visible", self.visible)
        for name, value in zip(_TERMS, self.terms, strict=True):
            if value is not None and (value.is_meta or not is_within(value, limit)):
                hidden = name == "fields" and not value.is_meta
                check_within(name, torch.where(self.visible_mask, value, 0) if hidden else value, limit)

    @property
    def terms(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The tensors that derivatives are of, which are h, J as a matrix or as the values of edges, and K."""
        return self.fields, self.matrix if self.edges is None else self.edges.values, self.three_body

    def _mapped(self, convert: Callable[[Tensor], Tensor], visible: Tensor | None) -> Ising:
        """The problem with h, J, K and the offset converted; the problem itself if nothing changes."""
        names = ("fields", "matrix", "three_body", "offset")
        new: dict[str, Any] = {
            name: None if (t := getattr(self, name)) is None else convert(t) for name in names
        }
        new |= {"edges": None if self.edges is None else self.edges.mapped(convert), "visible": visible}
        if all(value is getattr(self, name) for name, value in new.items()):
            return self
        clamped = None if self.clamped is None else self.clamped.to(new["fields"].device)
        return self._replaced(**new, clamped=clamped, check=False)

    def _replaced(self, **changes: Any) -> Ising:
        """The same problem with other attributes, without checks."""
        new = object.__new__(type(self))
        vars(new).update(vars(self), **changes)
        return new

    def to(self, *args: Any, **keywords: Any) -> Ising:
        """Move and convert as ``Tensor.to`` does, differentiably, with the mask; itself if nothing changes.

        Raises:
            IsingError: If the dtype is neither float32 nor float64.
        """
        fields = self.fields.to(*args, **keywords)
        if fields.dtype not in DTYPES:
            raise IsingError("dtype", "float32 or float64", fields.dtype)
        visible = None if self.visible is None else self.visible.to(fields.device)
        return self._mapped(lambda t: fields if t is self.fields else t.to(*args, **keywords), visible)


def _apart(values: Tensor, order: int) -> Tensor:
    """J or K (order 2 or 3) with constant zeros where two indices coincide, which then have no gradient."""
    same = torch.eye(values.shape[-1], dtype=torch.bool, device=values.device)
    return values.masked_fill(same if order == 2 else same[:, :, None] | same[:, None] | same, 0)


_NOTHING = nullcontext()


def without_autocast(t: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast: samplers support float32 and float64, and exponents need full precision."""
    if t.is_cpu and not torch.is_autocast_enabled("cpu"):
        return _NOTHING
    kind = t.device.type
    if kind not in ("cpu", "cuda") and not torch.amp.is_autocast_available(kind):  # which no graph has
        return _NOTHING
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _NOTHING


def flat_index(lead: torch.Size, batch: torch.Size) -> Tensor:
    """Index of each of N = Π batch problems into leading dimensions that broadcast to it, int64 [N], on the CPU."""
    return torch.arange(lead.numel()).reshape(lead).expand(batch).reshape(-1)
