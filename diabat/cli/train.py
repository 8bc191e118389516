"""``diabat train``: train the model of a configuration."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.cli.arguments import (
    ConfigArgument,
    JsonOption,
    OverridesArgument,
    ProgressOption,
    TrustOption,
    as_overrides,
)
from diabat.cli.evaluate import naming_data
from diabat.cli.failures import Interrupted, importing
from diabat.cli.output import print_json

if TYPE_CHECKING:
    from diabat.config import Config
    from diabat.training import TrainResult

ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the run from its newest checkpoint.")]
OutputOption = Annotated[Path | None, typer.Option(help="Folder of the run; new or empty unless --resume.")]
DataOption = Annotated[Path | None, typer.Option(help="The data file, or the folder that it lies in.")]


def train_model(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    resume: ResumeOption = False,
    output: OutputOption = None,
    data: DataOption = None,
    progress: ProgressOption = True,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model; Ctrl-C saves the state and prints how to continue.

    CONFIG may also be the folder of an earlier run.
    """
    with importing():
        from diabat.config import load_config, to_plain
        from diabat.runs.build import require_same_run, run_training
        from diabat.training import OutputError, TrainingInterrupted

    changes = [*(overrides or []), *as_overrides({"output": output, "task.data": data})]
    with naming_data(data):
        resolved = load_config(config, changes, trust=trust)
    if resume:
        require_same_run(resolved)
    try:
        result = run_training(resolved, resume=resume, progress=progress)
    except (KeyboardInterrupt, TrainingInterrupted) as error:
        options = {"--output": output, "--data": data}
        given = [text for name, path in options.items() if path is not None for text in (name, str(path))]
        given += ["--trust"] if trust else []
        again = shlex.join(["diabat", "train", config, *(overrides or []), *given, "--resume"])
        saved = isinstance(error, TrainingInterrupted) or (resolved.output / "latest.safetensors").exists()
        how = f"The run is saved in '{resolved.output}'; continue with: {again}"
        raise Interrupted(how if saved else "Nothing was saved yet.") from error
    except OutputError as error:
        said = str(error).replace("run_dir:", "output:" if output is None else "--output:")
        said = said.replace("resume=True, or name another folder", "--resume, or name another with --output")
        raise OutputError(said) from error
    if as_json:
        summary = {"task": resolved.task.name, "config": to_plain(resolved)}
        print_json({**vars(result), **summary})
    else:
        _print_summary(resolved, result)


def _print_summary(config: Config, result: TrainResult) -> None:
    from diabat.cli.output import print_table

    backend = f" with {config.sampler.backend}" if config.model.uses_sampler else ""
    rows = [
        ("task", f"{config.task.name}, T = {config.task.window}"),
        ("attention", f"{config.model.attention}{backend}"),
        (f"best validation {result.metric}", f"{result.best_metric:.4f} at step {result.best_step}"),
        ("best validation loss", f"{result.best_loss:.4f} nats"),
        ("trained", f"{result.epochs} epochs, {result.steps} steps, {result.seconds:.1f} s"),
        ("run folder", str(result.run_dir)),
    ]
    if result.dropped:
        left_out = ", ".join(f"{count:,} of {name}" for name, count in result.dropped.items())
        rows.append(("left out without agreed label", left_out))
    print_table("Training finished", ("", ""), rows)
