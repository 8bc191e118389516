"""What ``diabat anneal`` prints of a plan: angles, first-order betas, errors on held-out instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from diabat.circuits import PlanRange, TrotterPlan, plan_betas
from diabat.cli.output import print_json, print_table

_ERRORS = ("learned", "anneal", "mean_field", "independent")
_PAIRS = ("learned_pairs", "anneal_pairs")
_HEADINGS = ("learned", "5 ns anneal", "mean field", "J = 0", "pairs: learned", "5 ns anneal")


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
    rows = metadata.get("held_out", {}).get("rows")
    if not rows:
        typer.echo("The file has no errors on held-out instances.")
        return
    columns = ("instances", "n", "g", *_HEADINGS)
    cells = (
        (
            f"{row['instances']} {row['name']}",
            str(row["num_spins"]),
            f"{row['strength']:.2g}",
            *(f"{row[key]:.4f}" for key in _ERRORS),
            *(f"{row[key]:.4f}" if key in row else "" for key in _PAIRS),
        )
        for row in rows
    )
    title = "Mean |P(s = +1) - exact| on held-out instances (pairs: of <s s'>)"
    print_table(title, columns, cells, right=columns[1:])
