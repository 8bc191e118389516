"""Scores of questions in a state of the model, batched over questions and kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diabat.attention.heads.known import KnownValues, weights_digest
from diabat.attention.heads.samples import Sample, digest, read_samples
from diabat.attention.heads.values import (
    AnswerF1,
    ChoiceValue,
    LogitValue,
    exact_match,
    f1,
    value_of,
)
from diabat.checks import ArgumentError
from diabat.huggingface.batches import Batches
from diabat.runs.heads.evaluation.states import State, entered
from diabat.runs.heads.questions.sets import QuestionSet

V, ACCURACY = "v", "accuracy"

Scored = Iterator[tuple[int, tuple[float, ...]]]
"""Position of a question, and its measures."""


class Scorer:
    """Measures of every question of a set.

    ``v`` is the value of the question.  ``accuracy`` is 1 if the label has the highest score of the choices (of first
    tokens for ``log_odds``, of whole choices for ``option_log_odds``), or if a generated answer matches exactly.

    Args:
        batches: The model.
        questions: The set.
        value: ``log_odds``, ``option_log_odds``, ``option_log_likelihood``, ``perplexity`` or ``f1``.
        tokenizer: That of the model; None if the questions are token ids.
        batch_size: Sequences in one forward pass.
        folder: Where finished scores are kept; None for memory only.

    Attributes:
        questions: The set.
        measures: Names of what is measured.

    Raises:
        ArgumentError: If a question does not suit the value, or a kept file belongs to something else.
    """

    def __init__(
        self,
        batches: Batches,
        questions: QuestionSet,
        value: str,
        tokenizer: Any,
        batch_size: int,
        folder: Path | None,
    ) -> None:
        self.questions, self._batches = questions, batches
        self._tokenizer, self._batch_size = tokenizer, batch_size
        self._value = value_of(value, tokenizer)
        try:
            self._samples = read_samples(questions.samples, tokenizer, batches.decoder.vocabulary)
            for index, sample in enumerate(self._samples):
                self._value.check(sample, f"samples[{index}]")
        except ArgumentError as error:
            place = error.argument or ""
            raise ArgumentError(
                f"{questions.name}.{place}" if "[" in place else place, error.reason
            ) from None
        chosen = isinstance(self._value, ChoiceValue | AnswerF1)
        self.measures = (V, ACCURACY) if chosen else (V,)
        path = None if folder is None else folder / f"{questions.name}.{value}.safetensors"
        identity = {} if path is None else self._identity()
        # A key is the checksum of a state and of the name of a measure.
        self._known = KnownValues(len(self._samples), hashlib.sha256().digest_size, path, identity)

    def __len__(self) -> int:
        return len(self._samples)

    def check(self, state: State) -> None:
        """Refuse a calibration in which likelihoods of several tokens mean nothing.

        Raises:
            ArgumentError: If averages are over the whole prompt and logits of several positions are needed.
        """
        if state.calibration is None or state.calibration.rows == "running":
            return
        value = self._value
        if isinstance(value, LogitValue) and any(
            len(keep) > 1 for sample in self._samples for _, keep in value.requests(sample)
        ):
            raise ArgumentError(
                "calibration",
                f"expected rows='running' for {value.name} of several tokens, got 'prompt', where later tokens change "
                "the likelihood of earlier ones; calibrate with rows='running', or use the value log_odds.",
            )

    def missing(self, state: State) -> int:
        """Number of questions that are not yet scored in a state."""
        return len(self._missing(self._columns(state)))

    def scores(self, state: State, advanced: Callable[[int], None] | None = None) -> NDArray[np.float64]:
        """Measures of all questions in a state, [questions, measures].

        Args:
            state: What is calibrated meanwhile.
            advanced: Called with the number of questions that were scored.
        """
        columns = self._columns(state)
        missing = self._missing(columns)
        try:
            with entered(self._batches.model, state):
                self._batches.changed()
                for index, measures in self._evaluate(missing):
                    if not np.isfinite(measures).all():
                        raise ArgumentError(
                            "model",
                            f"expected finite values, got {measures[0]} of {self.questions.name}, sample {index}.",
                        )
                    self._known.put(index, columns, np.asarray(measures))
                    self._known.save(now=False)
                    if advanced is not None:
                        advanced(1)
        finally:
            self._known.save()
        return self._known.values[:, columns]

    def _columns(self, state: State) -> NDArray[np.int64]:
        keys = [hashlib.sha256(f"{state.key} {name}".encode()).digest() for name in self.measures]
        return self._known.columns(keys)

    def _missing(self, columns: NDArray[np.int64]) -> list[int]:
        return np.flatnonzero(np.isnan(self._known.values[:, columns]).any(1)).tolist()

    def _evaluate(self, missing: Iterable[int]) -> Scored:
        """Score questions, the longest first: what does not fit into memory fails at once."""
        if isinstance(self._value, AnswerF1):
            return self._generate(self._value, sorted(missing, key=self._length, reverse=True))
        assert isinstance(self._value, LogitValue)
        return self._compare(self._value, sorted(missing, key=self._length, reverse=True))

    def _length(self, index: int) -> int:
        return len(self._samples[index].tokens)

    def _compare(self, value: LogitValue, missing: list[int]) -> Scored:
        queue = [(index, request) for index in missing for request in value.requests(self._samples[index])]
        waiting: dict[int, list[torch.Tensor]] = {}
        for start in range(0, len(queue), self._batch_size):
            part = queue[start : start + self._batch_size]
            for (index, _), logits in zip(part, self._batches.logits([r for _, r in part]), strict=True):
                waiting.setdefault(index, []).append(logits)
            # A question whose last choice is in the next batch waits for it.
            later = {index for index, _ in queue[start + self._batch_size :][:1]}
            for index in [i for i in waiting if i not in later]:
                yield index, _measures(value, self._samples[index], waiting.pop(index))

    def _generate(self, value: AnswerF1, missing: list[int]) -> Scored:
        for start in range(0, len(missing), self._batch_size):
            part = missing[start : start + self._batch_size]
            prompts = [self._samples[index].tokens for index in part]
            written = self._batches.generate(prompts, value.max_new_tokens)
            for index, tokens in zip(part, written, strict=True):
                text = self._tokenizer.decode(tokens, skip_special_tokens=True)
                answers = self._samples[index].answers
                yield index, (max(f1(text, a) for a in answers), max(exact_match(text, a) for a in answers))

    def _identity(self) -> dict[str, str]:
        return {
            "model": weights_digest(self._batches.model),
            "samples": digest(self._samples),
            "value": self._value.name,
            "dtype": str(self._batches.model.dtype),
        }


def _measures(value: LogitValue, sample: Sample, logits: list[torch.Tensor]) -> tuple[float, ...]:
    scores = value.scores(sample, logits)
    v = float(value.of_scores(scores, sample))
    return (v, float(int(scores.argmax()) == sample.label)) if isinstance(value, ChoiceValue) else (v,)
