"""Configurations: YAML files with dotted overrides, validated; and the objects that they describe."""

from diabat.config.build import build_model, build_sampler, build_task, run_training, use_threads
from diabat.config.errors import ConfigError
from diabat.config.loading import find_config, load_config, make_config, shipped_configs, to_plain, to_yaml
from diabat.config.schema import Config, FidelityOptions
from diabat.config.sections import SamplerChoice

__all__ = [
    "Config",
    "ConfigError",
    "FidelityOptions",
    "SamplerChoice",
    "build_model",
    "build_sampler",
    "build_task",
    "find_config",
    "load_config",
    "make_config",
    "run_training",
    "shipped_configs",
    "to_plain",
    "to_yaml",
    "use_threads",
]
