"""``diabat heads interaction``: couplings of the heads of a decoder, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diabat.cli.arguments import JsonOption
from diabat.cli.failures import importing, naming
from diabat.cli.figures import require_writable
from diabat.cli.heads_analyse import parse_layers
from diabat.cli.output import print_report

# Command line options of the library's arguments, for error messages.
OPTIONS = {
    "name": "MODEL",
    "model": "MODEL",
    "batch_size": "--batch-size",
    "max_length": "--max-length",
    "most": "--batches",
    "count": "--coalitions",
    "biclusters": "--coalitions",
    **{
        name: f"--{name}"
        for name in ("data", "adapter", "layers", "aggregation", "sampler", "dtype", "device", "seed")
    },
}

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Folder of a model, or its name on the Hugging Face Hub.")
]
DataOption = Annotated[
    Path,
    typer.Option(
        metavar="FILE", help='Texts, one JSON object per line: {"text": ...}, optionally with "completion".'
    ),
]
AdapterOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Measure the model with this LoRA adapter of peft.")
]
LayersOption = Annotated[
    str | None, typer.Option(metavar="0,4-7", help="Layers, counted from 0; all if left out.")
]
BatchesOption = Annotated[
    int | None, typer.Option(min=2, help="Measure so many batches; the whole file if left out.")
]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Texts in one pass, which bounds memory.")]
LengthOption = Annotated[int, typer.Option(min=2, help="Cut texts off behind so many tokens.")]
AggregationOption = Annotated[
    str, typer.Option(help="How the tokens make ρ: concatenated, per_token or mean_gradient.")
]
CoalitionsOption = Annotated[
    int | None,
    typer.Option(
        min=2, help="Find so many coalitions by biclustering; if left out, communities by a sampler."
    ),
]
SamplerOption = Annotated[str, typer.Option(help="Backend that finds communities.")]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, ...")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the search for coalitions.")]
FigureOption = Annotated[Path | None, typer.Option(help="Write G of every layer and Γ by layer as a figure.")]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Use local files only.")]
ProgressOption = Annotated[bool, typer.Option("--progress/--no-progress", help="Progress bar on stderr.")]


def measure_heads(
    model: ModelArgument,
    data: DataOption,
    adapter: AdapterOption = None,
    layers: LayersOption = None,
    batches: BatchesOption = None,
    batch_size: BatchSizeOption = 8,
    max_length: LengthOption = 1024,
    aggregation: AggregationOption = "concatenated",
    coalitions: CoalitionsOption = None,
    sampler: SamplerOption = "tempering",
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    figure: FigureOption = None,
    offline: OfflineOption = False,
    progress: ProgressOption = True,
    as_json: JsonOption = False,
) -> None:
    """Measure how the query heads of a model interact: ω, ρ, G and Γ of every layer, and what their outputs share.

    Coalitions are found in every second batch and tested on the others.  Where a line has a completion, only its
    tokens count.
    """
    if figure is not None:
        require_writable(figure)
    chosen = None if layers is None else parse_layers(layers)
    with importing():
        from diabat.huggingface.loading import load_adapter, load_decoder
        from diabat.progress import progress_bar
        from diabat.runs.heads.interaction import measure_interaction
        from diabat.runs.heads.texts import read_texts
        from diabat.studies.head_interaction import plot_interaction

    with naming(OPTIONS):
        with importing():
            decoder, tokenizer = load_decoder(model, dtype=dtype, device=device, local_files_only=offline)
        if adapter is not None:
            decoder = load_adapter(decoder, adapter)
        vocabulary = decoder.get_input_embeddings().weight.shape[0]
        most = None if batches is None else batches * batch_size
        texts = read_texts(data, tokenizer, vocabulary, max_length=max_length, most=most)
        with progress_bar(progress) as bar:
            task = None if bar is None else bar.add_task("batches", total=None)
            report = measure_interaction(
                decoder,
                texts,
                name=model,
                layers=chosen,
                batch_size=batch_size,
                aggregation=aggregation,  # type: ignore[arg-type]  # checked there
                biclusters_of=coalitions,
                backend=sampler,
                seed=seed,
                progress=None
                if bar is None
                else lambda done, all_: bar.update(task, completed=done, total=all_),
            )
    if figure is not None:
        plot_interaction(report, figure)
    if as_json:
        typer.echo(report.to_json())
        return
    print_report(report)
    if figure is not None:
        typer.echo(f"\nFigure: {figure}")
