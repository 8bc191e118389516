"""Values of a coalition on one sample: how well the model does with those heads.

Every value is computed in float64 from the logits that the model gives, and is finite wherever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError, check_choice
from diabat.heads.games.questions import Sample

Forward = Callable[[Tensor, Tensor], Tensor]
"""The model on a batch of C coalitions: logits [C, K, vocabulary] of tokens [T] at the positions [K]."""


@dataclass(frozen=True)
class Value:
    """v of a batch of coalitions on one sample.

    Attributes:
        name: Tells it from others in a store.
        of: Values, float64 [C], from the model and the sample.
        tokens: Least number of tokens that a sample has.
        choices: Least number of choices that a sample has.
        read: The choices of which the model reads all tokens but the last, behind the sample.
        told_apart: Choices differ in these tokens; None if they may be alike.
        remedy: What to do about choices that do not, after a semicolon.
    """

    name: str
    of: Callable[[Forward, Sample], Tensor]
    tokens: int = 1
    choices: int = 0
    read: Callable[[Sample], Sequence[Tensor]] = lambda sample: ()
    told_apart: slice | None = None
    remedy: str = ""

    def check(self, sample: Sample, name: str, most: int | None = None) -> None:
        """Raise ArgumentError if the value does not apply to a sample, or the model reads ``most`` tokens only."""
        if len(sample.tokens) < self.tokens:
            raise ArgumentError(name, f"{self.tokens} tokens or more for a {self.name}", "1")
        if len(sample.choices) < self.choices:
            expected = f"{self.choices} or more with an answer"
            raise ArgumentError(f"{name}.choices", expected, len(sample.choices))
        length = len(sample.tokens) + max((len(choice) - 1 for choice in self.read(sample)), default=0)
        if most is not None and length > most:
            limit = "which is what the model can read (max_position_embeddings)"
            raise ArgumentError(name, f"at most {most} tokens with what follows the prompt, {limit}", length)
        if self.told_apart is None:
            return
        begun = [tuple(choice[self.told_apart].tolist()) for choice in sample.choices]
        for k, tokens in enumerate(begun):
            if begun.index(tokens) < k:
                what = "choices that start with different tokens" if self.remedy else "different choices"
                got = f"{list(tokens)} in choices {begun.index(tokens)} and {k}{self.remedy}"
                raise ArgumentError(f"{name}.choices", what, got)


def _log_odds(forward: Forward, sample: Sample) -> Tensor:
    r"""Compute v = z_y - log Σ_{c ≠ y} e^{z_c}, the log-odds of the answer y among the choices (GAC, eq. 3).

    z_c is the logit of the first token of choice c at the last position of the sample.  This is log p/(1 - p) with p
    the softmax over the choices, and stays finite where p rounds to 1.
    """
    logits = forward(sample.tokens, torch.tensor([-1]))[:, 0]
    first = torch.stack([choice[0] for choice in sample.choices]).to(logits.device)
    return log_odds(logits[:, first].double(), sample.answer)


def _option_log_odds(forward: Forward, sample: Sample) -> Tensor:
    r"""Compute v = ℓ_y - log Σ_{c ≠ y} e^{ℓ_c} with ℓ_c = Σ_t log p(c_t | sample, c_<t), of whole choices."""
    scores = [_log_likelihood(forward, sample.tokens, choice) for choice in sample.choices]
    return log_odds(torch.stack(scores, -1), sample.answer)


def _option_log_likelihood(forward: Forward, sample: Sample) -> Tensor:
    r"""Compute v = Σ_t log p(y_t | sample, y_<t), the log-likelihood of the answer, whatever the other choices are."""
    return _log_likelihood(forward, sample.tokens, *_answer(sample))


def _perplexity(forward: Forward, sample: Sample) -> Tensor:
    r"""Compute v = -log PPL = 1/(T-1) Σ_{t>0} log p(x_t | x_<t) of the sample's own tokens: larger is better."""
    return _log_likelihood(forward, sample.tokens[:1], sample.tokens[1:]) / (len(sample.tokens) - 1)


def _answer(sample: Sample) -> tuple[Tensor]:
    assert sample.answer is not None
    return (sample.choices[sample.answer],)


VALUES = {
    value.name: value
    for value in (
        Value("log_odds", _log_odds, choices=2, told_apart=slice(1),
              remedy="; use value=option_log_odds, or, for digits, a prompt that ends in a space and choices that "
              "start without one"),
        Value("option_log_odds", _option_log_odds, choices=2, read=lambda sample: sample.choices,
              told_apart=slice(None)),
        Value("option_log_likelihood", _option_log_likelihood, choices=1, read=_answer),
        Value("perplexity", _perplexity, tokens=2),
    )
}  # fmt: skip


def value_of(value: Any) -> Value:
    """The value behind a name, or a function of the logits [C, T, vocabulary] at all positions and the sample as given.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is neither.
    """
    if isinstance(value, str):
        check_choice("value", value, VALUES)
        return VALUES[value]
    if not callable(value):
        raise ArgumentTypeError("value", "a name or a function", type(value).__name__)

    def of(forward: Forward, sample: Sample) -> Tensor:
        logits = forward(sample.tokens, torch.arange(len(sample.tokens)))
        values = value(logits, sample.given)
        if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ArgumentError("value", f"a function that returns [{len(logits)}] values", got)
        return values.double()

    known = value if isinstance(value, FunctionType) else type(value)
    return Value(f"{known.__module__}.{known.__qualname__}", of)


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
