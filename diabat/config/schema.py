"""The whole configuration as one validated value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, Field, model_validator

from diabat.checks import ArgumentError
from diabat.config.errors import dotted
from diabat.config.sections import STRICT, ModelSection, SamplerChoice, TaskSection, options_model
from diabat.config.trust import sampler_sections
from diabat.models import MODELS
from diabat.studies.fidelity import FidelityOptions
from diabat.studies.learned.problems import AnnealOptions
from diabat.tasks import TASKS, ExampleKind
from diabat.training.options import PROTOCOLS, TrainOptions

Gradient = Literal["auto", "exact", "straight_through", "linear_response", "covariance", "adjoint"]
_MOST_THREADS = 1024  # torch would start more of them until memory is full


@dataclasses.dataclass(frozen=True)
class FidelitySection(FidelityOptions):
    """Options of ``diabat fidelity``: random problems, backends, and the problems of a trained model.

    Attributes:
        backends: Backends by the label of their line in the table and the figure.
        checkpoint: Folder of a finished run; its fields and couplings are added to the comparison.
    """

    backends: Annotated[dict[str, SamplerChoice], Field(min_length=1)] = dataclasses.field(
        default_factory=lambda: {"mean_field": SamplerChoice(backend="mean_field")}
    )
    checkpoint: Path | None = None


class Config(BaseModel):
    """A resolved configuration.

    Attributes:
        seed: Seed of the initial weights, the order of the data, dropout and sampling.
        output: Folder of the run.
        threads: CPU threads of torch; null keeps torch's choice.  The models here are so small that one thread
            is fastest, several times faster if the machine is busy.
        device: Device of training and evaluation; ``auto`` takes a CUDA device if there is one.
        task: Options of the task; ``name`` selects it.
        model: Options of the model; ``name`` selects it, by default the first model that supports the task.
        sampler: Backend behind the attention.
        gradient: Estimator of the gradient through the sampler.
        training: Options of the training loop.
        fidelity: Options of the comparison with exact marginals.
        anneal: Options of a learned anneal.
    """

    model_config = STRICT

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    output: Path = Path("runs/default")
    threads: Annotated[int, Field(ge=1, le=_MOST_THREADS)] | None = 1
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    task: TaskSection = TASKS["brackets"]()
    model: ModelSection = MODELS["transformer"]()
    sampler: SamplerChoice = SamplerChoice()
    gradient: Gradient = "auto"
    training: TrainOptions = TrainOptions()
    fidelity: FidelitySection = FidelitySection()
    anneal: AnnealOptions = AnnealOptions()

    @model_validator(mode="after")
    def _fitting_model(self) -> Config:
        fitting = _models_for(self.task.examples)
        if self.model.name not in fitting:
            raise ArgumentError(
                "model.name",
                f"expected {' or '.join(fitting)} for the task '{self.task.name}', got '{self.model.name}'.",
            )
        self.task.check_model(self.model)
        return self


_SECTIONS: dict[str, Any] = {
    name: field.default
    for name, field in Config.model_fields.items()
    if dataclasses.is_dataclass(field.default)
}
"""Sections whose keys are the fields of a dataclass, with their defaults."""


def with_defaults(document: dict[str, Any]) -> dict[str, Any]:
    """Fill in the defaults of the task: model, sampler and published training; and the seed of the training."""
    # A section whose keys are all commented out is read as null and means its defaults; a backend that an
    # override sets to null is left out.
    filled = {k: v for k, v in document.items() if v is not None or k not in (*_SECTIONS, "sampler")}
    fidelity = filled.get("fidelity")
    if isinstance(fidelity, dict) and isinstance(named := fidelity.get("backends"), dict):
        filled["fidelity"] = {**fidelity, "backends": {k: v for k, v in named.items() if v is not None}}
    task, model = chosen(filled)
    if task not in TASKS:  # which is refused; what the model section should hold is not known then
        filled.pop("model", None)
        return filled
    defaults: dict[str, Mapping[str, Any]] = {"model": {"name": model}}
    sampler, protocol = filled.get("sampler", {}), PROTOCOLS.get(task, PROTOCOLS.get(model))
    if isinstance(sampler, dict) and "backend" not in sampler and model in MODELS:
        defaults["sampler"] = MODELS[model].sampler
    if protocol is not None:
        seed = {"seed": filled["seed"]} if "seed" in filled else {}
        defaults["training"] = dataclasses.asdict(protocol) | seed
    for name, values in defaults.items():
        if isinstance(given := filled.get(name, {}), dict):
            filled[name] = {**values, **given}
    return filled


def chosen(document: dict[str, Any]) -> tuple[str, str]:
    """Names of task and model of a document, or their defaults; one that is no string, as text, is refused later."""
    section, model = document.get("task"), document.get("model")
    task = str(section.get("name")) if isinstance(section, dict) else Config.model_fields["task"].default.name
    if isinstance(model, dict) and "name" in model:
        return task, str(model["name"])
    return task, _models_for(TASKS[task].examples if task in TASKS else "sequences")[0]


def _models_for(examples: ExampleKind) -> list[str]:
    """Names of the models that take these examples; the first is the default."""
    return [name for name, options in MODELS.items() if options.examples == examples]


def valid_keys(document: dict[str, Any]) -> list[str]:
    """All dotted keys that a document with these choices of task, model and backends may have."""
    task, model = chosen(document)
    named = {"model": MODELS.get(model, MODELS["transformer"]), "task": TASKS.get(task, TASKS["brackets"])}
    keys = [*Config.model_fields]
    for section, options in (_SECTIONS | named).items():
        hints = get_type_hints(options if isinstance(options, type) else type(options))
        for name in (field.name for field in dataclasses.fields(options)):
            parts = filter(dataclasses.is_dataclass, get_args(hints[name]))  # e.g. CouplingInit | None
            inner = [f"{name}.{field.name}" for part in parts for field in dataclasses.fields(part)]
            keys += [f"{section}.{key}" for key in (name, *inner)]
    for place, choice in ({("sampler",): None} | sampler_sections(document)).items():
        backend = str(choice.get("backend", "exact")) if isinstance(choice, dict) else "exact"
        with suppress(ValueError):  # an unknown backend has no options to suggest
            keys += [f"{dotted(place)}.{name}" for name in ("backend", *options_model(backend).model_fields)]
    return keys
