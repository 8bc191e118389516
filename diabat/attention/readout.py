r"""Fields from scores, and weights from the answer of an Ising model: positive, with the sum 1 over the visible keys.

The weights that we ship are the softmax of logits over the visible keys of a query, so that none underflows.  With
``probability`` they are alpha_j / Σ_k alpha_k, alpha_j = P(s_j = +1), with the scores as fields: their logits are

    log alpha_j = log sigmoid(l_j),         l_j = log P(s_j = +1) - log P(s_j = -1).

With ``odds`` they have the log-odds l_j themselves.  They are softmax with couplings: with the scores s of all visible
keys,

    h_j = (s_j - log Σ_k exp s_k) / 2,      weight_j ∝ P(s_j = +1) / P(s_j = -1).

Without couplings the odds are exp(2 h_j) = softmax(s)_j, which sum to 1: the weights are the softmax exactly.
Couplings move the log-odds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.checks import check_choice


class Readout(ABC):
    """How scores become fields, and log-odds weights.  A subclass is given to layers and functions as ``readout``.

    It is computed by operators, over all visible keys of a query together, far ones included, in memory of queries
    times keys.  Both methods are for float32 or float64, and autograd differentiates them.

    Attributes:
        odds: What compiled code knows it by: weights are odds, or probabilities; None for neither.
        name: Of one that we ship; else empty.
    """

    odds: ClassVar[bool | None] = None
    name: ClassVar[str] = ""

    @abstractmethod
    def fields(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Fields h, [*, n], of the scores of n keys; at keys that are not visible any finite number.

        Args:
            scores: [*, n], soft-capped and with what a mask adds; any finite number at keys that are not visible.
            visible: bool, broadcastable to them.
        """

    @abstractmethod
    def weights(self, log_odds: Tensor, visible: Tensor) -> Tensor:
        """Weights of the keys, [*, n], with the sum 1 over visible keys, and 0 at others.

        Args:
            log_odds: log P(s = +1) - log P(s = -1) under fields and couplings, [*, n].
            visible: bool, broadcastable to them; all may be False.
        """


class _Odds(Readout):
    odds, name = True, "odds"

    def fields(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Compute h_j = (s_j - log Σ_k exp s_k) / 2 over the visible keys, 0 elsewhere."""
        hidden = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return hidden.log_softmax(-1).masked_fill(~visible, 0) / 2

    def weights(self, log_odds: Tensor, visible: Tensor) -> Tensor:
        """Softmax of the log-odds."""
        return masked_softmax(log_odds, visible)


class _Probability(Readout):
    odds, name = False, "probability"

    def fields(self, scores: Tensor, visible: Tensor) -> Tensor:
        """The scores."""
        return scores

    def weights(self, log_odds: Tensor, visible: Tensor) -> Tensor:
        """Softmax of log P."""
        return masked_softmax(F.logsigmoid(log_odds), visible)


ODDS, PROBABILITY = _Odds(), _Probability()
READOUTS: dict[str, Readout] = {"odds": ODDS, "probability": PROBABILITY}


def as_readout(readout: Readout | str) -> Readout:
    """A readout by its name, or as it is; ValueError if there is none of this name."""
    if isinstance(readout, Readout):
        return readout
    check_choice("readout", readout, tuple(READOUTS))
    return READOUTS[readout]


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over visible keys; a row without visible keys gets zeros instead of NaN."""
    weights = torch.softmax(scores.masked_fill(~visible, torch.finfo(scores.dtype).min), -1)
    return weights.masked_fill(~visible, 0)


def slot_weights(
    readout: Readout, near: Tensor, filled: Tensor, mass: Tensor | None, solve: Callable[[Tensor], Tensor], *,
    zero: bool = False,
) -> Tensor:  # fmt: skip
    """Weights of slots, [B, H, Q, T], by operators; with far keys their sum as one more, [B, H, Q, T + 1].

    ``near`` are the scores of the slots, [B, H, Q, T]; ``filled`` is whether a slot holds a visible key, broadcastable
    to them; ``mass`` that of the far keys, [B, H, Q] (:mod:`diabat.attention.streaming`), for readouts that we ship,
    or None; ``solve`` leads from fields to log-odds; with ``zero`` there are no fields, and the scores are 0.
    """
    if mass is None:
        return readout.weights(solve(near if zero else readout.fields(near, filled)), filled)
    empty, least = ~filled, torch.finfo(mass.dtype).min
    visible = torch.cat((filled.expand(near.shape), mass[..., None] > least / 2), -1)
    if not readout.odds:
        log_odds = solve(near.masked_fill(empty, 0))
        return masked_softmax(torch.cat((F.logsigmoid(log_odds), mass[..., None]), -1), visible)
    logits = torch.cat((near.masked_fill(empty, least), mass[..., None]), -1).log_softmax(-1)
    near, before = logits.split((near.shape[-1], 1), -1)
    # Without couplings the logarithm of the odds is twice the field, which is the logit.
    moved = near + solve(torch.zeros_like(near)) if zero else solve((near / 2).masked_fill(empty, 0))
    weights = torch.cat((moved.masked_fill(empty, least), before), -1).softmax(-1)
    return weights.masked_fill(~visible, 0)
