"""Read and print plans, problems and lists of numbers for the commands of ``diabat anneal``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from diabat.cli.failures import naming
from diabat.cli.output import print_json, print_report, print_table

if TYPE_CHECKING:
    from diabat.circuits import TrotterPlan
    from diabat.circuits.schedules import FloatArray


def choose_plan(name: str) -> tuple[TrotterPlan, dict[str, Any]]:
    """A shipped plan by name, or a plan from a file; and its metadata.

    Raises:
        ConfigError: There is no plan of this name.
        ValueError: The file is not a plan file.
    """
    from diabat.config.errors import ConfigError
    from diabat.runs.anneals import find_plan

    with naming({"plan": "PLAN"}, ConfigError):
        return find_plan(name)


def choose_problem(
    path: Path | None, fields: str | None, couplings: str | None, beta: float | None
) -> tuple[FloatArray, FloatArray]:
    """Fields [n] and couplings [n, n] from a problem file or from the command line.

    Raises:
        ConfigError: Both or neither are given, or a plan cannot run the problem.
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
            raise ConfigError("--couplings", f"cannot be combined with --problem, got {couplings!r}.")
        ising = read_problem(path, beta=beta).ising
        if ising.three_body is not None:
            raise ConfigError(
                "--problem", f"expected only fields and couplings, got three-body terms in '{path}'."
            )
        if not bool(ising.visible_mask.all()):
            raise ConfigError("--problem", f"expected every spin visible, got invisible ones in '{path}'.")
        h, J = ising.fields.double(), ising.couplings
        return h.numpy(), torch.zeros(len(h), len(h)).numpy() if J is None else J.double().numpy()
    if beta is not None:
        raise ConfigError("--beta", f"cannot be combined with --fields, only with --problem, got {beta:g}.")
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
        ConfigError: A word that is not a finite number, or an empty list.
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
    """The integers of a list with spaces or commas.

    Raises:
        ConfigError: As `numbers`, or a number that is not whole.
    """
    from diabat.config.errors import ConfigError

    values = numbers(text, option)
    for value in values:
        if value != int(value):
            raise ConfigError(option, f"expected integers, got {value:g}.")
    return [int(value) for value in values]


def print_plan(
    plan: TrotterPlan,
    metadata: dict[str, Any],
    name: str,
    *,
    as_json: bool,
    angles: bool = True,
    figure: Path | None = None,
) -> None:
    """Print a plan as tables, or as one JSON document with every angle."""
    from diabat.circuits import PlanRange, plan_betas

    betas = plan_betas(plan)
    if as_json:
        document = {
            "plan": name,
            "label": plan.label,
            "layers": plan.steps,
            "beta_h": betas.beta_h,
            "beta_J": betas.beta_J,
            "field_angles_rad": plan.field_angles,
            "coupling_angles_rad": plan.coupling_angles,
            "mixer_angles_rad": plan.mixer_angles,
            "metadata": metadata,
        }
        print_json(document)
        return
    typer.echo(
        f"{name}: {plan.label or 'plan'}, beta_h {betas.beta_h:.4f}, beta_J {betas.beta_J:.4f} at first order"
    )
    if "loss" in metadata:
        state = "" if metadata.get("finished") else " (interrupted)"
        typer.echo(f"Loss {metadata['loss']:.5f}{state}; {metadata.get('command', '')}")
    allowed = PlanRange.of_metadata(metadata)
    if allowed is not None:
        typer.echo(
            f"Range: |h| up to {allowed.max_field:g}, rows of J of norm up to {allowed.max_row_norm:g}"
        )
    typer.echo()
    if angles:
        _print_angles(plan)
    _print_errors(metadata)
    if figure is not None:
        typer.echo(f"Figure: {figure}")


def _print_angles(plan: TrotterPlan) -> None:
    columns = ("layer", "field b", "coupling c", "mixer a")
    rows = (
        (str(k + 1), *(f"{x:+.6f}" for x in row))
        for k, row in enumerate(zip(plan.field_angles, plan.coupling_angles, plan.mixer_angles, strict=True))
    )
    print_table("Angles (rad)", columns, rows, right=columns)


def _print_errors(metadata: dict[str, Any]) -> None:
    from diabat.studies.learned import ErrorTable

    rows = metadata.get("held_out", {}).get("rows")
    if rows:
        print_report(ErrorTable(rows))
    else:
        typer.echo("The file has no errors on held-out instances.")
