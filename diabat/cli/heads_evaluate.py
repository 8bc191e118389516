"""``diabat heads evaluate``: a decoder with and without calibration or adapters, on the same questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError
from diabat.cli.arguments import JsonOption, ProgressOption
from diabat.cli.failures import Interrupted, importing, naming
from diabat.cli.figures import require_writable
from diabat.cli.output import print_json, print_report

if TYPE_CHECKING:
    from diabat.attention.heads.calibration import Calibration
    from diabat.runs.heads.evaluation.compare import Evaluation
    from diabat.runs.heads.evaluation.harness import HarnessReport
    from diabat.runs.heads.questions.sets import QuestionSet

# Command line options of the library's arguments, for error messages.
_OPTIONS = {
    "model": "MODEL",
    "names": "--data",
    "folder": "--calibration",
    "calibration": "--calibration",
    "adapter": "--adapter",
    "salient": "--calibration",
    "store": "--out",
    "layer": "--layer",
    "head": "--head",
    "sample": "--sample",
    "tasks": "--tasks",
    "limit": "--count",
    "task_folder": "--task-folder",
    "batch_size": "--batch-size",
    "random_groups": "--random-groups",
    "all_heads": "--all-heads",
    **{name: f"--{name}" for name in ("value", "alpha", "beta", "split", "count", "seed", "dtype", "device")},
}

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Folder or name on the Hugging Face hub of a decoder.")
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="NAME",
        help="Questions: a .jsonl file, a template (.yaml or shipped), or a task; may be repeated.",
    ),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        help="gac.json or its folder; that of MODEL if left out, or no calibration if there is none."
    ),
]
AdapterOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--adapter",
        metavar="FOLDER",
        help="LoRA adapter of MODEL (peft) to compare with the model without; may be repeated.",
    ),
]
AlphaOption = Annotated[float | None, typer.Option(help="α in place of that of the calibration.")]
BetaOption = Annotated[float | None, typer.Option(help="β in place of that of the calibration.")]
ValueOption = Annotated[
    str | None,
    typer.Option(
        help="log_odds, option_log_odds, option_log_likelihood, perplexity or f1; that of the data if left out."
    ),
]
AllHeadsOption = Annotated[bool, typer.Option("--all-heads", help="Compare with all heads calibrated.")]
RandomOption = Annotated[
    int,
    typer.Option("--random-groups", min=0, help="Compare with so many random salient groups of equal size."),
]
CountOption = Annotated[int | None, typer.Option(min=1, help="Questions of each data set; all if left out.")]
SplitOption = Annotated[str, typer.Option(help="Split of the data sets, a key of their templates.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of drawn questions and random groups.")]
TasksOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="Tasks of lm-eval, halueval, popqa, or game-lora for all of that paper (extra 'eval').",
    ),
]
TaskFolderOption = Annotated[
    Path | None, typer.Option("--task-folder", help="Folder with lm-eval tasks (YAML) of your own.")
]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Sequences in one forward pass.")]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps ...")]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Folder that keeps finished scores; the same command goes on from it."),
]
FigureOption = Annotated[
    Path | None, typer.Option(help="Write attention maps of one head before and after calibration.")
]
LayerOption = Annotated[
    int | None, typer.Option(min=0, help="Layer of the figure; the first calibrated one.")
]
HeadOption = Annotated[int | None, typer.Option(min=0, help="Head of the figure; the first calibrated one.")]
SampleOption = Annotated[int, typer.Option(min=0, help="Question of the figure, of the first --data.")]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Use what is on the disk; do not ask the hub.")
]


def evaluate_heads(
    model: ModelArgument,
    data: DataOption = None,
    calibration: CalibrationOption = None,
    adapter: AdapterOption = None,
    alpha: AlphaOption = None,
    beta: BetaOption = None,
    value: ValueOption = None,
    all_heads: AllHeadsOption = False,
    random_groups: RandomOption = 0,
    count: CountOption = None,
    split: SplitOption = "test",
    seed: SeedOption = 0,
    tasks: TasksOption = None,
    task_folder: TaskFolderOption = None,
    batch_size: BatchOption = 16,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    out: OutOption = None,
    figure: FigureOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    sample: SampleOption = 0,
    offline: OfflineOption = False,
    progress: ProgressOption = True,
    as_json: JsonOption = False,
) -> None:
    """Measure a decoder as it is, with calibrated attention and with LoRA adapters, on the same questions.

    Reported are accuracy, the value v of GAC, their paired differences with standard errors, and McNemar's exact p;
    with --tasks the scores of lm-eval.
    """
    if not data and not tasks:
        raise ArgumentError("--data", "expected at least one set of questions, or --tasks, got none.")
    if figure is not None:
        require_writable(figure)
        if not data:
            raise ArgumentError("--figure", "expected --data with the question to show, got none.")
    with importing():
        from diabat.huggingface.loading import load_decoder
        from diabat.runs.heads.evaluation.compare import evaluate
        from diabat.runs.heads.evaluation.harness import evaluate_tasks
        from diabat.runs.heads.evaluation.maps import draw_maps
        from diabat.runs.heads.questions.sets import read_question_sets

    found: Evaluation | None = None
    scored: HarnessReport | None = None
    with naming(_OPTIONS), _resumable(out):
        sets: list[QuestionSet] = []
        if data:
            sets = read_question_sets(data, count=count, seed=seed, split=split, local_files_only=offline)
        decoder, tokenizer = load_decoder(model, dtype=dtype, device=device, local_files_only=offline)
        chosen = _calibration(decoder, model, calibration, alpha, beta)
        if figure is not None:
            draw_maps(decoder, tokenizer, sets[0], chosen, figure, layer=layer, head=head, sample=sample)
        if sets:
            with _bar(progress) as advanced:
                found = evaluate(
                    decoder, tokenizer, sets, chosen, name=model, value=value, all_heads=all_heads,
                    random_groups=random_groups, seed=seed, batch_size=batch_size, folder=out, progress=advanced,
                    adapters=adapter or (),
                )  # fmt: skip
        if tasks:
            scored = evaluate_tasks(
                decoder, tokenizer, tasks.split(","), chosen, name=model, folder=task_folder, limit=count,
                seed=seed, batch_size=batch_size, adapters=adapter or (),
            )  # fmt: skip
    reports = {"questions": found, "tasks": scored}
    _keep(reports, out)
    if as_json:
        print_json(
            {key: _plain(report) for key, report in reports.items() if report is not None}
            | {"figure": figure}
        )
        return
    for report in (found, scored):
        if report is not None:
            print_report(report)
            typer.echo()
    if figure is not None:
        typer.echo(f"Figure: {figure}")


def _calibration(
    decoder: Any, model: str, path: Path | None, alpha: float | None, beta: float | None
) -> Calibration | None:
    """The calibration of the file, or of the file beside the model; None if there is none."""
    from diabat.huggingface.gac.config import FILE, read_gac

    if path is None:
        beside = Path(model).expanduser() / FILE
        if not beside.is_file():
            for name, number in (("--alpha", alpha), ("--beta", beta)):
                if number is not None:
                    raise ArgumentError(
                        name, f"expected --calibration, or {FILE} beside the model, got neither."
                    )
            return None
        path = beside
    found = read_gac(decoder, path)
    return replace(
        found,
        alpha=found.alpha if alpha is None else alpha,
        beta=found.beta if beta is None else beta,
    )


@contextmanager
def _resumable(out: Path | None) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        kept = "Nothing was saved; --out FOLDER keeps finished scores."
        raise Interrupted(
            kept if out is None else f"Finished scores are in '{out}'; repeat the command to continue."
        ) from error


@contextmanager
def _bar(wanted: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    from diabat.progress import progress_bar

    with progress_bar(wanted) as bar:
        if bar is None:
            yield None
            return
        tasks: list[Any] = []

        def advanced(what: str, done: int, total: int) -> None:
            tasks[:] = tasks or [bar.add_task("", total=total)]
            bar.update(tasks[0], description=what, completed=done)

        yield advanced


def _keep(reports: dict[str, Any], out: Path | None) -> None:
    """Write the reports beside the scores they were made of."""
    from diabat.files import replace_file

    for key, report in reports.items():
        if out is not None and report is not None:
            out.mkdir(parents=True, exist_ok=True)
            replace_file(out / f"{key}.json", report.to_json().encode())


def _plain(report: Any) -> Any:
    import json

    return json.loads(report.to_json())
