"""Scores of a task of lm-eval as sums over its documents: standard errors, differences and chance levels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diabat.checks import is_number
from diabat.runs.heads.evaluation.paired import Array, mean_and_error

_BITS = "bits_per_byte"
# Metrics in which the choice of the highest likelihood counts.
_BY_CHOICE = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info")


@dataclass(frozen=True)
class Documents:
    """A score s = Σ a_i / Σ b_i over documents i.

    Attributes:
        keys: What tells a document from others, also in other tasks on the same data.
        amounts: a_i, [N].
        sizes: b_i, [N]; 1 if the score is a mean over documents, the number of bytes for bits per byte.
    """

    keys: tuple[str, ...]
    amounts: Array
    sizes: Array

    @property
    def score(self) -> float:
        """The score s."""
        return float(self.amounts.sum() / self.sizes.sum())

    @property
    def is_mean(self) -> bool:
        """Whether the score is a mean over documents."""
        return bool((self.sizes == 1).all())

    @property
    def influence(self) -> Array:
        """u_i = (a_i - s b_i) / mean(b), [N]: the standard error of s is that of the mean of u."""
        return (self.amounts - self.score * self.sizes) / self.sizes.mean()

    def error(self) -> float | None:
        """Standard error of the score; None with one document."""
        return mean_and_error(self.influence)[1]

    def matches(self, score: float) -> bool:
        """Whether a score that was reported is this one."""
        return math.isclose(self.score, score, rel_tol=1e-6, abs_tol=1e-9)


@dataclass(frozen=True)
class Change:
    """A difference between two states, and what every document adds to it.

    Attributes:
        value: The difference.
        keys: The documents.
        influence: [N]; the standard error of the difference is that of its mean.
    """

    value: float
    keys: tuple[str, ...]
    influence: Array

    def error(self) -> float | None:
        """Standard error of the difference, paired by document; None with one document."""
        return mean_and_error(self.influence)[1]


def documents_of(samples: Sequence[Any], metric: str, kind: str) -> Documents | None:
    """Documents of a metric and a filter; None if the metric is no mean over documents, and not bits per byte.

    Args:
        samples: As lm-eval logs them.
        metric: Its name.
        kind: Name of the filter.
    """
    chosen = _sorted(samples, kind)
    values = [sample.get(metric) for sample in chosen]
    if not values:
        return None
    if all(map(is_number, values)):
        return Documents(_keys(chosen), np.array(values, dtype=float), np.ones(len(values)))
    if metric == _BITS and all(isinstance(value, list | tuple) and len(value) == 2 for value in values):
        pairs = np.array(values, dtype=float)  # log-likelihood and number of bytes
        return Documents(_keys(chosen), -pairs[:, 0] / math.log(2), pairs[:, 1])
    return None


def joined(parts: Sequence[Documents | None]) -> Documents | None:
    """The documents of several tasks as those of one; None if one of them has none."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return Documents(
        tuple(key for part in known for key in part.keys),
        np.concatenate([part.amounts for part in known]),
        np.concatenate([part.sizes for part in known]),
    )


def difference(before: Documents, after: Documents) -> Change | None:
    """Return s' - s with u_i = u'_i - u_i; None if the documents are not the same."""
    if before.keys != after.keys:
        return None
    return Change(after.score - before.score, before.keys, after.influence - before.influence)


def relative(before: Documents, after: Documents) -> Change | None:
    """Return (s' - s) / s with u_i = (u'_i - (s'/s) u_i) / s; None if the documents are not the same, or s <= 0."""
    s = before.score
    if before.keys != after.keys or s <= 0:
        return None
    ratio = after.score / s
    return Change(ratio - 1, before.keys, (after.influence - ratio * before.influence) / s)


def mean_change(changes: Sequence[Change]) -> tuple[float, float | None]:
    """Mean of differences over tasks and its standard error.

    Tasks count alike whatever their size and are taken as given; documents are what is drawn.  A document that is in
    several tasks (TruthfulQA in MC1 and MC2) is drawn once: what it adds to each is summed before it is squared.
    """
    value = float(np.mean([change.value for change in changes]))
    total: dict[str, float] = {}
    for change in changes:
        count = len(change.keys)
        if count < 2:
            return value, None
        factor = (count / (count - 1)) ** 0.5 / (count * len(changes))
        for key, amount in zip(change.keys, factor * change.influence, strict=True):
            total[key] = total.get(key, 0.0) + float(amount)
    return value, math.sqrt(sum(amount**2 for amount in total.values()))


def chance_levels(task: Any, samples: Sequence[Any], metric: str, kind: str) -> Array | None:
    """Chance level of every document, [N]; None where there are no choices.

    That of accuracies is the number of right choices over that of all.  A task that computes its own scores (MC2 of
    TruthfulQA) scores every guess, which has all likelihood on one choice; the chance level is the mean over them.

    Args:
        task: The task of lm-eval if it computes its own scores, else None.
        samples: As lm-eval logs them.
        metric: Its name.
        kind: Name of the filter.
    """
    chosen = _sorted(samples, kind)
    if metric not in _BY_CHOICE or not chosen:
        return None
    levels = []
    for sample in chosen:
        count = len(sample["arguments"])
        if "acc_mutual_info" in sample:  # requests without the question stand behind those with it
            count //= 2
        if task is None:
            right = sample["target"]
            levels.append((len(set(right)) if isinstance(right, list) else 1) / count)
        else:
            guesses = [[(0.0 if i == k else -1e4, i == k) for i in range(count)] for k in range(count)]
            scores = [float(task.process_results(sample["doc"], guess)[metric]) for guess in guesses]
            levels.append(sum(scores) / count)
    return np.array(levels, dtype=float)


def _sorted(samples: Sequence[Any], kind: str) -> list[Any]:
    return sorted((s for s in samples if s["filter"] == kind), key=lambda sample: sample["doc_id"])


def _keys(samples: Sequence[Any]) -> tuple[str, ...]:
    """Checksums of the documents; equal documents of one task are numbered."""
    seen: Counter[str] = Counter()
    keys = []
    for sample in samples:
        keys.append(f"{sample['doc_hash']} {seen[sample['doc_hash']]}")
        seen[sample["doc_hash"]] += 1
    return tuple(keys)
