"""Values of a coalition on one sample: how well the model does with those heads.

Every value is computed in float64 from the logits that the model gives, and is finite wherever they are.
"""

from __future__ import annotations

import re
import string
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor

from diabat.attention.heads.samples import Sample
from diabat.checks import ArgumentError, ArgumentTypeError, check_choice, check_count


class Forward(Protocol):
    """The model on a batch of C coalitions."""

    def logits(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """Logits [C, K, vocabulary] at the positions ``keep`` [K] of tokens [T]."""

    def generate(self, tokens: Tensor, max_new_tokens: int) -> Tensor:
        """Tokens written greedily behind tokens [T], [C, <= max_new_tokens]."""


class Value(ABC):
    """v of a batch of coalitions on one sample."""

    name: str

    def check(self, sample: Sample, name: str) -> None:  # noqa: B027 - many values take every sample
        """Raise ArgumentError if the value does not apply to a sample."""

    @abstractmethod
    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        """Values [C]."""


Request = tuple[Tensor, Tensor]
"""Tokens [T], and the positions [K] at which their logits are needed; positions may be negative."""


class LogitValue(Value):
    """v from scores of what may follow a sample; every score comes from logits that can be computed apart."""

    @abstractmethod
    def requests(self, sample: Sample) -> list[Request]:
        """The logits that are needed."""

    @abstractmethod
    def scores(self, sample: Sample, logits: Iterable[Tensor]) -> Tensor:
        """Scores float64 [C, S], from the logits [C, K, vocabulary] of every request."""

    @abstractmethod
    def of_scores(self, scores: Tensor, sample: Sample) -> Tensor:
        """Values [C] of scores [C, S]."""

    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        """Values [C]."""
        logits = (forward.logits(tokens, keep) for tokens, keep in self.requests(sample))
        return self.of_scores(self.scores(sample, logits), sample)


class ChoiceValue(LogitValue):
    """v from one score per choice; the model's choice is the one of the highest score."""

    def of_scores(self, scores: Tensor, sample: Sample) -> Tensor:
        """Log-odds of the label, [C]."""
        return log_odds(scores, sample.label)


class LogOdds(ChoiceValue):
    r"""v = z_y - log Σ_{c ≠ y} e^{z_c}, the log-odds of the label y among the choices (GAC, eq. 3).

    z_c is the logit of the first token of choice c at the last position of the sample.  This is log p/(1 - p) with p
    the softmax over the choices, and stays finite where p rounds to 1.
    """

    name = "log_odds"

    def check(self, sample: Sample, name: str) -> None:
        """Refuse samples without two choices, and choices that start with one token."""
        _check_choices(sample, name)
        first: dict[int, int] = {}
        for k, choice in enumerate(sample.choices):
            token = int(choice[0])
            if token in first:
                raise ArgumentError(
                    f"{name}.choices",
                    f"expected choices that start with different tokens, got token {token} at the start of choices "
                    f"{first[token]} and {k}; use value='option_log_odds' (--value option_log_odds).",
                )
            first[token] = k

    def requests(self, sample: Sample) -> list[Request]:
        """The logits behind the last token."""
        return [(sample.tokens, torch.tensor([-1]))]

    def scores(self, sample: Sample, logits: Iterable[Tensor]) -> Tensor:
        """Logits of the first tokens of the choices, [C, choices]."""
        (found,) = logits
        first = torch.stack([choice[0] for choice in sample.choices]).to(found.device)
        return found[:, 0, first].double()


class OptionLogOdds(ChoiceValue):
    r"""v = ℓ_y - log Σ_{c ≠ y} e^{ℓ_c} with ℓ_c = Σ_t log p(c_t | sample, c_<t), all tokens of the choices counted."""

    name = "option_log_odds"

    def check(self, sample: Sample, name: str) -> None:
        """Refuse samples without two choices, and equal choices."""
        _check_choices(sample, name)
        texts = [tuple(choice.tolist()) for choice in sample.choices]
        if len(set(texts)) < len(texts):
            raise ArgumentError(f"{name}.choices", f"expected different choices, got tokens {texts}.")

    def requests(self, sample: Sample) -> list[Request]:
        """The logits before every token of every choice."""
        return [_before(sample.tokens, choice) for choice in sample.choices]

    def scores(self, sample: Sample, logits: Iterable[Tensor]) -> Tensor:
        """Log-likelihoods of the choices, [C, choices]."""
        pairs = zip(sample.choices, logits, strict=True)
        return torch.stack([log_likelihood(found, choice) for choice, found in pairs], -1)


class OptionLogLikelihood(LogitValue):
    r"""v = Σ_t log p(y_t | sample, y_<t), the log-likelihood of the label's tokens, whatever the other choices are."""

    name = "option_log_likelihood"

    def check(self, sample: Sample, name: str) -> None:
        """Refuse samples without a label."""
        _check_choices(sample, name, least=1)

    def requests(self, sample: Sample) -> list[Request]:
        """The logits before every token of the label."""
        return [_before(sample.tokens, _right(sample))]

    def scores(self, sample: Sample, logits: Iterable[Tensor]) -> Tensor:
        """The log-likelihood of the label, [C, 1]."""
        (found,) = logits
        return log_likelihood(found, _right(sample))[:, None]

    def of_scores(self, scores: Tensor, sample: Sample) -> Tensor:
        """The score itself, [C]."""
        return scores[:, 0]


class Perplexity(LogitValue):
    r"""v = -log PPL = 1/(T-1) Σ_{t>0} log p(x_t | x_<t) of the sample's own tokens: larger is better."""

    name = "perplexity"

    def check(self, sample: Sample, name: str) -> None:
        """Refuse samples of one token."""
        if len(sample.tokens) < 2:
            raise ArgumentError(name, "expected two tokens or more for a perplexity, got 1.")

    def requests(self, sample: Sample) -> list[Request]:
        """The logits before every token but the first."""
        return [_before(sample.tokens[:1], sample.tokens[1:])]

    def scores(self, sample: Sample, logits: Iterable[Tensor]) -> Tensor:
        """The mean log-likelihood of the tokens, [C, 1]."""
        (found,) = logits
        return log_likelihood(found, sample.tokens[1:])[:, None] / (len(sample.tokens) - 1)

    def of_scores(self, scores: Tensor, sample: Sample) -> Tensor:
        """The score itself, [C]."""
        return scores[:, 0]


class AnswerF1(Value):
    r"""v = F1 of the words of a greedily generated answer, the best over ``answers``, as SQuAD counts them.

    Words are compared without case, punctuation and articles.  The answer ends at the first line break.  Generation
    keeps a cache, and computes the prompt anew for each batch of coalitions.

    Args:
        tokenizer: That of the model.
        max_new_tokens: Longest answer.
    """

    def __init__(self, tokenizer: Any, max_new_tokens: int = 32) -> None:
        check_count("max_new_tokens", max_new_tokens)
        if tokenizer is None:
            raise ArgumentError("tokenizer", "expected that of the model for value='f1', got None.")
        self.tokenizer, self.max_new_tokens = tokenizer, max_new_tokens
        self.name = f"f1({max_new_tokens})"

    def check(self, sample: Sample, name: str) -> None:
        """Refuse samples without answers."""
        if not sample.answers:
            raise ArgumentError(f"{name}.answers", "expected one answer or more for value='f1', got none.")

    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        """Values [C]."""
        written = forward.generate(sample.tokens, self.max_new_tokens)
        texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        return torch.tensor(
            [max(f1(text, answer) for answer in sample.answers) for text in texts], dtype=torch.float64
        )


class CustomValue(Value):
    """v from a function of the logits [C, T, vocabulary] at all positions and of the sample as it was given."""

    def __init__(self, function: Callable[[Tensor, Mapping[str, Any]], Tensor]) -> None:
        self.function = function
        known = function if isinstance(function, FunctionType) else type(function)
        self.name = f"{known.__module__}.{known.__qualname__}"

    def __call__(self, forward: Forward, sample: Sample) -> Tensor:
        """Values [C]."""
        logits = forward.logits(sample.tokens, torch.arange(len(sample.tokens)))
        values = self.function(logits, sample.given)
        if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ArgumentError(
                "value", f"expected a function that returns [{len(logits)}] values, got {got}."
            )
        return values.double()


_VALUES: dict[str, Callable[[], Value]] = {
    value.name: value for value in (LogOdds, OptionLogOdds, OptionLogLikelihood, Perplexity)
}


def value_of(value: Any, tokenizer: Any) -> Value:
    """Return the value behind a name, a :class:`Value`, or a function of logits and sample.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is none of these.
    """
    if isinstance(value, Value):
        return value
    if isinstance(value, str):
        check_choice("value", value, (*_VALUES, "f1"))
        return AnswerF1(tokenizer) if value == "f1" else _VALUES[value]()
    if not callable(value):
        raise ArgumentTypeError("value", f"expected a name or a function, got {type(value).__name__}.")
    return CustomValue(value)


def log_odds(scores: Tensor, label: int | None) -> Tensor:
    r"""z_y - log Σ_{c ≠ y} e^{z_c} of scores z [..., choices]; finite where the probability of y rounds to 1."""
    assert label is not None
    others = torch.arange(scores.shape[-1], device=scores.device) != label
    return scores[..., label] - torch.logsumexp(scores[..., others], -1)


def log_likelihood(logits: Tensor, following: Tensor) -> Tensor:
    """Σ_t log p(y_t | x, y_<t) of tokens y [K], from the logits [C, K, vocabulary] before each of them; float64 [C]."""
    chosen = logits.gather(-1, following.to(logits.device).expand(len(logits), -1)[..., None])[..., 0]
    # Row by row: a copy of all logits in float64 would double their memory.
    norm = torch.stack([torch.logsumexp(row.double(), -1) for row in logits])
    return (chosen.double() - norm).sum(-1)


def _before(tokens: Tensor, following: Tensor) -> Request:
    """Request of the logits before every token that follows; the last of these is not part of the input."""
    whole = torch.cat((tokens, following[:-1]))
    return whole, torch.arange(len(tokens) - 1, len(whole))


def _right(sample: Sample) -> Tensor:
    assert sample.label is not None
    return sample.choices[sample.label]


def f1(text: str, answer: str) -> float:
    """F1 of the words of a text against those of an answer; 1 if both have none."""
    written, right = _words(_answer(text)), _words(answer)
    if not written or not right:
        return float(written == right)
    common = sum((Counter(written) & Counter(right)).values())
    return 2 * common / (len(written) + len(right))


def exact_match(text: str, answer: str) -> float:
    """1 if a text has the words of an answer in their order, else 0."""
    return float(_words(_answer(text)) == _words(answer))


def _answer(text: str) -> str:
    """What was written up to the first line break."""
    return text.strip().partition("\n")[0]


def _words(text: str) -> list[str]:
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _check_choices(sample: Sample, name: str, least: int = 2) -> None:
    if len(sample.choices) < least:
        raise ArgumentError(
            f"{name}.choices", f"expected {least} or more with a label, got {len(sample.choices)}."
        )
