"""``diabat train``, ``evaluate`` and ``fidelity``: what a configuration describes, and what became of it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.cli import arguments
from diabat.cli.output import print_json, print_report, print_table, require_writable, say

if TYPE_CHECKING:
    from diabat.lab.config import Config
    from diabat.lab.runs import Evaluation
    from diabat.lab.training import TrainResult

ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the run from its newest checkpoint.")]


def train_model(
    config: arguments.ConfigArgument,
    overrides: arguments.OverridesArgument = None,
    resume: ResumeOption = False,
    progress: arguments.ProgressOption = True,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Train a model; Ctrl-C saves the state and prints how to continue.

    The run is written to the folder output, which is new or empty unless --resume.
    """
    resolved = arguments.load(config, overrides, trust=trust)
    from diabat.lab.config import to_plain
    from diabat.lab.runs.build import require_same_run, run_training
    from diabat.lab.training import OutputError, TrainingInterrupted

    if resume:
        require_same_run(resolved)
    try:
        result = run_training(resolved, resume=resume, progress=progress)
    except (KeyboardInterrupt, TrainingInterrupted) as error:
        words = [*filter(None, [config]), *(overrides or []), *(["--trust"] if trust else [])]
        again = shlex.join(["diabat", "train", *words, "--resume"])
        saved = isinstance(error, TrainingInterrupted) or (resolved.output / "latest.safetensors").exists()
        how = f"The run is saved in '{resolved.output}'; continue with: {again}"
        raise KeyboardInterrupt(how if saved else "Nothing was saved yet.") from error
    except OutputError as error:
        told = str(error).replace("run_dir:", "output:").replace("resume=True", "--resume")
        raise OutputError(told.replace("another folder", "another by output=FOLDER")) from error
    if as_json:
        print_json({**vars(result), "task": resolved.task.name, "config": to_plain(resolved)})
    else:
        _print_training(resolved, result)
        if result.sampler:
            say(_sampled_by(result.sampler))


def _print_training(config: Config, result: TrainResult) -> None:
    backend = f" with {config.sampler.backend}" if config.model.uses_sampler else ""
    rows = [
        ("task", config.task.name + (f", T = {window}" if (window := config.task.window) else "")),
        ("attention", f"{config.model.described}{backend}"),
        (f"best validation {result.metric}", f"{result.best_metric:.4f} at step {result.best_step}"),
        ("best validation loss", f"{result.best_loss:.4f} nats"),
        ("trained", f"{result.epochs} epochs, {result.steps} steps, {result.seconds:.1f} s"),
        ("run folder", str(result.run_dir)),
    ]
    print_table("Training finished", ("", ""), rows)


def _sampled_by(facts: Mapping[str, Any]) -> str:
    """One sentence on the sampler of the last validation."""
    from diabat.samplers.diagnostics import LAWS

    engine = f" (engine {facts['engine']})" if facts["engine"] else ""
    reads = f"{facts['num_reads']} reads" if facts["num_reads"] else "no reads"
    doubtful = f"; doubtful: {', '.join(facts['doubtful'])}" if facts["doubtful"] else ""
    return (
        f"Sampled by {facts['backend']}{engine}: {LAWS[facts['law']]}, {reads}, gradient {facts['gradient']}, largest "
        f"|h| {facts['largest_field']:.3g} and |J| {facts['largest_coupling']:.3g}{doubtful}."
    )


SplitOption = Annotated[
    str | None, typer.Option(help="train, validation or test; default test if there is one.")
]


def evaluate_model(
    run: arguments.RunArgument,
    overrides: arguments.OverridesArgument = None,
    split: SplitOption = None,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Evaluate the best weights of a run, or the weights of a checkpoint; task.data=PATH if its data have moved."""
    from diabat.lab.config.keys import check_keys
    from diabat.lab.config.loading import find_run, read_config

    check_keys(read_config(find_run(run), overrides or (), trust=trust))  # before torch is imported
    from diabat.lab.runs import evaluate_run, load_run

    loaded = load_run(run, overrides or (), trust=trust)
    result = evaluate_run(loaded, split or ("test" if "test" in loaded.task.sets else "validation"))
    if as_json:
        print_json(result)
    else:
        _print_evaluation(result)


def _print_evaluation(result: Evaluation) -> None:
    from diabat.report import formatted, share

    value = share(result.value, result.count) if result.metric == "accuracy" else f"{result.value:.4f}"
    rows = [(result.metric, value), ("loss", f"{formatted(result.loss, '.4f')} nats")]
    rows += [(name, formatted(part, ".4f")) for name, part in result.parts.items()]
    rows.append(("predictions", f"{result.count:,}"))
    print_table(f"{result.task}, {result.split} set", ("", ""), rows)


ConfigOrProblem = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG|PROBLEM",
        help="A configuration as of 'diabat train', or a problem as of 'diabat sample'.",
        show_default=False,
    ),
]


def compare_backends(
    config: ConfigOrProblem = None,
    overrides: arguments.OverridesArgument = None,
    figure: arguments.FigureOption = None,
    progress: arguments.ProgressOption = True,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Compare sampling backends with exact marginals.

    The section fidelity names the backends and the random problems; fidelity.checkpoint=RUN adds the fields and
    couplings of a trained model.  A PROBLEM takes the place of the random ones, as fidelity.problem=FILE does.  It is
    a file as of 'diabat sample', or - for standard input.  Any other file is a CONFIG.
    """
    from diabat.lab.config import load_config

    name, changes = arguments.config_and_overrides(config, overrides)
    if name is not None and (name == "-" or os.path.isfile(name)):
        from diabat.ising.problem_files import is_problem  # with torch

        if is_problem(name):
            name, changes = None, [f"fidelity.problem={json.dumps(name)}", *changes]
    resolved = load_config(name or "fidelity", changes, trust=trust)
    require_writable(figure)
    from diabat.documents.errors import of_section
    from diabat.lab.runs.studies import compared
    from diabat.lab.studies.fidelity import fidelity_report

    what = compared(resolved, trust=trust)
    place = "ensembles" if resolved.fidelity.problem is None else "problem"
    with of_section("fidelity", {"ensembles": f"fidelity.{place}"}):
        report = fidelity_report(**what, progress=progress)
    if figure is not None:
        report.plot(figure)
    print_report(report, figure, as_json=as_json)
