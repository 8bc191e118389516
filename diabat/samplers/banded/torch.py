r"""Exact sums over banded Ising models by torch operations, on any device (kernel).

The recursion of :mod:`diabat.samplers.banded.kernel` in float64 logarithms, in the form of a Markov chain: messages
from the last spin give the log-odds of each spin given the w before it,

    o_t(x) = 2 (h_t + Σ_d J_{t,t-1-d} s_{t-1-d}) + log β_{t+1}(x, +1) - log β_{t+1}(x, -1),

and from the first spin on σ(±o) are the transition probabilities of the window.  Nothing under- or overflows, for any
size of h and J.  There is one step per spin, for all queries at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from diabat.compute.counter_random import uniforms
from diabat.samplers.banded.native import BandProblems

NUMBERS_PER_STATE = 30
"""Of the graph of autograd of the sums of a problem, per window state and spin, forward and backward."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Problems with couplings to the w previous spins, and the log-odds of their spins."""

    signs: Tensor  # ±1 of the spins of a window, [2^w, w]; bit d is spin t-1-d
    live: Tensor  # whether spin t belongs to the problem, bool [Q, n]
    odds: list[Tensor]  # o_t of all windows, n tensors [Q, 2^w]
    log_z: Tensor  # [Q]


def chain(problems: BandProblems, which: slice = slice(None)) -> Chain:
    """Log-odds and log Z of some problems, differentiable."""
    fields, bands = problems.fields[which].double(), problems.bands.double()
    (queries, n), width, device, rows = fields.shape, bands.shape[2], fields.device, problems.rows
    tables, lengths = (torch.from_numpy(t[which]).to(device) for t in (rows.tables, rows.lengths))
    index, spins = (torch.arange(size, device=device) for size in (1 << width, n))
    signs = (2 * ((index[:, None] >> index[:width]) & 1) - 1).to(fields)
    live = spins < lengths[:, None]
    message, log_z, odds = fields.new_zeros(queries, 1 << width), fields.new_zeros(queries), []
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
    """P(s_t = +1), [Q, n], 0 beyond the length; differentiable."""
    out, law = [], _first(c)
    for odds in c.odds:
        up, down = law * torch.sigmoid(odds), law * torch.sigmoid(-odds)
        total = up.sum(1)
        out.append(total / (total + down.sum(1)))
        law = _slide(down, up)
    return torch.where(c.live, torch.stack(out, 1), 0)


def log_odds(c: Chain) -> Tensor:
    """Log P(s_t = +1) - log P(s_t = -1), [Q, n], 0 beyond the length; differentiable."""
    out, law = (
        [],
        torch.zeros_like(c.log_z)[:, None],
    )  # logarithms of the law of the windows, whose old spins exist
    for odds in c.odds:
        odds = odds[:, : law.shape[1]]
        up, down = law - _softplus(-odds), law - _softplus(odds)
        out.append(up.logsumexp(1) - down.logsumexp(1))
        if law.shape[1] == len(c.signs):
            up, down = (_log_sum(*half.chunk(2, 1)) for half in (up, down))
        law = torch.stack((down, up), -1).flatten(-2)
    return torch.where(c.live, torch.stack(out, 1), 0)


def pinned_log_odds(fields: Tensor, J: Tensor, visible: Tensor | None, width: int) -> Tensor:
    """The same of fields [*batch, n] and J [*lead, n, n], in few operators that read no number; 0 for invisible spins.

    Invisible spins are held at -1 by strong fields, and what they would add to the fields of others is taken back.
    """
    n, half, h, J = fields.shape[-1], 1 << (width - 1), fields.double(), J.double()
    bands = [F.pad(J.diagonal(-d, -2, -1), (d, 0)) for d in range(1, width + 1)]  # J_{t,t-d} at t
    if visible is not None:
        hidden = (~visible).double()
        for d, band in enumerate(bands[: n - 1], 1):
            h = h + band * F.pad(hidden[..., :-d], (d, 0)) + F.pad(band[..., d:] * hidden[..., d:], (0, d))
        h = torch.where(visible, h, -40 - 2 * width * J.detach().abs().amax())
    index = torch.arange(2 * half, device=h.device)
    signs = 2 * ((index >> index[:width, None]) & 1).to(h) - 1  # bit d is spin t-1-d
    local = h[..., None] + torch.stack(bands, -1) @ signs  # of all windows, [*batch, n, 2^w]
    # A window is its oldest spin, and the others, to which the new one comes.
    steps = local.unflatten(-1, (2, half)).unbind(-3)
    message, odds, found = torch.zeros_like(local[..., 0, :]), [], []
    for own in reversed(steps):
        down, up = message.unflatten(-1, (1, half, 2)).unbind(-1)
        odds.append(torch.add(up - down, own, alpha=2))
        message = (down - own + F.softplus(odds[-1], threshold=40)).flatten(-2)
    law = torch.zeros_like(message[..., :1])  # logarithms, of the windows whose old spins exist
    for o in (o.flatten(-2) for o in reversed(odds)):
        o = o[..., : law.shape[-1]]
        up = law + F.logsigmoid(o)
        both = torch.stack((up - o, up), -1)
        found.append(both.logsumexp(-2))
        law = both.unflatten(-2, (2, half)).logsumexp(-3) if o.shape[-1] == 2 * half else both
        law = law.flatten(-2)
    down, up = torch.stack(found, -2).unbind(-1)
    result = (up - down).to(fields.dtype)
    return result if visible is None else result.masked_fill(~visible, 0)


