"""``diabat train``: train a model as a configuration says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.cli.arguments import ConfigArgument, JsonOption, OverridesArgument, TrustOption
from diabat.cli.failures import Interrupted, importing
from diabat.cli.output import print_json

if TYPE_CHECKING:
    from diabat.config import Config
    from diabat.training import TrainResult

ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the run from its newest checkpoint.")]
OutputOption = Annotated[Path | None, typer.Option(help="Folder of the run; new or empty unless --resume.")]
DataOption = Annotated[Path | None, typer.Option(help="The data file, or the folder that it lies in.")]
ProgressOption = Annotated[bool, typer.Option("--progress/--no-progress", help="Progress bar on stderr.")]


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
    """Train a model; Ctrl-C saves the state and says how to continue.

    CONFIG may also be the folder of an earlier run.
    """
    with importing():
        from diabat.config import to_plain
        from diabat.runs import run_training
        from diabat.training import OutputError, TrainingInterrupted

    changes = [*(overrides or []), *_as_overrides(output, data)]
    resolved = _load(config, changes, data, trust)
    if resume:
        _require_same_run(resolved)
    try:
        result = run_training(resolved, resume=resume, progress=progress)
    except (KeyboardInterrupt, TrainingInterrupted) as error:
        options = {"--output": output, "--data": data}
        given = [text for name, path in options.items() if path is not None for text in (name, str(path))]
        given += ["--trust"] if trust else []
        again = shlex.join(["diabat", "train", config, *(overrides or []), *given, "--resume"])
        saved = isinstance(error, TrainingInterrupted) or (resolved.output / "checkpoints").exists()
        how = f"The run is saved in '{resolved.output}'; continue with: {again}"
        raise Interrupted(how if saved else "Nothing was saved yet.") from error
    except OutputError as error:
        said = str(error).replace(
            "resume=True, or name another folder", "--resume, or name another with --output"
        )
        raise OutputError(said) from error
    if as_json:
        summary = {"task": resolved.task_name, "config": to_plain(resolved)}
        print_json({**vars(result), **summary})
    else:
        _print_summary(resolved, result)


def _as_overrides(output: Path | None, data: Path | None) -> list[str]:
    # JSON strings are YAML strings: a folder named "1e3" stays one.
    options = {"output": output, "task.data": data}
    return [f"{key}={json.dumps(str(path))}" for key, path in options.items() if path is not None]


def _load(config: str, changes: list[str], data: Path | None, trust: bool) -> Config:
    from diabat.config import ConfigError, load_config

    if data is not None:
        changes, option = changes[:-1], changes[-1]
        name = load_config(config, changes, trust=trust).task_name
        if name == "brackets":
            raise ConfigError("--data", f"the task '{name}' is generated and reads no data, got '{data}'.")
        changes = [*changes, option]
    return load_config(config, changes, trust=trust)


def _require_same_run(config: Config) -> None:
    """Refuse to resume a run under another configuration; limits and paths may change.

    The training loop itself compares its options (and once more those that depend on each other), the data and the
    shapes of the weights; the sampler and the estimator are known here only.
    """
    from diabat.config import ConfigError, load_config, to_plain
    from diabat.training.folder import FREE_ON_RESUME

    free = {("task", "data"), *(("training", name) for name in FREE_ON_RESUME)}
    stored = config.output / "config.json"
    if not stored.is_file():
        return  # the training loop says that there is nothing to resume
    before, now = to_plain(load_config(stored, trust=True)), to_plain(config)
    for section in ("seed", "task", "model", "sampler", "gradient", "training"):
        old, new = before[section], now[section]
        pairs = (
            {"": (old, new)}
            if not isinstance(old, dict)
            else {k: (old.get(k), new.get(k)) for k in old | new}
        )
        for key, (was, is_now) in pairs.items():
            if was != is_now and (section, key) not in free:
                name = f"{section}.{key}".rstrip(".")
                raise ConfigError(
                    name,
                    f"expected {was!r} as in the run in '{config.output}', got {is_now!r}; "
                    "a resumed run keeps its configuration.",
                )


def _print_summary(config: Config, result: TrainResult) -> None:
    from diabat.cli.output import print_table
    from diabat.models import PairModelOptions

    metric = "perplexity" if config.task_name == "shakespeare" else "accuracy"
    model = config.model
    if isinstance(model, PairModelOptions):
        control = "" if model.mode == "h+J" else f", mode {model.mode}"
        kind, asks = f"{model.pooling} pooling{control}", model.asks_sampler
    else:
        kind, asks = model.mode, model.mode != "softmax"
    if asks:
        kind += f" with {config.sampler.backend}"
    rows = [
        ("task", f"{config.task_name}, T = {config.task.window}"),
        ("attention", kind),
        (f"best validation {metric}", f"{result.best_metric:.4f} at step {result.best_step}"),
        ("best validation loss", f"{result.best_loss:.4f} nats"),
        ("trained", f"{result.epochs} epochs, {result.steps} steps, {result.seconds:.1f} s"),
        ("run folder", str(result.run_dir)),
    ]
    if result.dropped:
        left_out = ", ".join(f"{count:,} of {name}" for name, count in result.dropped.items())
        rows.append(("left out without agreed label", left_out))
    print_table("Training finished", ("", ""), rows)
