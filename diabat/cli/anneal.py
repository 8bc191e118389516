"""``diabat anneal learn``, ``show`` and ``export``: plans with free angles, trained to sample at beta = 1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diabat.cli.anneal_files import choose_plan, require_new
from diabat.cli.arguments import JsonOption
from diabat.cli.failures import importing
from diabat.cli.figures import FIGURES
from diabat.cli.output import print_json

app = typer.Typer(
    help="Learned anneals: train, look at and export plans.", no_args_is_help=True, rich_markup_mode=None
)

PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="A shipped plan, e.g. boltzmann-8, or a plan file.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


@app.command("learn")
def learn(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The plan file to write (.json).")],
    layers: Annotated[int, typer.Option(min=1, help="Layers of the plan.")] = 8,
    shared: Annotated[
        bool, typer.Option("--shared", help="The same angles for fields and couplings.")
    ] = False,
    pair_weight: Annotated[
        float, typer.Option(min=0, help="Weight of pair correlations in the loss; 0: only marginals.")
    ] = 0.2,
    strengths: Annotated[
        str | None, typer.Option(help="Strengths g of h ~ N(0, g), J ~ N(0, g/√n). [default: 0.3 0.6 1 1.5]")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Weight of each strength; equal if left out.", show_default=False)
    ] = None,
    spins: Annotated[
        str | None, typer.Option(help="Numbers of spins n of the instances. [default: 4 5]")
    ] = None,
    instances: Annotated[
        int | None, typer.Option(min=1, help="Instances for each n and g. [default: 64]")
    ] = None,
    wide_fields: Annotated[
        float | None,
        typer.Option(
            help="Also train on fields uniform up to this size, J ~ N(0, 0.5/√n).", show_default=False
        ),
    ] = None,
    wide_weight: Annotated[
        float | None, typer.Option(help="Weight of these problems. [default: 1]", show_default=False)
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of a training run: its fields and couplings in place of random ones."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="PLAN", help="Begin with this plan (name or file).")
    ] = None,
    restarts: Annotated[int, typer.Option(min=1, help="Starts at every number of layers.")] = 8,
    iterations: Annotated[int, typer.Option(min=1, help="L-BFGS iterations of each start.")] = 200,
    polish: Annotated[int, typer.Option(min=0, help="Further iterations for the best one.")] = 1000,
    held_out: Annotated[int, typer.Option(min=1, help="Held-out instances for each row of the table.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same plan.")] = 0,
    force: ForceOption = False,
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Progress bar on stderr.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Train a plan to sample at beta = 1, and judge it on held-out instances.

    The best plan so far is in the file at all times; Ctrl-C keeps it.  Lists are numbers with spaces or commas
    between them.
    """
    with importing():
        from diabat.cli.anneal_learn import learn_and_save
        from diabat.cli.anneal_report import print_plan
        from diabat.cli.anneal_request import Request

    require_new(output, "OUTPUT", (".json",), force)
    request = Request.parse(
        layers=layers,
        shared=shared,
        pair_weight=pair_weight,
        strengths=strengths,
        weights=weights,
        spins=spins,
        instances=instances,
        wide_fields=wide_fields,
        wide_weight=wide_weight,
        run=run,
        start=start,
        restarts=restarts,
        iterations=iterations,
        polish=polish,
        held_out=held_out,
        seed=seed,
    )
    plan, metadata = learn_and_save(request, output, progress=progress)
    print_plan(plan, metadata, str(output), as_json=as_json, angles=False)


@app.command("show")
def show(
    plan: PlanArgument,
    figure: Annotated[Path | None, typer.Option(help="Draw the angles into this file.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the angles of a plan, its first-order betas, and its errors on held-out instances."""
    with importing():
        from diabat.cli.anneal_report import print_plan
        from diabat.studies.learned import plot_plan

    chosen, metadata = choose_plan(plan)
    if figure is not None:
        require_new(figure, "--figure", FIGURES, force)
        plot_plan(chosen, figure, title=plan)
    print_plan(chosen, metadata, plan, as_json=as_json, figure=figure)


@app.command("export")
def export(
    plan: PlanArgument,
    problem: Annotated[Path | None, typer.Option(help="Problem file, as 'diabat sample' reads it.")] = None,
    fields: Annotated[str | None, typer.Option(help="Fields, e.g. '0.5 -1'.", show_default=False)] = None,
    couplings: Annotated[
        str | None, typer.Option(help="Couplings J_jk, j < k, row by row; 0 if left out.", show_default=False)
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="Inverse temperature folded into the file's problem.")
    ] = None,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure all qubits.")] = True,
    output: Annotated[Path | None, typer.Option(help="Write this file; stdout if left out.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the circuit of one problem under a plan as OpenQASM 3; qubit j is spin j, and 1 means +1.

    Fields and couplings are programmed as they are, positive fields favouring +1: a learned plan samples at
    beta = 1 without calibration.
    """
    with importing():
        from diabat.circuits import anneal_circuit, to_qasm3
        from diabat.cli.anneal_files import choose_problem
        from diabat.files import naming

    chosen, _ = choose_plan(plan)
    h, J = choose_problem(problem, fields, couplings, beta)
    if output is not None:
        require_new(output, "--output", (".qasm", ".qasm3", ".txt"), force)
    source = to_qasm3(anneal_circuit(chosen, h, J, measure=measure))
    if output is not None:
        with naming(output):
            output.write_text(source, encoding="utf-8")
    if as_json:
        print_json(
            {"plan": plan, "layers": chosen.steps, "qubits": len(h), "output": output, "qasm3": source}
        )
    else:
        typer.echo(source if output is None else f"Circuit: {output}", nl=output is not None)
