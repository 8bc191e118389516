"""The whole configuration as one validated value."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_serializer, model_validator

from diabat.attention.coupled_heads import MODES
from diabat.checks import ArgumentError, check_choice
from diabat.config.sections import (
    PAIR_MODEL,
    PAIR_TASKS,
    STRICT,
    TASKS,
    ModelOptions,
    SamplerChoice,
    TaskOptions,
    options_model,
    task_name,
)
from diabat.models import PairModelOptions, TransformerOptions
from diabat.studies.fidelity.ensembles import DEFAULT_STRENGTHS
from diabat.tasks import BracketOptions
from diabat.training.options import PAIR_PROTOCOL, PROTOCOLS, TrainOptions

Gradient = Literal["auto", "exact", "straight_through", "linear_response", "covariance", "adjoint"]
Ensemble = Literal["sk", "ferromagnet"]
_SECTIONS = ("task", "model", "sampler", "training", "fidelity")
_PAPER_MEAN_FIELD = {"damping": 0.7, "max_iterations": 25, "tolerance": 1e-4}
"""Mean field as in the paper on sentence pairs (arXiv:2603.18761, sec. 7.3)."""
_MOST_THREADS = 1024
"""Beyond what machines have, torch starts them one by one until memory is full."""
Count = Annotated[int, Field(ge=1)]


class FidelityOptions(BaseModel):
    """What ``diabat fidelity`` compares.

    Attributes:
        backends: Backends by the label of their line in the table and the figure.
        ensembles: Families of random problems.
        strengths: Coupling strengths, dimensionless (divided by temperature).
        sizes: Numbers n of spins.
        instances: Different couplings per strength and size.
        queries: Different fields per instance.
        num_reads: Reads per problem of backends that sample.
        checkpoint: Folder of a finished run, whose fields and couplings are compared as well.
    """

    model_config = STRICT

    backends: Annotated[dict[str, SamplerChoice], Field(min_length=1)] = Field(
        default_factory=lambda: {"mean_field": SamplerChoice(backend="mean_field")}
    )
    ensembles: tuple[Ensemble, ...] = ("sk", "ferromagnet")
    strengths: tuple[Annotated[float, Field(ge=0)], ...] = DEFAULT_STRENGTHS
    sizes: tuple[Count, ...] = (8,)
    instances: Count = 8
    queries: Count = 4
    num_reads: Count = 1000
    checkpoint: Path | None = None


class Config(BaseModel):
    """A resolved configuration.

    Attributes:
        seed: Seed of the initial weights, the order of the data, dropout and sampling.
        output: Folder of the run.
        threads: CPU threads of torch; null leaves torch's own choice.  The models here are so small that one
            is fastest, several times so when the machine has other work.
        device: Where the model is trained and evaluated; ``auto`` takes a CUDA device if there is one.
        task: Options of the task; its type says which.
        model: Options of the transformer, or of the pair classifier if the task has sentence pairs.
        sampler: Backend behind the attention.
        gradient: Estimator of the gradient through the sampler.
        training: Options of the training loop.
        fidelity: Options of the comparison with exact marginals.
    """

    model_config = STRICT

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    output: Path = Path("runs/default")
    threads: Annotated[int, Field(ge=1, le=_MOST_THREADS)] | None = 1
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    task: TaskOptions = BracketOptions()
    model: ModelOptions = TransformerOptions()
    sampler: SamplerChoice = SamplerChoice()
    gradient: Gradient = "auto"
    training: TrainOptions = TrainOptions()
    fidelity: FidelityOptions = FidelityOptions()

    @property
    def task_name(self) -> str:
        """Name of the task."""
        return str(task_name(self.task))

    @model_validator(mode="after")
    def _known_mode(self) -> Config:
        pairs = isinstance(self.model, PairModelOptions)
        if pairs != (self.task_name in PAIR_TASKS):
            kind = "a transformer" if pairs else "a pair classifier"
            raise ArgumentError("model", f"expected the options of {kind} for the task '{self.task_name}'.")
        if isinstance(self.model, PairModelOptions):
            return self
        check_choice("model.mode", self.model.mode, MODES)
        return self

    @field_serializer("task")
    def _named_task(self, task: Any) -> dict[str, Any]:
        return {"name": task_name(task), **dataclasses.asdict(task)}


def with_defaults(document: dict[str, Any]) -> dict[str, Any]:
    """Fill what the training section leaves out: the published values of the task, the seed of the run."""
    # A section whose keys are all commented out is read as null and means its defaults; a backend that an
    # override sets to null is left out.
    filled = {k: v for k, v in document.items() if v is not None or k not in _SECTIONS}
    if isinstance(fidelity := filled.get("fidelity"), dict) and isinstance(
        named := fidelity.get("backends"), dict
    ):
        filled["fidelity"] = {**fidelity, "backends": {k: v for k, v in named.items() if v is not None}}
    training = filled.get("training", {})
    name = str(task_name(filled.get("task", Config.model_fields["task"].default)))
    protocol = PROTOCOLS.get(name)
    if name not in TASKS:  # which is refused; what the model section should hold is not known then
        filled.pop("model", None)
    if name in PAIR_TASKS:
        protocol = PAIR_PROTOCOL
        if isinstance(model := filled.get("model", {}), dict):
            filled["model"] = {**model, PAIR_MODEL: True}
        sampler = filled.get("sampler", {})
        if isinstance(sampler, dict) and "backend" not in sampler:
            filled["sampler"] = {"backend": "mean_field", **_PAPER_MEAN_FIELD, **sampler}
    if protocol is None or not isinstance(training, dict):
        return filled
    defaults = dataclasses.asdict(protocol) | ({"seed": filled["seed"]} if "seed" in filled else {})
    return {**filled, "training": defaults | training}


def valid_keys(document: dict[str, Any]) -> list[str]:
    """All dotted keys that a document with these choices of task and backends may have."""
    keys = [name for name in Config.model_fields if name not in ("task", "fidelity")]
    name = task_name(document.get("task"))
    sections: dict[str, Any] = {"model": TransformerOptions, "training": TrainOptions}
    sections["task"] = TASKS.get(str(name), BracketOptions)
    if name in PAIR_TASKS:
        sections["model"] = PairModelOptions
    for section, options in sections.items():
        keys += [f"{section}.{field.name}" for field in dataclasses.fields(options)]
    keys += [
        "task",
        "task.name",
        "fidelity",
        *(f"fidelity.{field}" for field in FidelityOptions.model_fields),
    ]
    fidelity = document.get("fidelity")
    labelled = fidelity.get("backends") if isinstance(fidelity, dict) else None
    choices = {"sampler": document.get("sampler")}
    choices |= (
        {f"fidelity.backends.{k}": v for k, v in labelled.items()} if isinstance(labelled, dict) else {}
    )
    for prefix, choice in choices.items():
        keys += [f"{prefix}.backend", *(f"{prefix}.{option}" for option in _option_names(choice))]
    return keys


def _option_names(choice: Any) -> list[str]:
    backend = choice.get("backend", "exact") if isinstance(choice, dict) else "exact"
    try:
        return list(options_model(str(backend)).model_fields)
    except ValueError:  # an unknown backend has no options to suggest
        return []
