"""Models of dimod in and out, the only place where its sign is turned: dimod minimises +Σ h s + Σ J s s."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor

from diabat.checks import check_number, is_finite, number_text
from diabat.ising.arguments import read_matrix
from diabat.ising.checks import IsingError
from diabat.ising.edges import Edges, best_form, no_edges, pairs_of
from diabat.ising.model import Ising


def from_bqm(bqm: Any, *, beta: float = 1.0) -> tuple[Ising, list[Hashable]]:
    """Convert a dimod BinaryQuadraticModel E, which is minimised, into h = -beta·h_bqm, J = -beta·J_bqm, with offset.

    ``energy`` of the problem is beta·E, and the law is P ∝ exp(-beta·E) with its full log Z.

    Args:
        bqm: Any dimod BQM; a BINARY one is converted to SPIN.
        beta: Inverse temperature folded into the parameters.

    Returns:
        The problem, float64 [n], with couplings in :func:`~diabat.ising.edges.best_form`, and the label of each spin.

    Raises:
        IsingError: If it is not a BQM, has no variables, or a bias is not finite.
    """
    import dimod

    if not isinstance(bqm, dimod.BinaryQuadraticModel):
        ways = {"dict": "from_qubo takes a QUBO", "ConstrainedQuadraticModel": "use dimod.cqm_to_bqm"}
        kind = type(bqm).__name__
        raise IsingError(
            "bqm", "a dimod.BinaryQuadraticModel", f"{kind}; {ways[kind]}" if kind in ways else kind
        )
    check_number("beta", beta, "(-inf, inf)")
    if bqm.dtype == object:  # objects of Python, which may be of any size or kind
        for name, bias in chain(bqm.linear.items(), bqm.quadratic.items(), [("offset", bqm.offset)]):
            if not is_finite(bias):
                raise IsingError(f"bqm[{name!r}]", "a finite number", number_text(bias))
    spin = bqm.change_vartype("SPIN", inplace=False)
    labels = list(spin.variables)
    linear, (rows, columns, biases), offset = spin.to_numpy_vectors(variable_order=labels)
    edges = Edges(np.stack((rows, columns), axis=1), -beta * biases.astype(float))
    constant = -beta * float(offset) if offset else None
    return Ising(-beta * linear.astype(float), best_form(edges, len(labels)), offset=constant), labels


def from_qubo(Q: Any, *, offset: float = 0.0, beta: float = 1.0) -> tuple[Ising, list[Hashable]]:
    """Convert a QUBO, E(x) = xᵀ Q x + offset of bits x = (1 + s)/2, which is minimised; see :func:`from_bqm`.

    Args:
        Q: ``{(a, b): value}``, or a square matrix as array, tensor, list or DataFrame, whose columns name the
            variables.  (a, a) is a linear term; (a, b) and (b, a) are added.
        offset: Constant of the energy.
        beta: Inverse temperature folded into the parameters.

    Returns:
        The problem, float64 [n], whose ``energy`` is beta·E, and the label of each spin.

    Raises:
        IsingError: If there is no variable, a key is not a pair, a value is not a finite number, or the matrix is not
            square.
    """
    import dimod

    check_number("offset", offset, "(-inf, inf)")
    if isinstance(Q, Mapping):
        for pair, value in Q.items():
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise IsingError("Q", "pairs (a, b) as keys", f"{pair!r}")
            if not is_finite(value):
                raise IsingError(f"Q[{pair!r}]", "a finite number", number_text(value))
        bqm = dimod.BinaryQuadraticModel.from_qubo(Q, float(offset))
    elif isinstance(Q, tuple) and len(Q) == 2 and isinstance(Q[0], Mapping):
        raise IsingError("Q", "a mapping or a matrix", "a pair; give (Q, offset) as Q, offset=offset")
    else:
        bqm = dimod.BinaryQuadraticModel(read_matrix("Q", Q), "BINARY")
        bqm.offset = float(offset)
        names = list(getattr(Q, "columns", ()))
        if len(set(names)) != len(names):
            raise IsingError("Q", "different names of columns", names)
        bqm.relabel_variables(dict(enumerate(names)))
    if not bqm.num_variables:
        raise IsingError("Q", "at least one variable", "none")
    return from_bqm(bqm, beta=beta)


def to_minimised(values: Tensor, beta: float = 1.0) -> Tensor:
    """Return the biases -values/beta of the energy +Σ h s + Σ J s s that dimod and D-Wave minimise.

    A device that samples exp(-beta · energy) with these biases follows exp(Σ h s + Σ J s s) with ``values``.
    """
    return values / -beta


def to_bqm(ising: Ising, labels: list[Hashable] | None = None) -> Any:
    """Convert one problem without invisible spins or three-body terms into a SPIN BQM (energies agree).

    Raises:
        IsingError: If the problem is a batch, has invisible or clamped spins or three-body terms, or labels are not
            one per spin.
    """
    import dimod

    if ising.fields.ndim != 1:
        raise IsingError("fields", "one problem [n]", f"a batch {list(ising.fields.shape)}")
    if ising.three_body is not None:
        raise IsingError("three_body", "None (a BQM is quadratic)", "a tensor")
    if ising.visible is not None and not bool(ising.visible.all()):
        got = "invisible spins; drop them first" if ising.clamped is None else "spins that clamp() has fixed"
        raise IsingError("visible", "every spin visible", got)
    names: list[Hashable] = list(range(ising.num_spins)) if labels is None else list(labels)
    try:
        different = len(set(names)) == len(names) == ising.num_spins
        if labels is not None:
            dimod.variables.Variables(names)
    except (TypeError, ValueError, OverflowError) as error:
        expected = "hashable labels, numbers among them finite and below 2^63"
        raise IsingError("labels", expected, f"others ({error})") from error
    if not different:
        raise IsingError("labels", f"{ising.num_spins} different labels", names)
    pairs, values = coupled_pairs(ising)
    return dimod.BinaryQuadraticModel.from_numpy_vectors(
        -_array(ising.fields),
        (pairs[:, 0], pairs[:, 1], -values),
        0.0 if ising.offset is None else -float(ising.offset),
        "SPIN",
        variable_order=names,
    )


def coupled_pairs(ising: Ising) -> tuple[np.ndarray, np.ndarray]:
    """Coupled pairs int64 [E, 2] of one problem and their J, float64 [E]; the nonzero ones of a matrix."""
    if ising.matrix is not None:
        return pairs_of(_array(ising.matrix))
    edges = ising.edges or no_edges(ising.fields)
    return edges.index.cpu().numpy(), _array(edges.values)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