def covariances(c: Chain, p: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
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


def reads(c: Chain, keys: NDArray[np.uint64], num_reads: int) -> Tensor:
    """Independent draws of all problems, whose streams are the keys [Q], int8 [Q, R, n]."""
    window = torch.zeros(num_reads, *c.log_z.shape, dtype=torch.long, device=c.log_z.device)
    first, spins = np.arange(num_reads)[:, None] * len(c.odds), []
    for t, odds in enumerate(c.odds):
        u = torch.from_numpy(uniforms(keys, first + t)).to(window.device)
        plus = u < torch.sigmoid(odds.T.gather(0, window))
        window = ((window << 1) | plus.long()) & (len(c.signs) - 1)
        spins.append(torch.where(plus & c.live[:, t], 1, -1).to(torch.int8))
    return torch.stack(spins, -1).transpose(0, 1)


class Logarithms:
    """Problems that these operations solve in parts that fit in a budget of bytes."""

    def __init__(self, problems: BandProblems, budget: int) -> None:
        self._problems, self._budget = problems, budget

    def solve(self, *, odds: bool) -> tuple[Tensor, Tensor]:
        """P(s = +1) or log-odds [P, n], 0 beyond the length, and log Z [P]."""
        with torch.no_grad():
            found = [sums(chain(self._problems, part), odds=odds) for part in self._parts(2)]
        self._x, log_z = (torch.cat(parts) for parts in zip(*found, strict=True))
        return self._x.clone(), log_z  # callers may change it

    def gradient(self, v: Tensor, u: Tensor, *, odds: bool) -> tuple[Tensor, Tensor]:
        """dL/dh [P, n] and dL/dJ [K, n, w] of L = Σ v x + Σ u log Z, x as from `solve`, which went before; float64."""
        h, J, rows = self._problems
        if odds:  # where P underflows, its logarithm has a derivative
            h, J = (t.detach().double().requires_grad_() for t in (h, J))
            for part in self._parts(NUMBERS_PER_STATE):
                with torch.enable_grad():
                    x, log_z = sums(chain(BandProblems(h, J, rows), part), odds=True)
                    ((x * v[part]).sum() + (log_z * u[part]).sum()).backward(inputs=(h, J))
            return h.grad, J.grad
        of_fields, of_bands = [], torch.zeros_like(J, dtype=torch.float64)
        tables, p, v, u = torch.from_numpy(rows.tables).to(J.device), self._x, v.double(), u.double()
        for part in self._parts(2):
            one, of_tables = covariances(chain(self._problems, part), p[part], v[part], u[part])
            of_fields.append(one)
            of_bands.index_add_(0, tables[part], of_tables)
        return torch.cat(of_fields), of_bands

    def pairs(self) -> Tensor:
        """<s_j s_k>, [P, n, n]."""
        return torch.cat([pairs(chain(self._problems, part)) for part in self._parts(2)])

    def reads(self, num_reads: int, keys: NDArray[np.uint64]) -> Tensor:
        """Independent draws, int8 [P, R, n]; ``keys`` are the streams, [P]."""
        parts = self._parts(2, num_reads * 32)  # a uniform, a window and spins
        return torch.cat([reads(chain(self._problems, part), keys[part], num_reads) for part in parts])

    def _parts(self, numbers: int, more: int = 0) -> Iterator[slice]:
        """Problems that need so many numbers per state and spin, and so many bytes more each."""
        (total, n), width = self._problems.fields.shape, self._problems.bands.shape[2]
        step = max(1, self._budget // (8 * (numbers * (n + 4) << width) + more))
        return (slice(start, start + step) for start in range(0, total, step))


def sums(c: Chain, *, odds: bool) -> tuple[Tensor, Tensor]:
    """P(s = +1) or log-odds [Q, n], 0 beyond the length, and log Z [Q]; differentiable."""
    return log_odds(c) if odds else marginals(c), c.log_z


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
