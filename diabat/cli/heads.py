"""``diabat heads``: games on the attention heads of decoders, and their calibration."""

from __future__ import annotations

import typer

from diabat.cli import (
    heads_analyse,
    heads_calibrate,
    heads_evaluate,
    heads_interaction,
    heads_templates,
    heads_train,
)

app = typer.Typer(
    help="Games on the attention heads of decoders, and their calibration.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("analyse")(heads_analyse.analyse_heads)
app.command("calibrate")(heads_calibrate.calibrate_heads)
app.command("evaluate")(heads_evaluate.evaluate_heads)
app.command("interaction")(heads_interaction.measure_heads)
app.command("templates")(heads_templates.show_templates)
app.command("train")(heads_train.train_heads)
