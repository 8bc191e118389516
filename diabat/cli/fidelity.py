"""``diabat fidelity``: backends and gradients against exact ones, on random problems and on trained attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from diabat.cli.arguments import JsonOption, OverridesArgument, TrustOption, config_and_overrides
from diabat.cli.failures import importing
from diabat.cli.figures import require_writable
from diabat.cli.output import print_report

DEFAULT = "fidelity"
ConfigArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="A YAML file, or the name of a shipped configuration; fidelity if left out.",
        show_default=False,
    ),
]
GradientsOption = Annotated[
    bool, typer.Option("--gradients", help="Compare the gradient estimators of the backends instead.")
]
FigureOption = Annotated[
    Path | None,
    typer.Option(help="Write the figure: error, or cosine of the gradients, against coupling strength."),
]
ProgressOption = Annotated[bool, typer.Option("--progress/--no-progress", help="Progress bar on stderr.")]


def compare_backends(
    config: ConfigArgument = None,
    overrides: OverridesArgument = None,
    gradients: GradientsOption = False,
    figure: FigureOption = None,
    progress: ProgressOption = True,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare sampling backends with exact marginals, or their gradients with the exact one.

    The section fidelity names the backends and the random problems; fidelity.checkpoint=RUN_DIR adds the
    fields and couplings of a trained model.
    """
    with importing():
        from diabat.config import load_config
        from diabat.runs import build_sampler, use_threads
        from diabat.runs.ensembles import build_ensembles
        from diabat.studies.fidelity import fidelity_report
        from diabat.studies.gradients import gradient_report

    compare: Any = gradient_report if gradients else fidelity_report
    name, changes = config_and_overrides(config, overrides)
    resolved = load_config(name or DEFAULT, changes, trust=trust)
    options = resolved.fidelity
    use_threads(resolved)
    if figure is not None:
        require_writable(figure)
    backends = {
        label: build_sampler(choice, f"fidelity.backends.{label}")
        for label, choice in options.backends.items()
    }
    report = compare(
        backends,
        build_ensembles(resolved, trust=trust),
        num_reads=options.num_reads,
        seed=resolved.seed,
        progress=progress,
    )
    if figure is not None:
        report.plot(figure)
    print_report(report, figure, as_json=as_json)
