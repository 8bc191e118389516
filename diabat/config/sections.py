"""Sections of a configuration whose keys depend on a choice: the task by name, the sampler by backend."""

from __future__ import annotations

import inspect
import json
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, create_model, model_validator

from diabat.checks import ArgumentError, did_you_mean
from diabat.config.errors import shown
from diabat.models import PairModelOptions, TransformerOptions
from diabat.samplers.registry import available_backends, backend_factory
from diabat.tasks import (
    BracketOptions,
    MnliOptions,
    PairFileOptions,
    PairOptions,
    ShakespeareOptions,
    SickOptions,
    SnliOptions,
)

TASKS: dict[str, type] = {
    "brackets": BracketOptions,
    "shakespeare": ShakespeareOptions,
    "sick": SickOptions,
    "snli": SnliOptions,
    "mnli": MnliOptions,
    "pairs": PairFileOptions,
}
PAIR_TASKS = frozenset(name for name, options in TASKS.items() if issubclass(options, PairOptions))
"""Tasks of sentence pairs, whose model is a pair classifier."""

PAIR_MODEL = "pair classifier"
"""Key that marks a model section as that of a pair classifier; the task decides, not the user."""

# JSON mode tells lists from tuples for us; strict mode keeps "3" from becoming 3 and true from becoming 1.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def task_name(value: Any) -> str | None:
    """Name of a task, given as options or as the mapping of a configuration file."""
    if isinstance(value, dict):
        return value.get("name")
    return next((name for name, options in TASKS.items() if isinstance(value, options)), None)


def _known_task(value: Any) -> Any:
    """Refuse a task section without a valid name, before pydantic chooses the options by it."""
    name = task_name(value)
    if isinstance(value, dict) and name not in TASKS:
        if name is None:
            raise ArgumentError("name", f"this key is required; it is one of {', '.join(TASKS)}.")
        hint = did_you_mean(name, TASKS)
        raise ArgumentError("name", f"expected one of {', '.join(TASKS)}, got {shown(name)}.{hint}")
    return value


def _without_name(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # What comes out of here is no JSON any more, in which lists would have passed for tuples.
    return {k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k != "name"}


TaskOptions = Annotated[
    Annotated[BracketOptions, BeforeValidator(_without_name), Tag("brackets")]
    | Annotated[ShakespeareOptions, BeforeValidator(_without_name), Tag("shakespeare")]
    | Annotated[SickOptions, BeforeValidator(_without_name), Tag("sick")]
    | Annotated[SnliOptions, BeforeValidator(_without_name), Tag("snli")]
    | Annotated[MnliOptions, BeforeValidator(_without_name), Tag("mnli")]
    | Annotated[PairFileOptions, BeforeValidator(_without_name), Tag("pairs")],
    Discriminator(lambda value: task_name(value) or "brackets"),
    BeforeValidator(_known_task),
]


def _model_tag(value: Any) -> str:
    marked = isinstance(value, dict) and PAIR_MODEL in value
    return "pairs" if marked or isinstance(value, PairModelOptions) else "transformer"


def _without_mark(value: Any) -> Any:
    return {k: v for k, v in value.items() if k != PAIR_MODEL} if isinstance(value, dict) else value


ModelOptions = Annotated[
    Annotated[TransformerOptions, Tag("transformer")]
    | Annotated[PairModelOptions, BeforeValidator(_without_mark), Tag("pairs")],
    Discriminator(_model_tag),
]


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
        if backend not in available_backends():
            _refuse_backend(backend)
        options = {k: v for k, v in value.items() if k != "backend"}
        checked = options_model(backend).model_validate_json(json.dumps(options))
        return {"backend": backend, **json.loads(checked.model_dump_json())}


def _refuse_backend(backend: Any) -> None:
    """Raise the registry's sentence on an unknown backend, about our key."""
    try:
        backend_factory(str(backend))
    except ArgumentError as error:
        raise ArgumentError("backend", error.reason) from None


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
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotated = parameter.annotation
        kind = Any if annotated is parameter.empty or isinstance(annotated, str) else annotated
        fields[name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    config = ConfigDict(**{**STRICT, "arbitrary_types_allowed": True, "protected_namespaces": ()})
    return create_model(f"{backend}_options", __config__=config, **fields)
