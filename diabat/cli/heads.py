"""``diabat heads``: games on the attention heads of decoders, and their calibration."""

from __future__ import annotations

import typer

from diabat.cli import heads_analyse, heads_calibrate

app = typer.Typer(
    help="Games on the attention heads of decoders, and their calibration.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("analyse")(heads_analyse.analyse_heads)
app.command("calibrate")(heads_calibrate.calibrate_heads)
