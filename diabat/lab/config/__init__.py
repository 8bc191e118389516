"""Configurations: YAML files with dotted overrides, validated.  What they describe is built in `diabat.lab.runs`."""

from typing import TYPE_CHECKING, Any

from diabat.documents.errors import ConfigError
from diabat.lab.config.loading import (
    find_config,
    load_config,
    make_config,
    shipped_configs,
    to_plain,
    to_yaml,
)

if TYPE_CHECKING:
    from diabat.lab.config.schema import Config, SamplerChoice

__all__ = [
    "Config",
    "ConfigError",
    "SamplerChoice",
    "find_config",
    "load_config",
    "make_config",
    "shipped_configs",
    "to_plain",
    "to_yaml",
]


def __getattr__(name: str) -> Any:
    if name not in ("Config", "SamplerChoice"):
        raise AttributeError(f"module 'diabat.lab.config' has no attribute '{name}'")
    from diabat.lab.config import schema  # which imports torch

    return getattr(schema, name)
