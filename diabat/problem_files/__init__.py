"""Read one Ising problem from a file, or write it: dimod JSON, COO text, or a small YAML.

dimod problems are energies to be minimised; the sign flips in :func:`diabat.ising.from_bqm`.  The YAML of
:mod:`diabat.problem_files.yaml_format` is in the convention of the law, without a flip.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diabat.checks import ArgumentError, is_positive
from diabat.config.errors import ConfigError
from diabat.config.yaml_files import parse_yaml, read_bytes
from diabat.files import replace_file

if TYPE_CHECKING:
    from torch import Tensor

    from diabat.ising import Ising

__all__ = ["Problem", "ProblemFileError", "read_problem", "write_problem"]

_MAX_BYTES = 1 << 31
COO_HEADER = re.compile(r"#.*?\bvartype[:=][ \t]*([A-Za-z]+)")
_COO_LINE = re.compile(r"\d+[ \t]+\d+[ \t]")
_OTHERS = re.compile(r"""\{.*"BinaryQuadraticModel"|(.*\n)?["']?fields["']?[ \t]*:""", re.DOTALL)
"""dimod's JSON, and a YAML with the key fields."""


class ProblemFileError(ArgumentError):
    """A file that is not a valid problem; the message names the file and what is wrong."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem of a file: ``ising`` has the numbers of the file times beta, and ``labels`` name the spins.

    The variables of the file are 0 and 1, for spins -1 and +1, if it is ``binary``.
    """

    ising: Ising
    labels: list[Hashable]
    beta: float = 1.0
    binary: bool = False

    def states(self, spins: Tensor) -> Tensor:
        """States in the values of the file, int8: ±1, or 0 and 1."""
        return (spins > 0).to(spins.dtype) if self.binary else spins

    def energy(self, spins: Tensor) -> Tensor:
        """Energies of states ±1 in the units of the file, offset included: the law is P ∝ exp(-beta · energy)."""
        return self.ising.energy(spins) / self.beta


def is_problem(path: str | Path) -> bool:
    """Whether a path is ``-`` or a file that looks like a problem in one of the formats, not like a configuration."""
    if str(path) == "-" or not os.path.isfile(path):  # False for names that are no paths, as too long ones
        return str(path) == "-"
    text = read_bytes(Path(path), _MAX_BYTES).decode("utf-8-sig", "replace").lstrip()
    return any(form.match(text) for form in (COO_HEADER, _COO_LINE, _OTHERS))


def read_problem(path: str | Path, *, beta: float | None = None) -> Problem:
    """Read a problem, fields [n] in float64, telling the format by its content.

    Args:
        path: The file; ``-`` for standard input.
        beta: Inverse temperature folded into the problem.  None takes the one of a YAML file, or 1.

    Raises:
        ProblemFileError: If the file is unreadable or not a valid problem.
    """
    if beta is not None and not is_positive(beta):
        raise ProblemFileError("beta", f"expected a finite number > 0, got {beta}.")
    piped = str(path) == "-"
    name = "standard input" if piped else str(path)
    try:
        data = sys.stdin.buffer.read(_MAX_BYTES + 1) if piped else read_bytes(Path(path), _MAX_BYTES)
        if len(data) > _MAX_BYTES:
            raise ArgumentError(f"expected at most {_MAX_BYTES} bytes, got more")
        return _parse(data.decode("utf-8-sig"), name, beta)
    except UnicodeDecodeError as error:
        raise ProblemFileError(
            f"'{name}': expected text (dimod JSON, COO or YAML), got other bytes."
        ) from error
    except ConfigError as error:
        raise ProblemFileError(str(error)) from error
    except ArgumentError as error:
        raise ProblemFileError(f"'{name}': {str(error).rstrip('.')}.") from error


def _parse(text: str, name: str, beta: float | None) -> Problem:
    """Read the content of a file, whose refusals name the place in it."""
    from diabat.ising import from_bqm
    from diabat.problem_files.dimod_formats import coo_bqm, json_bqm
    from diabat.problem_files.yaml_format import yaml_problem

    first = next((s for line in text.splitlines() if (s := line.strip())), "")
    if not first:
        raise ArgumentError("the file is empty")
    if first.startswith("{"):
        bqm = json_bqm(text)
    elif COO_HEADER.match(first) or _COO_LINE.match(first):
        bqm = coo_bqm(text)
    else:
        ising, beta = yaml_problem(parse_yaml(text, f"'{name}'"), beta)
        return Problem(ising, list(range(ising.num_spins)), beta)
    if bqm is None or not bqm.num_variables:
        raise ArgumentError("the model has no variables")
    beta = 1.0 if beta is None else beta
    return Problem(*from_bqm(bqm, beta=beta), beta, bqm.vartype.name == "BINARY")


_SUFFIXES = (".json", ".coo", ".yaml", ".yml")


def write_problem(path: str | Path, ising: Ising, labels: list[Hashable] | None = None) -> None:
    """Write one problem atomically; every number is read back exactly.

    ``.json`` is dimod's JSON, ``.coo`` COO text without offset, both with the biases that dimod minimises at beta = 1;
    ``.yaml`` has the sign of the law, and alone holds three-body terms and invisible spins.

    Args:
        path: The file, whose suffix names the format.
        ising: One problem, fields [n].
        labels: The name of each spin; None for 0 .. n - 1, the only names that YAML has.  COO takes integers >= 0.

    Raises:
        ArgumentError: If the suffix is unknown, or the format cannot hold the problem or its labels.
        OSError: If the file cannot be written.
    """
    from diabat.ising import to_bqm
    from diabat.problem_files.dimod_formats import coo_lines
    from diabat.problem_files.yaml_format import yaml_lines

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ArgumentError(
            "path", f"expected a name that ends in {', '.join(_SUFFIXES)}, got '{path.name}'."
        )
    if ising.fields.ndim != 1:
        raise ArgumentError("fields", f"expected one problem [n], got a batch {list(ising.fields.shape)}.")
    if suffix == ".json":
        content = json.dumps(to_bqm(ising, labels).to_serializable())
    else:
        content = "".join((coo_lines if suffix == ".coo" else yaml_lines)(ising, labels))
    replace_file(path, content.encode())
