r"""Exact sums over banded Ising models by torch operations, on any device (kernel).

The recursion of :mod:`diabat.samplers.banded.kernel` in float64 logarithms, in the form of a Markov chain: messages
from the last spin give the log-odds of each spin given the w before it,

    o_t(x) = 2 (h_t + Σ_d J_{t,t-1-d} s_{t-1-d}) + log β_{t+1}(x, +1) - log β_{t+1}(x, -1),

and from the first spin on σ(±o) are the transition probabilities of the window.  Nothing under- or overflows, for any
size of h and J.  There is one step per spin, for all queries at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Chain:
    """Problems with couplings to the w previous spins, and the log-odds of their spins."""

    signs: Tensor  # ±1 of the spins of a window, [2^w, w]; bit d is spin t-1-d
    live: Tensor  # whether spin t belongs to the problem, bool [Q, n]
    odds: list[Tensor]  # o_t of all windows, n tensors [Q, 2^w]
    log_z: Tensor  # [Q]


def chain(fields: Tensor, bands: Tensor, tables: Tensor, lengths: Tensor) -> Chain:
    """Log-odds and log Z.

    Args:
        fields: h, float64 [Q, n], zero from the length of a problem on.
        bands: J_{t,t-1-d} at [k, t, d], float64 [K, n, w], zero where t-1-d < 0.
        tables: int64 [Q], index of each problem's couplings.
        lengths: int64 [Q], spins of each problem.
    """
    queries, n = fields.shape
    width = bands.shape[2]
    index = torch.arange(1 << width, device=fields.device)
    signs = (2 * ((index[:, None] >> torch.arange(width, device=fields.device)) & 1) - 1).to(fields)
    live = torch.arange(n, device=fields.device) < lengths[:, None]
    message = fields.new_zeros(queries, 1 << width)
    log_z = fields.new_zeros(queries)
    odds = []
    for t in range(n - 1, -1, -1):
        down, up = _later(message)
        local = (bands[:, t] @ signs.T)[tables] + fields[:, t, None]
        up, down = up + local, down - local
        odds.append(up - down)
        joined = _log_sum(up, down)
        # Messages are relative to the reference window; log Z sums the factors.
        scale = torch.where(live[:, t], joined[:, 0], 0)
        log_z += scale
        message = torch.where(live[:, t, None], joined - scale[:, None], 0)
    return Chain(signs, live, odds[::-1], log_z)


def marginals(c: Chain) -> Tensor:
    """P(s_t = +1), [Q, n], 0 beyond the length."""
    out, law = [], _first(c)
    for odds in c.odds:
        up, down = law * torch.sigmoid(odds), law * torch.sigmoid(-odds)
        total = up.sum(1)
        out.append(total / (total + down.sum(1)))
        law = _slide(down, up)
    return torch.where(c.live, torch.stack(out, 1), 0)


def gradient(c: Chain, p: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Derivative of L = Σ v P + Σ u log Z with respect to h [Q, n] and J_{t,t-1-d} of each query [Q, n, w].

    Both are covariances with f = Σ_j v_j ([s_j = +1] - P_j) + u, computed from the conditional mean of the contribution
    of later spins to f, and the mean contribution of earlier spins.
    """
    gain, loss = v * (1 - p) * c.live, -v * p * c.live
    later = [torch.zeros_like(c.odds[0])]
    for t in range(len(c.odds) - 1, 0, -1):
        low, high = _later(later[-1])
        up, down = torch.sigmoid(c.odds[t]), torch.sigmoid(-c.odds[t])
        later.append(up * (high + gain[:, t, None]) + down * (low + loss[:, t, None]))
    law = _first(c)
    earlier = law * u[:, None]
    of_fields, of_couplings = [], []
    for t, odds in enumerate(c.odds):
        low, high = _later(later.pop())
        up, down = torch.sigmoid(odds), torch.sigmoid(-odds)
        live = c.live[:, t, None]
        plus = up * (earlier + law * (high + gain[:, t, None]))
        minus = down * (earlier + law * (low + loss[:, t, None]))
        response = torch.where(live, plus - minus, 0)
        of_fields.append(response.sum(1))
        of_couplings.append(response @ c.signs)
        earlier = _slide(down * (earlier + law * loss[:, t, None]), up * (earlier + law * gain[:, t, None]))
        law = _slide(down * law, up * law)
    return torch.stack(of_fields, 1), torch.stack(of_couplings, 1)


def pairs(c: Chain) -> Tensor:
    """<s_j s_k>, [Q, n, n], 0 beyond the length; one pass propagates the signed laws of all earlier spins."""
    n = len(c.odds)
    out = torch.zeros(*c.live.shape, n, dtype=c.log_z.dtype, device=c.log_z.device)
    signed = out.new_zeros(len(out), 0, c.odds[0].shape[1])
    law = _first(c)
    for t, odds in enumerate(c.odds):
        up, down = torch.sigmoid(odds)[:, None], torch.sigmoid(-odds)[:, None]
        out[:, t, :t] = (signed * (up - down)).sum(2)
        high, low = up * law[:, None], down * law[:, None]
        signed = torch.cat((_slide(down * signed, up * signed), _slide(-low, high)), 1)
        law = _slide(low, high)[:, 0]
        out[:, t, t] = 0.5
    out = out + out.mT
    return out * c.live[:, :, None] * c.live[:, None, :]


def reads(c: Chain, uniforms: Tensor, state: Tensor, t: int) -> tuple[Tensor, Tensor]:
    """Draw spin t of every read, bool [R, Q]; returns it with the next windows.

    Args:
        c: Chain.
        uniforms: In [0, 1), [R, Q].
        state: Windows before spin t, int64 [R, Q]; zeros at t = 0.
        t: Spin.
    """
    odds = c.odds[t].T.gather(0, state)
    plus = uniforms < torch.sigmoid(odds)
    return plus, ((state << 1) | plus.long()) & (len(c.signs) - 1)


def _log_sum(up: Tensor, down: Tensor) -> Tensor:
    """log(e^up + e^down); second derivatives of torch.logaddexp are NaN if the arguments are far apart."""
    odds = up - down
    return torch.where(odds > 0, up + _softplus(-odds), down + _softplus(odds))


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact to rounding on the whole line."""
    return torch.nn.functional.softplus(x, threshold=40)


def _first(c: Chain) -> Tensor:
    """Law of the window before spin 0, where all bits are 0."""
    law = torch.zeros_like(c.odds[0])
    law[:, 0] = 1
    return law


def _later(message: Tensor) -> tuple[Tensor, Tensor]:
    """Entries of the windows 2x' and 2x'+1 that follow window x = (oldest, x'), both [Q, 2^w]."""
    down, up = message[..., 0::2], message[..., 1::2]
    return torch.cat((down, down), -1), torch.cat((up, up), -1)


def _slide(down: Tensor, up: Tensor) -> Tensor:
    """Sum over the oldest spin and append the newest: entries 2x' from ``down``, 2x'+1 from ``up``."""
    half = down.shape[-1] // 2
    down, up = down[..., :half] + down[..., half:], up[..., :half] + up[..., half:]
    return torch.stack((down, up), -1).flatten(-2)
