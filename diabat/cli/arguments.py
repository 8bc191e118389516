"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, or the name of a shipped configuration (see 'diabat config list').",
    ),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Dotted overrides, e.g. sampler.backend=dqa seed=1."),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Take what the run folder names even if it is code or an address; see docs/security.md.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only one JSON document on stdout.")]
