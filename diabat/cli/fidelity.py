"""``diabat fidelity``: backends against exact marginals."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from diabat.cli import arguments
from diabat.cli.output import print_report, require_writable

ConfigOrProblem = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG|PROBLEM",
        help="A configuration as of 'diabat train', or a problem as of 'diabat sample'.",
        show_default=False,
    ),
]


def compare_backends(
    config: ConfigOrProblem = None,
    overrides: arguments.OverridesArgument = None,
    figure: arguments.FigureOption = None,
    progress: arguments.ProgressOption = True,
    trust: arguments.TrustOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Compare sampling backends with exact marginals.

    The section fidelity names the backends and the random problems; fidelity.checkpoint=RUN adds the fields and
    couplings of a trained model.  A PROBLEM takes the place of the random ones, as fidelity.problem=FILE does: a file
    of dimod JSON, of COO text or of YAML with the key fields, or - for standard input; another file is a CONFIG.
    """
    from diabat.config import load_config
    from diabat.problem_files import is_problem

    name, changes = arguments.config_and_overrides(config, overrides)
    if name is not None and is_problem(name):
        name, changes = None, [f"fidelity.problem={json.dumps(name)}", *changes]
    resolved = load_config(name or "fidelity", changes, trust=trust)
    require_writable(figure)
    from diabat.runs import studies

    report = studies.fidelity(resolved, progress=progress, trust=trust)
    if figure is not None:
        report.plot(figure)
    print_report(report, figure, as_json=as_json)
