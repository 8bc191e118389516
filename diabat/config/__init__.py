"""Configurations: YAML files with dotted overrides, validated.  What they describe is built in `diabat.runs`."""

from diabat.config.errors import ConfigError
from diabat.config.loading import find_config, load_config, make_config, shipped_configs, to_plain, to_yaml
from diabat.config.schema import Config
from diabat.config.sections import SamplerChoice

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
