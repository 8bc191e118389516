"""What the commands of ``diabat anneal`` read and write: plans, problems, lists of numbers, new files."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diabat.cli.failures import naming
from diabat.cli.figures import require_writable

if TYPE_CHECKING:
    from diabat.circuits import TrotterPlan
    from diabat.circuits.schedules import FloatArray


def choose_plan(name: str, option: str = "PLAN") -> tuple[TrotterPlan, dict[str, Any]]:
    """A shipped plan by name, or a plan from a file; and its metadata.

    Raises:
        ConfigError: There is no plan of this name; the sentence begins with ``option``.
        ValueError: The file is none of a plan.
    """
    from diabat.circuits import available_plans, builtin_plan, load_plan
    from diabat.config.errors import ConfigError

    if name not in available_plans() and (Path(name).suffix or os.sep in name or Path(name).exists()):
        return load_plan(name)
    with naming({"plan": option}, ConfigError):
        return builtin_plan(name)


def choose_problem(
    path: Path | None, fields: str | None, couplings: str | None, beta: float | None
) -> tuple[FloatArray, FloatArray]:
    """Fields [n] and couplings [n, n] from a problem file or from the command line.

    Raises:
        ConfigError: Both or neither are given, or the problem is none that a plan can run.
    """
    import torch

    from diabat.config.errors import ConfigError
    from diabat.ising import pack_couplings
    from diabat.problem_files import read_problem

    if (path is None) == (fields is None):
        got = "neither" if path is None else "both"
        raise ConfigError(f"--problem, --fields: expected one of them, got {got}.")
    if path is not None:
        if couplings is not None:
            raise ConfigError("--couplings", f"expected none beside --problem, got {couplings!r}.")
        ising = read_problem(path, beta=beta).ising
        if ising.three_body is not None:
            raise ConfigError(
                "--problem", f"expected fields and couplings alone, got three-body terms in '{path}'."
            )
        if not bool(ising.visible_mask.all()):
            raise ConfigError("--problem", f"expected every spin visible, got invisible ones in '{path}'.")
        h, J = ising.fields.double(), ising.couplings
        return h.numpy(), torch.zeros(len(h), len(h)).numpy() if J is None else J.double().numpy()
    if beta is not None:
        raise ConfigError("--beta", f"expected a --problem to fold it into, got {beta:g} beside --fields.")
    values = numbers(fields or "", "--fields")
    n = len(values)
    pairs = (
        [0.0] * (n * (n - 1) // 2) if couplings is None else numbers(couplings, "--couplings", empty=n == 1)
    )
    if len(pairs) != n * (n - 1) // 2:
        raise ConfigError(
            "--couplings",
            f"expected {n * (n - 1) // 2} numbers for {n} spins, J_jk with j < k row by row, "
            f"got {len(pairs)}.",
        )
    J = pack_couplings(torch.tensor(pairs, dtype=torch.float64), n)
    return torch.tensor(values, dtype=torch.float64).numpy(), J.numpy()


def numbers(text: str, option: str, *, empty: bool = False) -> list[float]:
    """The numbers of a list with spaces or commas.

    Raises:
        ConfigError: A word that is no finite number, or no number at all.
    """
    from diabat.config.errors import ConfigError

    found = []
    for word in text.replace(",", " ").split():
        try:
            found.append(float(word))
        except ValueError:
            found.append(math.nan)
        if not math.isfinite(found[-1]):
            raise ConfigError(option, f"expected numbers with spaces or commas between them, got {word!r}.")
    if not found and not empty:
        raise ConfigError(option, f"expected at least one number, got {text!r}.")
    return found


def integers(text: str, option: str) -> list[int]:
    """The integers of such a list.

    Raises:
        ConfigError: As `numbers`, or a number that is not whole.
    """
    from diabat.config.errors import ConfigError

    values = numbers(text, option)
    for value in values:
        if value != int(value):
            raise ConfigError(option, f"expected integers, got {value:g}.")
    return [int(value) for value in values]


def require_new(path: Path, option: str, suffixes: tuple[str, ...], force: bool) -> None:
    """Fail before the computation rather than after it; makes the folder.

    Raises:
        ConfigError: Another suffix, a folder, or a file that exists without `force`.
        PermissionError: The place cannot be written.
    """
    from diabat.config.errors import ConfigError

    require_writable(path, option, suffixes, new=not force, error=ConfigError)
