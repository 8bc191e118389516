"""The section of a sampler, whose keys depend on the backend."""

from __future__ import annotations

import inspect
import json
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model, model_validator

from diabat.checks import ArgumentError
from diabat.config.errors import shown
from diabat.samplers.registry import backend_factory

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
            raise ArgumentError("backend", f"expected the name of a backend, got {shown(backend)}.")
        try:
            model = options_model(backend)
        except ArgumentError as error:  # no backend has this name
            raise ArgumentError("backend", error.reason) from None
        checked = model.model_validate_json(json.dumps({k: v for k, v in value.items() if k != "backend"}))
        return {"backend": backend, **json.loads(checked.model_dump_json())}


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
