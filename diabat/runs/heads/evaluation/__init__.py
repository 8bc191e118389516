"""A decoder with and without calibration on the same questions, or on tasks of lm-eval."""

from diabat.runs.heads.evaluation.compare import Evaluation, evaluate
from diabat.runs.heads.evaluation.harness import HarnessReport, evaluate_tasks

__all__ = ["Evaluation", "HarnessReport", "evaluate", "evaluate_tasks"]
