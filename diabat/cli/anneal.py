"""``diabat anneal learn``, ``show`` and ``export``: plans with free angles, trained to sample at beta = 1."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError, escaped, is_number
from diabat.cli import arguments
from diabat.cli.output import print_figure, print_json, print_report, print_table, require_writable, say
from diabat.files import replace_file

if TYPE_CHECKING:
    from diabat.circuits import TrotterPlan

PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="A shipped plan, e.g. boltzmann-8, or a plan file.")
]

CircuitOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the circuit: .qasm or .qasm3.", show_default=False),
]


def learn(
    config: arguments.ConfigArgument = None,
    overrides: arguments.OverridesArgument = None,
    force: arguments.ForceOption = False,
    progress: arguments.ProgressOption = True,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Train a plan to sample at beta = 1, and judge it on held-out instances.

    The section anneal describes plan, problems and search; output=PLAN.json is the file.  The best plan so far is in
    it at all times; Ctrl-C keeps it.
    """
    from diabat.documents.errors import of_section

    resolved = arguments.load(config, overrides, trust=trust)
    with of_section():
        if "output" not in resolved.model_fields_set:
            raise ArgumentError("output", "the file of the plan, such as output=plan.json", "none")
        require_writable(resolved.output, "output", (".json",), new=not force)
    from diabat.lab.runs.anneals import learn_anneal

    plan, metadata = learn_anneal(resolved, progress=progress, trust=trust)
    _print_plan(plan, metadata, str(resolved.output), as_json=as_json, angles=False)


def show(
    plan: PlanArgument, figure: arguments.FigureOption = None, as_json: arguments.JsonOption = False
) -> None:
    """Print the angles of a plan, its first-order betas, and its errors on held-out instances."""
    from diabat.lab.runs.anneals import find_plan
    from diabat.lab.studies.learned.problems import plot_plan

    chosen, metadata = find_plan(plan)
    if figure is not None:
        require_writable(figure)
        plot_plan(chosen, figure, title=plan)
    _print_plan(chosen, metadata, plan, as_json=as_json, figure=figure)


def export(
    plan: PlanArgument,
    problem: arguments.ProblemArgument,
    beta: arguments.BetaOption = None,
    output: CircuitOption = None,
    force: arguments.ForceOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Print or write the circuit of one problem under a plan as OpenQASM 3; qubit j is spin j, and 1 means +1.

    Fields and couplings are programmed as they are, positive fields favouring +1: a learned plan samples at
    beta = 1 without calibration.
    """
    require_writable(output, "output", (".qasm", ".qasm3"), new=not force)
    from diabat.circuits import to_qasm3
    from diabat.ising.problem_files import read_problem
    from diabat.lab.runs.anneals import find_plan
    from diabat.samplers.dqa import DQASampler

    chosen, _ = find_plan(plan)
    ising = read_problem(problem, beta=beta).ising
    if ising.three_body is not None or not bool(ising.visible_mask.all()):
        got = "invisible spins" if ising.three_body is None else "three-body terms"
        raise ArgumentError("problem", "only fields and couplings", f"{got} in '{problem}'")
    source = to_qasm3(DQASampler(schedule=chosen, calibration="none").circuit(ising, measure=True))
    if output is not None:
        replace_file(output, source.encode())
    if as_json:
        print_json({"plan": plan, "steps": chosen.steps, "qubits": ising.num_spins, "qasm3": source})
    else:
        say(source if output is None else f"Circuit: {output}\n", end="")


def _print_plan(
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
    from diabat.lab.studies.learned.problems import ErrorTable

    rows = _checked(metadata, name)
    betas = plan_betas(plan)
    kinds = {"field": plan.field_angles, "coupling": plan.coupling_angles, "mixer": plan.mixer_angles}
    if as_json:
        document = {"plan": name, "label": plan.label, "steps": plan.steps} | betas._asdict()
        document |= {f"{kind}_angles_rad": angle for kind, angle in kinds.items()}
        print_json(document | {"metadata": metadata})
        return
    at = f"beta_h {betas.beta_h:.4f}, beta_J {betas.beta_J:.4f} at first order"
    say(f"{name}: {escaped(plan.label) or 'plan'}, {at}")
    if "loss" in metadata:
        state = "" if metadata.get("finished") else " (interrupted)"
        say(f"Loss {metadata['loss']:.5f}{state}; {escaped(str(metadata.get('command', '')))}")
    if (allowed := PlanRange.of_metadata(metadata)) is not None:
        ends = f"|h| up to {allowed.max_field:g}, rows of J of norm up to {allowed.max_row_norm:g}"
        say(f"Range: {ends}")
    say()
    if angles:
        steps = enumerate(zip(*kinds.values(), strict=True), start=1)
        cells = ((str(k), *(f"{x:+.6f}" for x in row)) for k, row in steps)
        print_table("Angles (rad)", ("step", "field b", "coupling c", "mixer a"), cells)
    if rows:
        print_report(ErrorTable(rows))
    else:
        say("The file has no errors on held-out instances.")
    print_figure(figure)


def _checked(metadata: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of errors on held-out instances in the metadata of a plan; refuses other forms, and a loss like that."""
    if not is_number(loss := metadata.get("loss", 0.0)):
        raise ArgumentError(f"{name}: expected a number as metadata.loss, got {loss!r:.60}.")
    held_out = metadata.get("held_out", {})
    rows = held_out.get("rows", []) if isinstance(held_out, dict) else held_out
    for row in rows if isinstance(rows, list) else [rows]:
        fits = isinstance(row, dict) and isinstance(row.get("name"), str) and is_number(row.get("instances"))
        values = [value for key, value in row.items() if key != "name" and value is not None] if fits else []
        if not fits or not all(map(is_number, values)):
            raise ArgumentError(f"{name}: expected rows of numbers in metadata.held_out, got {row!r:.60}.")
    return rows
