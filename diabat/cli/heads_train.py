"""``diabat heads train``: fine-tune a decoder with losses on its heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diabat.cli.arguments import JsonOption, OverridesArgument, ProgressOption, as_overrides
from diabat.cli.failures import importing
from diabat.cli.output import print_json

TrainingArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="A YAML file, or the name of a shipped training: game-lora, plain-lora."
    ),
]
OutputOption = Annotated[Path | None, typer.Option(help="Folder of the run; new or empty unless --resume.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the run from its newest checkpoint.")]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Use models on the disk; do not ask the hub.")]


def train_heads(
    training: TrainingArgument,
    overrides: OverridesArgument = None,
    output: OutputOption = None,
    resume: ResumeOption = False,
    offline: OfflineOption = False,
    progress: ProgressOption = True,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune a decoder by LoRA with GAME-LoRA: log-det barrier, cross-head Barlow Twins, Nash weights.

    Saves an ordinary adapter of peft.  Baselines and ablations are overrides, e.g. game.losses=[].
    """
    with importing():
        from diabat.config.game import load_game_config
        from diabat.runs.heads.training import train_heads as train

    resolved = load_game_config(training, [*(overrides or []), *as_overrides({"output": output})])
    found = train(resolved, resume=resume, local_files_only=offline, progress=progress and not as_json)
    if as_json:
        print_json(found)
    else:
        values = ", ".join(
            f"{key.removeprefix('game/')} {found[key]:.4g}" for key in found if key[:5] in ("loss", "game/")
        )
        typer.echo(f"Adapter: {found['adapter']}\n{found['steps']} steps; {values}")
