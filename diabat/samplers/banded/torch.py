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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from diabat.compute.counter_random import uniforms
from diabat.samplers.banded.band_storage import BandProblems, Layout

NUMBERS_PER_STATE = 30
"""Of the graph of autograd of the sums of a problem, per window state and spin, forward and backward."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Problems with couplings to the w previous spins, and the log-odds of their spins."""

    odds: list[Tensor]  # o_t of all windows, n tensors [Q, 2^w]; bit d is spin t-1-d
    log_z: Tensor  # [Q]
    live: Tensor | None  # whether spin t belongs to the problem, bool [Q, n]


def chain(problems: BandProblems) -> Chain:
    """Log-odds and log Z, differentiable."""
    bands, tables = problems.bands, problems.tables
    local = problems.fields[..., None] + (bands @ _signs(bands))[tables]
    return _chain(local, problems.live)


def _signs(like: Tensor) -> Tensor:
    """±1 of the spins of all windows, [w, 2^w], for bands [.., w]."""
    width = like.shape[-1]
    index, bits = (torch.arange(size, device=like.device) for size in (1 << width, width))
    return (2 * ((index >> bits[:, None]) & 1) - 1).to(like)


def _chain(local: Tensor, live: Tensor | None, *, scaled: bool = True) -> Chain:
    """The chain of h_t + Σ_d J_{t,t-1-d} s_{t-1-d} of all windows, [.., n, 2^w].

    Messages are relative to the reference window if they are ``scaled``, and log Z sums the factors.
    """
    half = local.shape[-1] // 2
    message, odds = torch.zeros_like(local[..., 0, :]), []
    log_z = message[..., 0]
    # A window is its oldest spin, and the others, to which the new one comes.
    steps = local.unflatten(-1, (2, half)).unbind(-3)
    for t in range(len(steps) - 1, -1, -1):
        down, up = message.unflatten(-1, (1, half, 2)).unbind(-1)
        own = torch.add(up - down, steps[t], alpha=2)
        odds.append(own.flatten(-2))
        message = (down - steps[t] + _softplus(own)).flatten(-2)
        if scaled:
            message = message if live is None else torch.where(live[..., t, None], message, 0)
            scale = message[..., :1]
            message, log_z = message - scale, log_z + scale[..., 0]
    return Chain(odds[::-1], log_z, live)


def marginals(c: Chain) -> Tensor:
    """P(s_t = +1), [Q, n], 0 beyond the length; differentiable."""
    found, law = [], _first(c)
    for odds in c.odds:
        up, down = law * torch.sigmoid(odds), law * torch.sigmoid(-odds)
        total = up.sum(1)
        found.append(total / (total + down.sum(1)))
        law = _slide(down, up)
    p = torch.stack(found, 1)
    return p if c.live is None else torch.where(c.live, p, 0)


def log_odds(c: Chain) -> Tensor:
    """Log P(s_t = +1) - log P(s_t = -1), [Q, n], 0 beyond the length; differentiable."""
    found, states = [], c.odds[0].shape[-1]
    law = torch.zeros_like(c.odds[0][..., :1])  # logarithms, of the windows whose old spins exist
    for own in c.odds:
        own = own[..., : law.shape[-1]]
        up = law + F.logsigmoid(own)
        both = torch.stack((up - own, up), -1)
        found.append(both.logsumexp(-2))
        law = both.unflatten(-2, (2, -1)).logsumexp(-3) if own.shape[-1] == states else both
        law = law.flatten(-2)
    down, up = torch.stack(found, -2).unbind(-1)
    return up - down if c.live is None else torch.where(c.live, up - down, 0)


def pinned_log_odds(fields: Tensor, J: Tensor, visible: Tensor | None, width: int) -> Tensor:
    """The same of fields [*batch, n] and J [*lead, n, n], in few operators that read no number; 0 for invisible spins.

    Invisible spins are held at -1 by strong fields, and what they would add to the fields of others is taken back.
    """
    n, h, J = fields.shape[-1], fields.double(), J.double()
    bands = [F.pad(J.diagonal(-d, -2, -1), (d, 0)) for d in range(1, width + 1)]  # J_{t,t-d} at t
    if visible is not None:
        hidden = (~visible).double()
        for d, band in enumerate(bands[: n - 1], 1):
            h = h + band * F.pad(hidden[..., :-d], (d, 0)) + F.pad(band[..., d:] * hidden[..., d:], (0, d))
        h = torch.where(visible, h, -40 - 2 * width * J.detach().abs().amax())
    band = torch.stack(bands, -1)
    result = log_odds(_chain(h[..., None] + band @ _signs(band), None, scaled=False)).to(fields.dtype)
    return result if visible is None else result.masked_fill(~visible, 0)


def pairs(c: Chain) -> Tensor:
    """<s_j s_k>, [Q, n, n], 0 beyond the length; one pass propagates the signed laws of all earlier spins."""
    n, law = len(c.odds), _first(c)
    out = law.new_zeros(len(law), n, n)
    signed = law.new_zeros(len(law), 0, law.shape[1])
    for t, odds in enumerate(c.odds):
        up, down = torch.sigmoid(odds)[:, None], torch.sigmoid(-odds)[:, None]
        out[:, t, :t] = (signed * (up - down)).sum(2)
        high, low = up * law[:, None], down * law[:, None]
        signed = torch.cat((_slide(down * signed, up * signed), _slide(-low, high)), 1)
        law = _slide(low, high)[:, 0]
        out[:, t, t] = 0.5
    out = out + out.mT
    return out if c.live is None else out * c.live[:, :, None] * c.live[:, None, :]


