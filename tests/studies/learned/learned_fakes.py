"""Engines with known answers, and small instances."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from diabat.circuits import Batch, BatchMoments, Engine, TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.studies.learned.problems import Instances


class AnswerEngine(Engine):
    """Gives the moments that it was told to give, whatever the plan."""

    name = "answers"
    max_spins = 20
    differentiable = True

    def __init__(self, answers: Sequence[BatchMoments]) -> None:
        self.answers = list(answers)

    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        raise AssertionError("only moments are asked for")

    def moments(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> list[BatchMoments]:
        assert len(batches) == len(self.answers)
        return self.answers


def exact_answer(entry: Instances) -> BatchMoments:
    return BatchMoments(entry.probability, entry.correlation)


def independent_answer(entry: Instances) -> BatchMoments:
    m = 2 * entry.independent_probability - 1
    pairs = m[:, :, None] * m[:, None, :]
    pairs[:, range(m.shape[1]), range(m.shape[1])] = 1
    return BatchMoments(entry.independent_probability, pairs)


def central_difference(function: Callable[[FloatArray], float], at: FloatArray) -> FloatArray:
    steps = 1e-5 * np.eye(at.size)
    return np.array([(function(at + step) - function(at - step)) / 2e-5 for step in steps])
