"""The kinds of cases and their frequencies."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import torch

from fuzz.api import (
    analytic,
    anneals,
    bridge,
    conversion,
    decoding,
    heads,
    mean_field,
    methods,
    mistakes,
    reads,
)
from fuzz.dice import Dice
from fuzz.outcome import Outcome, judge

KINDS: dict[Callable[[Dice], None], float] = {
    analytic.exact: 24,
    analytic.banded: 16,
    mean_field.mean_field: 8,
    reads.exact_reads: 4,
    reads.banded_reads: 4,
    reads.refined_reads: 3,
    reads.tempering_reads: 4,
    reads.tempering_moments: 3,
    anneals.anneal_moments: 6,
    anneals.anneal_reads: 3,
    anneals.anneal_gradient: 3,
    bridge.bridge: 8,
    bridge.attention: 4,
    bridge.windows: 4,
    bridge.pooling: 3,
    methods.energy: 2,
    methods.clamp: 2,
    methods.bqm: 2,
    methods.log_partition_of_bqm: 2,
    mistakes.option: 8,
    mistakes.unknown_option: 1,
    mistakes.problem: 6,
    mistakes.call: 6,
    heads.calibration: 4,
    heads.samples: 4,
    conversion.conversion: 2,
    decoding.decoding: 2,
    decoding.explanation: 3,
}
_WARM_UP = 12
"""Cases of each kind by which a worker compiles what it needs before its time counts."""


def prepare() -> None:
    """One thread; compile the kernels."""
    torch.set_num_threads(1)
    for kind in KINDS:
        for seed in range(_WARM_UP if kind.__module__ != mistakes.__name__ else 0):
            judge("", lambda kind=kind, seed=seed: kind(Dice(seed)))  # type: ignore[misc]  # defaults bind the loop's values


def run_case(seed: int, *, show: bool = False) -> Outcome:
    """Run the case of a seed; ``show`` prints the traceback of what it raises."""
    dice = Dice(seed)
    kind = dice.weighted(KINDS)

    def case() -> None:
        try:
            kind(dice)
        except Exception:
            if show:
                traceback.print_exc()
            raise

    return judge(kind.__name__.replace("_", " "), case)
