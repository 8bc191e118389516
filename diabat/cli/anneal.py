"""``diabat anneal learn``, ``show`` and ``export``: plans with free angles, trained to sample at beta = 1."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.cli.arguments import JsonOption, OverridesArgument, TrustOption, config_and_overrides
from diabat.cli.failures import Interrupted, importing, naming
from diabat.cli.figures import FIGURES, require_writable
from diabat.cli.output import print_json
from diabat.cli.plans import choose_plan, choose_problem, integers, numbers, print_plan

if TYPE_CHECKING:
    from diabat.config import Config

app = typer.Typer(
    help="Learned anneals: train, look at and export plans.", no_args_is_help=True, rich_markup_mode=None
)

PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="A shipped plan, e.g. boltzmann-8, or a plan file.")
]
ConfigArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file with a section anneal, or the name of a shipped configuration, e.g. anneal.",
        show_default=False,
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


def _number(text: str, least: int | None = None) -> Any:
    """An option with a number or a list of numbers that overrides a key of the section."""
    return typer.Option(min=least, help=text, show_default=False)


@app.command("learn")
def learn(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The plan file to write (.json).")],
    config: ConfigArgument = None,
    overrides: OverridesArgument = None,
    layers: Annotated[int | None, _number("Layers of the plan. [default: 8]", 1)] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="The same angles for fields and couplings.")
    ] = False,
    pair_weight: Annotated[
        float | None,
        _number("Weight of pair correlations in the loss; 0: only marginals. [default: 0.2]", 0),
    ] = None,
    strengths: Annotated[
        str | None, _number("Strengths g of h ~ N(0, g), J ~ N(0, g/√n). [default: 0.3 0.6 1 1.5]")
    ] = None,
    weights: Annotated[str | None, _number("Weight of each strength; equal if left out.")] = None,
    spins: Annotated[str | None, _number("Numbers of spins n of the instances. [default: 4 5]")] = None,
    instances: Annotated[int | None, _number("Instances for each n and g. [default: 64]", 1)] = None,
    wide_fields: Annotated[
        float | None, _number("Also train on fields uniform up to this size, J ~ N(0, 0.5/√n).")
    ] = None,
    wide_weight: Annotated[float | None, _number("Weight of these problems. [default: 1]")] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of a training run: its fields and couplings in place of random ones."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="PLAN", help="Begin with this plan (name or file).")
    ] = None,
    restarts: Annotated[int | None, _number("Starts at every number of layers. [default: 8]", 1)] = None,
    iterations: Annotated[int | None, _number("L-BFGS iterations of each start. [default: 200]", 1)] = None,
    polish: Annotated[int | None, _number("Further iterations for the best one. [default: 1000]", 0)] = None,
    held_out: Annotated[
        int | None, _number("Held-out instances for each row of the table. [default: 100]", 1)
    ] = None,
    seed: Annotated[int | None, _number("Same seed, same plan. [default: 0]", 0)] = None,
    force: ForceOption = False,
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Progress bar on stderr.")
    ] = True,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a plan to sample at beta = 1, and judge it on held-out instances.

    The best plan so far is in the file at all times; Ctrl-C keeps it.  Lists are numbers with spaces or commas
    between them.  Options override the section anneal of CONFIG, whose keys have the same names.
    """
    with importing():
        from diabat.config import ConfigError
        from diabat.runs.anneals import LearningInterrupted, learn_anneal
        from diabat.studies.learned.problems import RANDOM

    require_writable(output, "OUTPUT", (".json",), new=not force)
    given: dict[str, Any] = {
        "layers": layers,
        "shared": shared or None,
        "pair_weight": pair_weight,
        "strengths": None if strengths is None else numbers(strengths, "--strengths"),
        "weights": None if weights is None else numbers(weights, "--weights"),
        "spins": None if spins is None else integers(spins, "--spins"),
        "instances": instances,
        "wide_fields": wide_fields,
        "wide_weight": wide_weight,
        "run": None if run is None else str(run),
        "start": start,
        "restarts": restarts,
        "iterations": iterations,
        "polish": polish,
        "held_out": held_out,
    }
    given = {name: value for name, value in given.items() if value is not None}
    for name in RANDOM if run is not None else ():
        if name in given:
            reason = f"cannot be combined with --run, which provides the problems, got {given[name]!r}."
            raise ConfigError(_option(name), reason)
    options = {f"anneal.{name}": _option(name) for name in given} | (
        {} if seed is None else {"seed": "--seed"}
    )
    with naming(options, ConfigError):
        resolved = _load(config, overrides or [], given, seed, trust)
        made = command(resolved, output)
        try:
            plan, metadata = learn_anneal(resolved, output, command=made, progress=progress, trust=trust)
        except LearningInterrupted as error:
            again = shlex.join(["--from", str(output), "--force"])
            raise Interrupted(f"{error}; to begin with it, repeat the command with {again}.") from error
    print_plan(plan, metadata, str(output), as_json=as_json, angles=False)


def _load(
    config: str | None, overrides: list[str], given: dict[str, Any], seed: int | None, trust: bool
) -> Config:
    """Load the configuration (or the defaults) with overrides, then options, applied."""
    from diabat.config import make_config
    from diabat.config.loading import apply_overrides, read_document

    config, overrides = config_and_overrides(config, overrides)
    document = (
        apply_overrides({}, overrides) if config is None else read_document(config, overrides, trust=trust)
    )
    section = document.get("anneal") or {}
    if isinstance(section, dict):  # anything else is refused below
        document["anneal"] = section | given
    return make_config(document if seed is None else document | {"seed": seed})


def command(config: Config, output: Path) -> str:
    """The command line that makes this plan, every option written out."""
    from diabat.studies.learned.problems import RANDOM

    section = config.anneal
    options = vars(section) | {"seed": config.seed}
    options["weights"] = section.weights or (1.0,) * len(section.strengths)
    options["wide_weight"] = section.wide_weight or (None if section.wide_fields is None else 1.0)
    words = ["diabat", "anneal", "learn", str(output)]
    for name, value in options.items():
        if value is True:
            words.append(_option(name))
        elif not (value is None or value is False or (section.run is not None and name in RANDOM)):
            texts = [_shown(x) for x in (value if isinstance(value, tuple) else (value,))]
            words += [_option(name), " ".join(texts)]
    return shlex.join(words)


def _option(name: str) -> str:
    return "--from" if name == "start" else f"--{name.replace('_', '-')}"


def _shown(value: Any) -> str:
    """Format a number in its shortest exact form, or return a text."""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


@app.command("show")
def show(
    plan: PlanArgument,
    figure: Annotated[Path | None, typer.Option(help="Draw the angles into this file.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the angles of a plan, its first-order betas, and its errors on held-out instances."""
    with importing():
        from diabat.studies.learned import plot_plan

    chosen, metadata = choose_plan(plan)
    if figure is not None:
        require_writable(figure, "--figure", FIGURES, new=not force)
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
        from diabat.files import create_file, replacing

    chosen, _ = choose_plan(plan)
    h, J = choose_problem(problem, fields, couplings, beta)
    if output is not None:
        require_writable(output, "--output", (".qasm", ".qasm3", ".txt"), new=not force)
    source = to_qasm3(anneal_circuit(chosen, h, J, measure=measure))
    if output is not None:
        with replacing(output) as temporary:
            create_file(temporary, source.encode())
    if as_json:
        print_json(
            {"plan": plan, "layers": chosen.steps, "qubits": len(h), "output": output, "qasm3": source}
        )
    else:
        typer.echo(source if output is None else f"Circuit: {output}", nl=output is not None)
