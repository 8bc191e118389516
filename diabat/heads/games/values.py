"""Values of a coalition on one sample: how well the model does with those heads.

Every value is computed in float64 from the logits that the model gives, and is finite wherever they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError, check_choice
from diabat.heads.games.questions import Sample

Forward = Callable[[Tensor, Tensor], Tensor]
"""The model on a batch of C coalitions: logits [C, K, vocabulary] of tokens [T] at the positions [K]."""


class Value(ABC):
    """v of a batch of coalitions on one sample, float64 [C]; ``name`` tells it from others in a store."""

    name: str
    choices: int = 0
    """Least number of choices that a sample has."""

    def check(self, sample: Sample, name: str) -> None:
        """Raise ArgumentError if the value does not apply to a sample."""
        if len(sample.choices) < self.choices:
            raise ArgumentError(
                f"{name}.choices",
                f"expected {self.choices} or more with an answer, got {len(sample.choices)}.",
            )

    def input_length(self, sample: Sample) -> int:
        """Most tokens that the model reads at once for a sample."""
        return len(sample.tokens)

    @abstractmethod
    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        """Values [C]."""


class _LogOdds(Value):
    r"""v = z_y - log Σ_{c ≠ y} e^{z_c}, the log-odds of the answer y among the choices (GAC, eq. 3).

    z_c is the logit of the first token of choice c at the last position of the sample.  This is log p/(1 - p) with p
    the softmax over the choices, and stays finite where p rounds to 1.
    """

    name, choices = "log_odds", 2

    def check(self, sample: Sample, name: str) -> None:
        super().check(sample, name)
        first = [int(choice[0]) for choice in sample.choices]
        for k, token in enumerate(first):
            if first.index(token) < k:
                raise ArgumentError(
                    f"{name}.choices",
                    f"expected choices that start with different tokens, got token {token} at the start of choices "
                    f"{first.index(token)} and {k}; use value=option_log_odds, or, for digits, a prompt that ends in a "
                    "space and choices that start without one.",
                )

    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        logits = forward(sample.tokens, torch.tensor([-1]))[:, 0]
        first = torch.stack([choice[0] for choice in sample.choices]).to(logits.device)
        return log_odds(logits[:, first].double(), sample.answer)


class _OptionLogOdds(Value):
    r"""v = ℓ_y - log Σ_{c ≠ y} e^{ℓ_c} with ℓ_c = Σ_t log p(c_t | sample, c_<t), all tokens of the choices counted."""

    name, choices = "option_log_odds", 2

    def check(self, sample: Sample, name: str) -> None:
        super().check(sample, name)
        tokens = [tuple(choice.tolist()) for choice in sample.choices]
        if len(set(tokens)) < len(tokens):
            raise ArgumentError(f"{name}.choices", f"expected different choices, got tokens {tokens}.")

    def input_length(self, sample: Sample) -> int:
        return len(sample.tokens) + max(map(len, sample.choices)) - 1

    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        scores = [_log_likelihood(forward, sample.tokens, choice) for choice in sample.choices]
        return log_odds(torch.stack(scores, -1), sample.answer)


class _OptionLogLikelihood(Value):
    r"""v = Σ_t log p(y_t | sample, y_<t), the log-likelihood of the answer's tokens, whatever the other choices are."""

    name, choices = "option_log_likelihood", 1

    def input_length(self, sample: Sample) -> int:
        assert sample.answer is not None
        return len(sample.tokens) + len(sample.choices[sample.answer]) - 1

    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        assert sample.answer is not None
        return _log_likelihood(forward, sample.tokens, sample.choices[sample.answer])


class _Perplexity(Value):
    r"""v = -log PPL = 1/(T-1) Σ_{t>0} log p(x_t | x_<t) of the sample's own tokens: larger is better."""

    name = "perplexity"

    def check(self, sample: Sample, name: str) -> None:
        if len(sample.tokens) < 2:
            raise ArgumentError(name, "expected two tokens or more for a perplexity, got 1.")

    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        return _log_likelihood(forward, sample.tokens[:1], sample.tokens[1:]) / (len(sample.tokens) - 1)


class _CustomValue(Value):
    """v from a function of the logits [C, T, vocabulary] at all positions and of the sample as it was given."""

    def __init__(self, function: Callable[[Tensor, Mapping[str, Any]], Tensor]) -> None:
        self.function = function
        known = function if isinstance(function, FunctionType) else type(function)
        self.name = f"{known.__module__}.{known.__qualname__}"

    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        logits = forward(sample.tokens, torch.arange(len(sample.tokens)))
        values = self.function(logits, sample.given)
        if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ArgumentError(
                "value", f"expected a function that returns [{len(logits)}] values, got {got}."
            )
        return values.double()


_NAMED: dict[str, type[Value]] = {
    kind.name: kind for kind in (_LogOdds, _OptionLogOdds, _OptionLogLikelihood, _Perplexity)
}


def value_of(value: Any) -> Value:
    """The value behind a name, a :class:`Value`, or a function of logits and sample.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is none of these.
    """
    if isinstance(value, Value):
        return value
    if isinstance(value, str):
        check_choice("value", value, _NAMED)
        return _NAMED[value]()
    if not callable(value):
        raise ArgumentTypeError("value", f"expected a name or a function, got {type(value).__name__}.")
    return _CustomValue(value)


def log_odds(scores: Tensor, answer: int | None) -> Tensor:
    r"""z_y - log Σ_{c ≠ y} e^{z_c} of scores z [..., choices]; finite where the probability of y rounds to 1."""
    assert answer is not None
    others = torch.arange(scores.shape[-1], device=scores.device) != answer
    return scores[..., answer] - torch.logsumexp(scores[..., others], -1)


def _log_likelihood(forward: Forward, tokens: Tensor, following: Tensor) -> Tensor:
    """Σ_t log p(y_t | x, y_<t) of tokens y [K] behind tokens x [T], float64 [C]."""
    whole = torch.cat((tokens, following[:-1]))  # the last one is not part of the input
    logits = forward(whole, torch.arange(len(tokens) - 1, len(whole)))
    chosen = logits.gather(-1, following.to(logits.device).expand(len(logits), -1)[..., None])[..., 0]
    # Row by row: a copy of all logits in float64 would double their memory.
    norm = torch.stack([torch.logsumexp(row.double(), -1) for row in logits])
    return (chosen.double() - norm).sum(-1)
