"""Training of what a configuration describes, and what may change when it is resumed."""

from __future__ import annotations

from typing import Any

from diabat.config import Config, ConfigError, load_config, to_plain
from diabat.runs.build import build_model, build_sampler, build_task, choose_device, use_threads
from diabat.training import TrainResult, train
from diabat.training.folder import CONFIG, FREE_ON_RESUME

_FREE = {("task", "data"), *(("training", name) for name in FREE_ON_RESUME)}
_SECTIONS = ("seed", "task", "model", "sampler", "gradient", "training")


def run_training(config: Config, *, resume: bool = False, progress: bool = True) -> TrainResult:
    """Train what the configuration describes, into ``config.output``.

    Args:
        config: The configuration; it is stored with the run.
        resume: Continue the run in the folder.
        progress: Show a progress bar on standard error.

    Raises:
        ConfigError: If sampler, mode and gradient do not fit together.
        DataError: If the data cannot be found, verified or downloaded.
        TrainingError: As :func:`diabat.training.train`.
    """
    use_threads(config)
    device = choose_device(config)
    backend = build_sampler(config.sampler)  # first: it is quick and may refuse its options
    task = build_task(config)
    model = build_model(config, task, backend).to(device)
    return train(
        model,
        task,
        config.training,
        config.output,
        resume=resume,
        progress=progress,
        extra_metadata=to_plain(config),
    )


def require_same_run(config: Config) -> None:
    """Refuse to resume a run under another configuration; limits and paths may change.

    The training loop itself compares its options (and once more those that depend on each other), the data and the
    shapes of the weights; the sampler and the estimator are known here only.

    Raises:
        ConfigError: Names the key that differs.
    """
    stored = config.output / CONFIG
    if not stored.is_file():
        return  # the training loop says that there is nothing to resume
    before, now = to_plain(load_config(stored, trust=True)), to_plain(config)
    for section in _SECTIONS:
        for key, (was, is_now) in _pairs(before[section], now[section]).items():
            if was != is_now and (section, key) not in _FREE:
                raise ConfigError(
                    f"{section}.{key}".rstrip("."),
                    f"expected {was!r} as in the run in '{config.output}', got {is_now!r}; "
                    "a resumed run keeps its configuration.",
                )


def _pairs(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Values before and now of each key of a section; of a section that is one value, under no key."""
    if not isinstance(old, dict):
        return {"": (old, new)}
    return {key: (old.get(key), new.get(key)) for key in old | new}
