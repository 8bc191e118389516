"""``diabat config show`` and ``diabat config list``."""

from __future__ import annotations

from pathlib import Path

import typer

from diabat.cli.arguments import ConfigArgument, JsonOption, OverridesArgument, load
from diabat.cli.output import print_json, print_table


def show_config(
    config: ConfigArgument = None, overrides: OverridesArgument = None, as_json: JsonOption = False
) -> None:
    """Print the resolved configuration: file, overrides and every default."""
    from diabat.config import to_plain, to_yaml

    resolved = load(config, overrides, trust=True)  # which builds nothing
    if as_json:
        print_json(to_plain(resolved))
    else:
        typer.echo(to_yaml(resolved), nl=False)


def list_configs(as_json: JsonOption = False) -> None:
    """List the configurations shipped with diabat, with a description and the time on one core."""
    from diabat.config import shipped_configs

    found = [{"name": name, **described(path)} for name, path in shipped_configs().items()]
    if as_json:
        print_json(found)
    else:
        columns = ("name", "what", "time on one core")
        print_table("Configurations", columns, [tuple(row.values()) for row in found])


def described(path: Path) -> dict[str, str]:
    """Description and expected time: the first line of the comment at the head, and its line ``Time: ...``."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    times = [line.removeprefix("Time:").strip() for line in lines if line.startswith("Time:")]
    return {"description": lines[0] if lines else "", "time": times[0] if times else ""}
