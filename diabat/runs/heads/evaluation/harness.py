"""Run tasks of lm-eval (EleutherAI's evaluation harness) with and without calibration, and with adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diabat.attention.heads.calibration import Calibration
from diabat.checks import ArgumentError, check_count, did_you_mean
from diabat.extras import extra
from diabat.runs.heads.evaluation.harness_report import HarnessReport, rows_of
from diabat.runs.heads.evaluation.states import OFF, ON, State, adapter_states, entered
from diabat.runs.heads.evaluation.suites import SUITES, expanded, shipped_tasks
from diabat.samplers.base import UnsupportedError

__all__ = ["HarnessReport", "evaluate_tasks"]

# Only scores that are no means are resampled: perplexities, BLEU.
_BOOTSTRAP = 1000


def evaluate_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str],
    calibration: Calibration | None = None,
    *,
    name: str = "model",
    folder: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    adapters: Sequence[Path] = (),
) -> HarnessReport:
    """Run tasks of lm-eval on a decoder as it is, calibrated if there is a calibration, and with adapters.

    Args:
        model: A causal language model of transformers; left in the state in which it was.
        tokenizer: Its tokenizer.
        tasks: Names of tasks or groups of lm-eval, ``halueval_qa``, ``popqa`` and others that come with diabat, or the
            suite ``game-lora``.
        calibration: None for the model without.
        name: Name of the model in the report.
        folder: Tasks of one's own (YAML files), beside those of lm-eval.
        limit: First documents of each task that are used; None for all.
        seed: Of lm-eval: order of documents, examples in the prompt.
        batch_size: Sequences in one forward pass.
        adapters: Folders of LoRA adapters of this model; each is compared with the model without, uncalibrated.

    Raises:
        ArgumentError: If a task is unknown, there is no tokenizer, the calibration does not suit the tasks, or an
            adapter does not fit the model.
        ImportError: If the extra ``eval`` is not installed.
    """
    check_count("limit", limit, optional=True)
    names, categories = expanded(tasks)
    if tokenizer is None:
        raise ArgumentError("tokenizer", "expected that of the model for tasks of lm-eval, got none.")
    harness = extra("lm_eval", "eval")
    manager = _manager(names, folder)
    tuned = adapter_states(model, adapters)
    states = [State(OFF, None), *([] if calibration is None else [State(ON, calibration)]), *tuned]
    lm = extra("lm_eval.models.huggingface", "eval").HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=batch_size
    )
    results: dict[str, Any] = {}
    for state in states:
        with entered(model, state):
            results[state.name] = _run(harness, lm, names, manager, limit, seed, batch_size)
    return HarnessReport(
        rows=rows_of(results, categories, _self_scoring(results[OFF], manager)),
        model=name,
        calibration=None if calibration is None else calibration.as_dict(),
        version=harness.__version__,
        versions=dict(results[OFF]["versions"]),
        limit=limit,
        adapters={state.name: str(state.digest) for state in tuned},
        categories=categories,
    )


def _manager(tasks: Sequence[str], folder: Path | None) -> Any:
    if folder is not None and not folder.is_dir():
        raise ArgumentError("task_folder", f"expected a folder with tasks of lm-eval, got '{folder}'.")
    kind = extra("lm_eval.tasks", "eval").TaskManager
    paths = [str(path) for path in (shipped_tasks(), folder) if path is not None]
    # Reading the thousands of tasks of lm-eval takes seconds: they are left out if they are not needed.
    own = kind(include_path=paths, include_defaults=False)
    if set(tasks) <= set(own.all_tasks):
        return own
    manager = kind(include_path=paths)
    for task in tasks:
        if task not in manager.all_tasks:
            raise ArgumentError(
                "tasks",
                f"expected names of tasks of lm-eval or {', '.join(SUITES)}, got "
                f"'{task}'.{did_you_mean(task, [*SUITES, *manager.all_tasks])}",
            )
    return manager


def _self_scoring(results: Any, manager: Any) -> dict[str, Any]:
    """The multiple-choice tasks that compute their own scores, by name."""
    names = [
        name
        for name, config in results["configs"].items()
        if config.get("output_type") == "multiple_choice" and config.get("process_results") is not None
    ]
    return dict(manager.load(names)["tasks"]) if names else {}


def _run(
    harness: Any, lm: Any, tasks: Sequence[str], manager: Any, limit: int | None, seed: int, batch_size: int
) -> Any:
    try:
        return harness.simple_evaluate(
            model=lm,
            tasks=list(tasks),
            task_manager=manager,
            limit=limit,
            batch_size=batch_size,
            bootstrap_iters=_BOOTSTRAP,
            log_samples=True,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
        )
    except UnsupportedError as error:
        if error.argument != "rows":
            raise
        raise ArgumentError(
            "calibration",
            "expected rows='running' for the likelihoods of lm-eval, got 'prompt', where later tokens change those of "
            "earlier ones; calibrate with rows='running'.",
        ) from None
