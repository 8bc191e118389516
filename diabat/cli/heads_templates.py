"""``diabat heads templates``: the shipped templates of prompts, to read and to edit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diabat.cli.arguments import JsonOption
from diabat.cli.config import described
from diabat.cli.figures import require_writable
from diabat.cli.output import print_json, print_table

NameArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of a shipped template.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write the template to this file, to be edited.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


def show_templates(
    name: NameArgument = None, out: OutOption = None, force: ForceOption = False, as_json: JsonOption = False
) -> None:
    """List the shipped templates, print one, or write one to a file for editing.

    The file serves as --data FILE.yaml of the other commands.
    """
    from diabat.checks import ArgumentError, check_choice
    from diabat.files import replace_file
    from diabat.runs.heads.questions.template import read_template, shipped_templates

    shipped = shipped_templates()
    if name is None:
        if out is not None:
            raise ArgumentError("--out", "expected the name of a template beside it, got none.")
        found = [_row(key, path) for key, path in shipped.items()]
        if as_json:
            print_json(found)
        else:
            columns = ("name", "task", "value", "data set", "what")
            print_table("Templates", columns, (tuple(row.values()) for row in found))
        return
    check_choice("NAME", name, shipped)
    text = shipped[name].read_text(encoding="utf-8")
    if out is not None:
        require_writable(out, "--out", (".yaml", ".yml"), new=not force)
        replace_file(out, text.encode())
    if as_json:
        print_json({**_row(name, shipped[name]), "text": read_template(shipped[name]).text, "written": out})
    elif out is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"Written: {out}")


def _row(name: str, path: Path) -> dict[str, str]:
    from diabat.runs.heads.questions.template import read_template

    template = read_template(path)
    return {
        "name": name,
        "task": template.task or "",
        "value": template.value,
        "dataset": str(template.dataset["path"]),
        "description": described(path)["description"],
    }