def reads(c: Chain, keys: NDArray[np.uint64], num_reads: int) -> Tensor:
    """Independent draws of all problems, whose streams are the keys [Q], int8 [R, Q, n]; -1 beyond the length."""
    window = torch.zeros(num_reads, *c.log_z.shape, dtype=torch.long, device=c.log_z.device)
    first, spins = np.arange(num_reads)[:, None] * len(c.odds), []
    for t, odds in enumerate(c.odds):
        u = torch.from_numpy(uniforms(keys, first + t)).to(window.device)
        plus = u < torch.sigmoid(odds.T.gather(0, window))
        window = ((window << 1) | plus.long()) & (odds.shape[1] - 1)
        spins.append(plus)
    up = torch.stack(spins, -1) if c.live is None else torch.stack(spins, -1) & c.live
    return 2 * up.to(torch.int8) - 1


def solved(
    layout: Layout, fields: Tensor, J: Tensor | None, rows: Any = slice(None), *, odds: bool
) -> tuple[Tensor, Tensor]:
    """P(s = +1) or log-odds [Q, n], 0 for invisible spins, and log Z [Q] of some problems; differentiable."""
    c = chain(layout.problems(fields, J, rows))
    return layout.per_spin(log_odds(c) if odds else marginals(c), rows), c.log_z


class Logarithms:
    """Some problems of a batch; as `Compiled`, but for the arithmetic.

    Args:
        fields: Of the batch.
        J: As it is held, or None.
        layout: Its couplings in a band.
        rows: The problems, as integers or as the slice of all.
        budget: Bytes.
        odds: Request log-odds in place of P(s = +1).
    """

    kind = 2

    def __init__(
        self, fields: Tensor, J: Tensor | None, layout: Layout, rows: Any, budget: int, *, odds: bool
    ) -> None:
        self.rows, self._layout, self._budget, self._odds = rows, layout, budget, odds
        self._h, self._J = fields.detach(), None if J is None else J.detach()

    def solve(self) -> tuple[Tensor, Tensor]:
        """P(s = +1) or log-odds [P, n], 0 for invisible spins, and log Z [P]."""
        with torch.no_grad():
            found = [solved(self._layout, self._h, self._J, part, odds=self._odds) for part in self._parts(2)]
        x, log_z = (torch.cat(values) for values in zip(*found, strict=True))
        return x, log_z

    def gradient(self, v: Tensor, u: Tensor | None, out: Tensor | None) -> Tensor:
        """dL/dh [P, n] of L = Σ v x + Σ u log Z; adds dL/dJ to ``out`` as J is held."""
        leaves = [t.double().detach().requires_grad_() for t in (self._h, self._J) if t is not None]
        h, J = leaves if len(leaves) == 2 else (leaves[0], None)
        v, u = v.reshape(-1, v.shape[-1]), None if u is None else u.reshape(-1)
        for part in self._parts(NUMBERS_PER_STATE):
            with torch.enable_grad():
                x, log_z = solved(self._layout, h, J, part, odds=self._odds)
                loss = (x * v[part]).sum() + (0 if u is None else (log_z * u[part]).sum())
                loss.backward(inputs=leaves)
        of_h, of_J = h.grad, None if J is None else J.grad
        assert of_h is not None
        if out is not None and of_J is not None:  # there may be no edges
            out += of_J.reshape(-1)
        return of_h.reshape(v.shape)[self.rows]

    def pairs(self) -> Tensor:
        """<s_j s_k>, [P, n, n], 0 for invisible spins."""
        return torch.cat([self._layout.per_pair(pairs(self._chain(part)), part) for part in self._parts(2)])

    def reads(self, num_reads: int, keys: NDArray[np.uint64]) -> Tensor:
        """Independent draws, int8 [R, P, n], -1 for invisible spins; ``keys`` are the streams of all problems."""
        parts = self._parts(2, num_reads * 32)  # a uniform, a window and spins
        found = [
            self._layout.per_spin(reads(self._chain(part), keys[part], num_reads), part) for part in parts
        ]
        return torch.cat(found, 1)

    def _chain(self, part: Any) -> Chain:
        return chain(self._layout.problems(self._h, self._J, part))

    def _parts(self, numbers: int, more: int = 0) -> Iterator[Any]:
        """Problems that need so many numbers per state and spin, and so many bytes more each."""
        n, width = self._layout.numbers.shape[2:]
        step = max(1, self._budget // (8 * (numbers * (n + 4) << width) + more))
        total = len(self._layout.tables) if isinstance(self.rows, slice) else len(self.rows)
        for start in range(0, total, step):
            part = slice(start, min(start + step, total))
            yield part if isinstance(self.rows, slice) else self.rows[part]


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact to rounding on the whole line."""
    return F.softplus(x, threshold=40)


def _first(c: Chain) -> Tensor:
    """Law of the window before spin 0, where all bits are 0."""
    law = torch.zeros_like(c.odds[0])
    law[:, 0] = 1
    return law


def _slide(down: Tensor, up: Tensor) -> Tensor:
    """Sum over the oldest spin and append the newest: entries 2x' from ``down``, 2x'+1 from ``up``."""
    half = down.shape[-1] // 2
    down, up = down[..., :half] + down[..., half:], up[..., :half] + up[..., half:]
    return torch.stack((down, up), -1).flatten(-2)
