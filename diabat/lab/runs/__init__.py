"""What a configuration describes, built and run: training, evaluation, explanation."""

from diabat.lab.runs.build import build_model, build_sampler, build_task, run_training, use_threads
from diabat.lab.runs.finished import (
    Evaluation,
    Run,
    evaluate_run,
    explain_decoder_run,
    explain_pair_run,
    learned_couplings,
    load_run,
)

__all__ = [
    "Evaluation",
    "Run",
    "build_model",
    "build_sampler",
    "build_task",
    "evaluate_run",
    "explain_decoder_run",
    "explain_pair_run",
    "learned_couplings",
    "load_run",
    "run_training",
    "use_threads",
]
