"""``diabat config show`` and ``diabat config list``."""

from __future__ import annotations

import typer

from diabat.cli.arguments import ConfigArgument, JsonOption, OverridesArgument
from diabat.cli.output import print_json
from diabat.cli.shipped import print_shipped

app = typer.Typer(help="Look at configurations.", no_args_is_help=True, rich_markup_mode=None)


@app.command("show")
def show_config(
    config: ConfigArgument, overrides: OverridesArgument = None, as_json: JsonOption = False
) -> None:
    """Print the resolved configuration: file, overrides and every default."""
    from diabat.config import load_config, to_plain, to_yaml

    resolved = load_config(config, overrides or (), trust=True)  # which builds nothing
    if as_json:
        print_json(to_plain(resolved))
    else:
        typer.echo(to_yaml(resolved), nl=False)


@app.command("list")
def list_configs(as_json: JsonOption = False) -> None:
    """List the configurations shipped with diabat: what each is, and how long it takes on one core."""
    from diabat.config import shipped_configs

    print_shipped("Configurations", shipped_configs(), as_json)
