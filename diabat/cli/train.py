"""``diabat train``: train the model of a configuration."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.cli import arguments
from diabat.cli.failures import Interrupted
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from diabat.config import Config
    from diabat.training import TrainResult

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
    from diabat.config import to_plain
    from diabat.runs.build import require_same_run, run_training
    from diabat.training import OutputError, TrainingInterrupted

    resolved = arguments.load(config, overrides, trust=trust)
    if resume:
        require_same_run(resolved)
    try:
        result = run_training(resolved, resume=resume, progress=progress)
    except (KeyboardInterrupt, TrainingInterrupted) as error:
        words = [*filter(None, [config]), *(overrides or []), *(["--trust"] if trust else [])]
        again = shlex.join(["diabat", "train", *words, "--resume"])
        saved = isinstance(error, TrainingInterrupted) or (resolved.output / "latest.safetensors").exists()
        how = f"The run is saved in '{resolved.output}'; continue with: {again}"
        raise Interrupted(how if saved else "Nothing was saved yet.") from error
    except OutputError as error:
        said = str(error).replace("run_dir:", "output:")
        said = said.replace(
            "resume=True, or name another folder", "--resume, or name another by output=FOLDER"
        )
        raise OutputError(said) from error
    if as_json:
        print_json({**vars(result), "task": resolved.task.name, "config": to_plain(resolved)})
    else:
        _print_summary(resolved, result)


def _print_summary(config: Config, result: TrainResult) -> None:
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
