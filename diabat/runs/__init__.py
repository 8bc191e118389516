"""What a configuration describes, built and run: training, evaluation, predictions, experiments."""

from diabat.runs.build import build_model, build_sampler, build_task, run_training, use_threads

__all__ = ["build_model", "build_sampler", "build_task", "run_training", "use_threads"]
