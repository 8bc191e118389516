"""The whole configuration as one validated value."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, create_model, model_validator
from pydantic_core.core_schema import CoreSchema, tagged_union_schema

from diabat.checks import ArgumentError, check_count
from diabat.documents.errors import shown
from diabat.lab.config.keys import DEFAULT_TASK, chosen
from diabat.lab.models import MODELS, ModelOptions
from diabat.lab.studies.ensembles import DEFAULT_STRENGTHS, TOKEN_WEIGHTS, Ensemble, ferromagnet, sk, tokens
from diabat.lab.studies.learned.problems import AnnealOptions
from diabat.lab.tasks import TASKS, TaskOptions
from diabat.lab.training.options import PROTOCOLS, TrainOptions
from diabat.samplers.capabilities import Estimator
from diabat.samplers.registry import backend_factory

Gradient = Literal["auto", Estimator]
_MOST_THREADS = 1024  # torch would start more of them until memory is full


# JSON mode accepts lists as tuples; strict mode refuses to convert "3" to 3 and true to 1.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SamplerChoice(BaseModel):
    """A backend and its options, which are the parameters of the backend's constructor.

    Options are checked against the constructor's signature and types here; their values are checked by the
    backend itself when it is built.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    backend: str = "exact"

    @property
    def options(self) -> dict[str, Any]:
        """The options, with the constructor's defaults for those that the file leaves out."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="before")
    @classmethod
    def _check_options(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        backend = value.get("backend", "exact")
        if not isinstance(backend, str):
            raise ArgumentError("backend", "the name of a backend", shown(backend))
        try:
            model = options_model(backend)
        except ArgumentError as error:  # no backend has this name
            raise ArgumentError("backend", error.reason) from None
        checked = model.model_validate_json(json.dumps({k: v for k, v in value.items() if k != "backend"}))
        return {"backend": backend, **checked.model_dump(mode="json")}


@lru_cache(maxsize=64)
def options_model(backend: str) -> type[BaseModel]:
    """Pydantic model of the options of a backend, from the signature of its constructor."""
    factory = backend_factory(backend)
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError:  # a third-party annotation that only type checkers can resolve
        signature = inspect.signature(factory)
    fields: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            annotated, default = parameter.annotation, parameter.default
            kind = Any if annotated is parameter.empty or isinstance(annotated, str) else annotated
            fields[name] = (kind, ... if default is parameter.empty else default)
    config = ConfigDict(**{**STRICT, "arbitrary_types_allowed": True, "protected_namespaces": ()})
    return create_model(f"{backend}_options", __config__=config, **fields)


class _ByName:
    """Annotation of a section whose key ``name`` chooses among ``options``, dataclasses by the field ``name``."""

    def __init__(self, options: Mapping[str, type]) -> None:
        self.options = options

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {name: handler.generate_schema(options) for name, options in self.options.items()}
        return tagged_union_schema(choices, discriminator="name")


@dataclasses.dataclass(frozen=True)
class FidelityOptions:
    """Options of ``diabat fidelity``: random problems, reads, backends, and the problems of a trained model.

    Attributes:
        ensembles: Families of random problems.
        strengths: Coupling strengths g of ``sk`` and ``ferromagnet``, dimensionless (divided by temperature).
        token_weights: Value weights of ``tokens``, in units of those of a new NeuroGame layer.
        sizes: Numbers n of spins.
        instances: Different couplings per strength and size.
        queries: Different fields per instance; every one of ``tokens`` also has a J of its own.
        num_reads: Reads per problem of backends that sample.
        backends: Backends by the label of their line in the table and the figure.
        problem: File of one problem, as of ``diabat sample``, in place of the random ones.
        beta: Inverse temperature that is folded into this problem; None takes the one of a YAML file, or 1.
        checkpoint: Folder of a finished run; its fields and couplings are added to the comparison.
    """

    ensembles: tuple[Literal["sk", "ferromagnet", "tokens"], ...] = ("sk", "ferromagnet")
    strengths: tuple[float, ...] = DEFAULT_STRENGTHS
    token_weights: tuple[float, ...] = TOKEN_WEIGHTS
    sizes: tuple[int, ...] = (8,)
    instances: int = 8
    queries: int = 4
    num_reads: int = 1000
    backends: Annotated[dict[str, SamplerChoice], Field(min_length=1)] = dataclasses.field(
        default_factory=lambda: {"mean_field": SamplerChoice(backend="mean_field")}
    )
    problem: Path | None = None
    beta: float | None = None
    checkpoint: Path | None = None

    def __post_init__(self) -> None:
        for size in self.sizes:
            check_count("sizes", size)
        for name in ("instances", "queries", "num_reads"):
            check_count(name, getattr(self, name))
        if self.beta is not None and self.problem is None:
            raise ArgumentError("beta", f"must be combined with problem, got {self.beta:g} without it.")

    def problems(self, seed: int) -> list[Ensemble]:
        """The random ensembles, named by their size if there are several sizes."""
        drawn, count = list[Ensemble](), self.instances * self.queries
        families: dict[str, Callable[..., list[Ensemble]]] = {
            "sk": partial(sk, self.strengths, instances=self.instances, queries=self.queries),
            "ferromagnet": partial(ferromagnet, self.strengths, queries=count),
            "tokens": partial(tokens, self.token_weights, instances=count),
        }
        for n, family in itertools.product(self.sizes, self.ensembles):
            size = f" n={n}" * (len(self.sizes) > 1)
            of_size = families[family](num_spins=n, seed=seed)
            drawn += [dataclasses.replace(one, name=f"{one.name}{size}") for one in of_size]
        return drawn


class Config(BaseModel):
    """A resolved configuration.

    Attributes:
        seed: Seed of the initial weights, the order of the data, dropout and sampling.
        output: Folder of the run.
        threads: CPU threads of torch; null keeps torch's choice.  The models here are so small that one thread
            is fastest, several times faster if the machine is busy.
        device: Device of training and evaluation; ``auto`` takes a CUDA device if there is one.
        task: Options of the task; ``name`` selects it.
        model: Options of the model; ``name`` selects it.
        sampler: Backend behind the attention.
        gradient: Estimator of the gradient through the sampler.
        training: Options of the training loop.
        fidelity: Options of the comparison with exact marginals.
        anneal: Options of a learned anneal.
        resolved: In the file of a run: what options that were left to it became, and the version of diabat; not read.
    """

    model_config = STRICT

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    output: Path = Path("runs/default")
    threads: Annotated[int, Field(ge=1, le=_MOST_THREADS)] | None = 1
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    task: Annotated[TaskOptions, _ByName(TASKS)] = TASKS[DEFAULT_TASK]()
    model: Annotated[ModelOptions, _ByName(MODELS)] = MODELS["transformer"]()
    sampler: SamplerChoice = SamplerChoice()
    gradient: Gradient = "auto"
    training: TrainOptions = TrainOptions()
    fidelity: FidelityOptions = FidelityOptions()
    anneal: AnnealOptions = AnnealOptions()
    resolved: Annotated[dict[str, Any], Field(exclude=True)] = {}

    @model_validator(mode="after")
    def _fitting_model(self) -> Config:
        self.task.check_model(self.model)
        return self


def with_defaults(document: dict[str, Any]) -> dict[str, Any]:
    """Fill in the defaults: the model, the published training of the task, and the seed of the training."""
    # A section whose keys are all commented out is read as null and means its defaults; a backend that an
    # override sets to null is left out.
    plain = [k for k, field in Config.model_fields.items() if isinstance(field.default, int | str | Path)]
    filled = {k: v for k, v in document.items() if v is not None or k in plain}
    fidelity = filled.get("fidelity")
    if isinstance(fidelity, dict) and isinstance(named := fidelity.get("backends"), dict):
        filled["fidelity"] = {**fidelity, "backends": {k: v for k, v in named.items() if v is not None}}
    task, model = chosen(filled).values()
    defaults: dict[str, Mapping[str, Any]] = {"model": {"name": model}}
    seed = {"seed": filled["seed"]} if "seed" in filled else {}
    defaults["training"] = dataclasses.asdict(PROTOCOLS.get(task, TrainOptions())) | seed
    for name, values in defaults.items():
        if isinstance(section := filled.get(name, {}), dict):
            filled[name] = {**values, **section}
    return filled
