"""Segments of unknown ends: a task whose answer needs the posterior of a hidden Markov chain (docs/chains.md).

    python -m experiments.segments FOLDER           # ceilings, trainings, the best start and recipe of each model
    python -m experiments.segments FOLDER --models  # ceilings alone

A training takes 32 sequences a step, at rates that fall to 0 by a cosine, by recipes of experiments/chains.py.  Its
numbers are those of 2,000 sequences.  The last table has the start and the recipe of each model that are best on 1,000
others.  Every training is one file in the folder, and is not done again.

A sequence has 256 tokens.  Token j belongs to a hidden kind z_j of K = 3: z_1 is uniform, and with probability 1/64 a
token begins a segment of one of the K - 1 other kinds.  Each kind carries one of V = 8 values, v_1 .. v_K, uniform and
independent, drawn anew for every sequence.  A token is empty with probability 1/2, else one symbol (a_j, b_j): a_j is
z_j with probability .6, else one of the other kinds; b_j is the value of z_j with probability .36, else another.
All draws are independent given z and v.  A last token names a kind q, that of a token drawn at random, so that P(q | z)
is #{j: z_j = q} / 256.  The answer is v_q.  One token says little; what belongs to q shows over segments.

Ceilings, computed in float64:

- Bayes: P(v_q = u | x) is proportional to Σ_{v: v_q = u} Σ_z P(z) P(a, b | z, v) #{j: z_j = q}, by a forward pass over
  K states for each of the V^K values of all kinds.
- K states: P(z_j = q | a) by forward and backward passes; the answer u has the largest Σ_j P(z_j = q | a) [b_j = u].
- Two states: the same of s_j = [z_j = q] given [a_1 = q], [a_2 = q], ...  All kinds end alike, and all but q show q
  alike, so that s is a Markov chain, and this its posterior.  It is what a layer of chains computes: T are the
  transitions of s, J = log(T_00 T_11 / T_01 T_10) / 4 = 2.25, and fields depend on a_j, but for a constant at the ends.
  It does not know which of the other kinds were shown, nor that values agree.
- w tokens: the two-state posterior of a token from the w tokens around it, the most that a window knows of one token.

All but Bayes are votes, which a trained model may beat: it can subtract what other kinds carry.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.attention import CouplingInit
from experiments.chains import trained
from experiments.common import Row, every_seed, means, once, parser, report, same_settings
from experiments.rivals import built

KINDS, VALUES, LENGTH, MEAN = 3, 8, 256, 64
EMPTY, MATCH, SHOWN = 0.5, 0.6, 0.36
BLANK = KINDS * VALUES
"""Symbols are V a + b, this one of empty tokens, and then the kinds that are asked for."""
WINDOWS = (1, 7, 15, 31)
STEPS, BATCH, TESTED = 1500, 32, {"validation": 1000, "test": 2000}
RATES = ("decay 0.01", "decay 30 of q, k")
Setting = tuple[str, str, str]
"""Model, start, recipe."""


def chain(couplings: str, J: float, **options: str) -> Row:
    """A chain whose couplings begin at J."""
    init = CouplingInit(mean=4 * J if couplings == "gates" else J)
    return {"couplings": couplings, "coupling_init": init, **options}


def convolved(names: str, taps: int, kind: str = "convolved", **options: int) -> dict[str, Row]:
    """Softmax with convolutions that start near the ``identity`` or as ``torch`` draws them."""
    return {
        start: {"mode": "softmax", kind: (names, taps, start), **options} for start in ("identity", "torch")
    }


def scanned(names: str, directions: int) -> dict[str, Row]:
    """Softmax with scans from one side or both."""
    return {f"g {g}": {"mode": "softmax", "scanned": (names, directions, g)} for g in (0.9, 0.1)}


MODELS: dict[str, dict[str, Row]] = {
    "chain, gates": {f"J {J}": chain("gates", J) for J in (0.75, 1.5, 0.25)},
    "softmax": {p: {"mode": "softmax", "positions": p} for p in ("none", "rope")},
    "softmax, keys and values scanned from both sides": scanned("kv", 2),
    "softmax, keys scanned from both sides": scanned("k", 2),
    **{f"softmax, keys convolved, {taps} around": convolved("k", taps, "centred") for taps in (15, 31, 7)},
    "chain, distance": {f"J {J}": chain("distance", J) for J in (0.75, 1.5)},
    "chain, tokens": {f"J {J}": chain("tokens", J) for J in (0.75, 1.5)},
    "softmax, two layers": {"rope": {"mode": "softmax", "positions": "rope", "num_layers": 2}},
    "softmax, two layers, q, k, v convolved, 7": convolved("qkv", 7, num_layers=2),
    **{f"softmax, q, k, v convolved, {taps}": convolved("qkv", taps) for taps in (15, 7)},
    **{f"softmax, keys convolved, {taps}": convolved("k", taps) for taps in (15, 7, 3)},
    "softmax, keys and values scanned": scanned("kv", 1),
    "softmax, keys scanned": scanned("k", 1),
    "chain, gates, odds": {"J 0.75": chain("gates", 0.75, readout="odds")},
}
"""Options by model and start; without positions unless they say otherwise.  Rivals first, then variants."""


def noisy(truth: Tensor, count: int, right: float, generator: torch.Generator) -> Tensor:
    """The truth with probability ``right``, else another one of ``count`` numbers."""
    other = (truth + torch.randint(1, count, truth.shape, generator=generator)) % count
    return torch.where(torch.rand(truth.shape, generator=generator) < right, truth, other)


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences [B, L + 1] of L tokens and the kind asked for, and the values of that kind, [B]."""
    first = torch.randint(KINDS, (count, 1), generator=generator)
    begins = torch.rand(count, LENGTH - 1, generator=generator) < 1 / MEAN
    moved = torch.where(begins, torch.randint(1, KINDS, begins.shape, generator=generator), 0)
    z = torch.cat([first, moved], 1).cumsum(1) % KINDS
    values = torch.randint(VALUES, (count, KINDS), generator=generator)
    a, b = noisy(z, KINDS, MATCH, generator), noisy(values.gather(1, z), VALUES, SHOWN, generator)
    x = torch.where(torch.rand(z.shape, generator=generator) < EMPTY, BLANK, VALUES * a + b)
    q = z.gather(1, torch.randint(LENGTH, (count, 1), generator=generator))
    return torch.cat([x, BLANK + 1 + q], 1), values.gather(1, q)[:, 0]


def noise(count: int, right: float) -> Tensor:
    """P(shown | truth), [count, count], of :func:`noisy`."""
    return torch.full((count, count), (1 - right) / (count - 1)).double().fill_diagonal_(right)


def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Kinds shown [B, L], K at empty tokens; values shown [B, L, V], one-hot or 0; kinds asked for [B]."""
    seen = x[:, :-1]
    values = F.one_hot(seen % VALUES, VALUES).double() * (seen != BLANK)[..., None]
    return seen // VALUES, values, x[:, -1] - BLANK - 1


def bayes(x: Tensor) -> Tensor:
    """P(v_q | x) [B, V] of sequences [B, L + 1]."""
    values = torch.cartesian_prod(*[torch.arange(VALUES)] * KINDS)  # [V^K, K]
    shown = noise(VALUES, SHOWN)[values]  # [V^K, K, V]
    emitted = torch.einsum("za,czb->abcz", noise(KINDS, MATCH), shown).flatten(0, 1)
    emitted = torch.cat([emitted, torch.ones_like(emitted[:1])])  # [symbols, V^K, K]
    moves, q = noise(KINDS, 1 - 1 / MEAN), parts(x)[2]
    asked = F.one_hot(q, KINDS)[:, None].double()
    weight = emitted[x[:, 0]]  # of the paths that end in a kind, up to a factor
    visits, scale = weight * asked, torch.zeros(len(x), len(values)).double()  # weight times tokens of kind q
    for symbols in x[:, 1:-1].T:
        weight = weight @ moves * emitted[symbols]
        visits = visits @ moves * emitted[symbols] + weight * asked
        total = weight.sum(-1, keepdim=True)
        weight, visits, scale = weight / total, visits / total, scale + total[..., 0].log()
    found = (scale + visits.sum(-1).log()).softmax(1)
    return torch.zeros(len(x), VALUES).double().scatter_add_(1, values[:, q].T, found)


def marginals(emitted: Tensor, moves: Tensor, first: Tensor) -> Tensor:
    """P(z_j | all tokens) [B, L, S] from P(token | z_j) [B, L, S], P(z_{j+1} | z_j) [S, S] and P(z_1) [S]."""
    left, right = [first * emitted[:, 0]], [torch.ones_like(emitted[:, 0])]
    for j in range(1, emitted.shape[1]):
        left.append(F.normalize(left[-1] @ moves * emitted[:, j], 1.0))
        right.append(F.normalize(right[-1] * emitted[:, -j] @ moves.T, 1.0))
    return F.normalize(torch.stack(left, 1) * torch.stack(right[::-1], 1), 1.0, -1)


def two_states(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P([a_j = q] | s_j) [B, L, 2], transitions of s [2, 2] and P(s_1) [2]; s = 1 in the kind asked for."""
    a, _, q = parts(x)
    other, rate = (1 - MATCH) / (KINDS - 1), 1 / MEAN
    table = torch.tensor([[1 - other, 1 - MATCH], [other, MATCH], [1.0, 1.0]]).double()
    moves = torch.tensor([[1 - rate / (KINDS - 1), rate / (KINDS - 1)], [rate, 1 - rate]]).double()
    kinds = torch.tensor([1 - 1 / KINDS, 1 / KINDS]).double()
    return table[torch.where(a == KINDS, 2, (a == q[:, None]).long())], moves, kinds


def ceilings(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Names and scores [B, V] of the predictors that the module describes."""
    yield "Bayes", bayes(x)
    a, b, q = parts(x)
    emitted = torch.cat([noise(KINDS, MATCH).T, torch.ones(1, KINDS).double()])[a]
    found = marginals(emitted, noise(KINDS, 1 - 1 / MEAN), torch.full((KINDS,), 1 / KINDS).double())
    yield "K states", torch.einsum("bl,blv->bv", found[torch.arange(len(x)), :, q], b)
    emitted, moves, kinds = two_states(x)
    yield "two states", torch.einsum("bl,blv->bv", marginals(emitted, moves, kinds)[..., 1], b)
    for width in WINDOWS:
        padded = F.pad(emitted, (0, 0, width // 2, width // 2), value=1.0)
        around = padded.unfold(1, width, 1).mT.flatten(0, 1)  # [B L, w, 2]
        found = marginals(around, moves, kinds)[:, width // 2, 1].view(a.shape)
        yield f"{width} tokens", torch.einsum("bl,blv->bv", found, b)


def ceiling_rows() -> list[Row]:
    """Right answers of the ceilings on the test set, and the nats of Bayes."""
    right: dict[str, list[float]] = {}
    nats = []
    for x, answers in sequences("test"):
        for name, scores in ceilings(x):
            right.setdefault(name, []).append((scores.argmax(1) == answers).double().mean().item())
            if name == "Bayes":
                nats.append(F.nll_loss(scores.log(), answers).item())
    mean = {"Bayes": statistics.fmean(nats)}
    return [
        {"": name, "test": statistics.fmean(found), "nats": mean.get(name)} for name, found in right.items()
    ]


def sequences(part: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 50 sequences and their answers that no training sees, of ``validation`` or ``test``."""
    generator = torch.Generator().manual_seed(10_000 + [*TESTED].index(part))
    return (draw(50, generator) for _ in range(TESTED[part] // 50))


def one(setting: Setting, seed: int, options: Namespace) -> Row:
    """One training."""
    name, start, recipe = setting
    sizes = BLANK + 1 + KINDS, VALUES, LENGTH + 1
    model, generator = built(MODELS[name][start], *sizes, seed), torch.Generator().manual_seed(seed)

    def batch(_: int) -> tuple[Tensor, Tensor]:
        inputs, targets = draw(BATCH, generator)
        return inputs, targets[:, None]

    row = trained(model, batch, recipe, options.steps, options.device)
    for part in TESTED:
        with torch.no_grad():
            found = [(model(x.to(options.device))[:, -1].cpu(), y) for x, y in sequences(part)]
        logits, answers = (torch.cat(tensors) for tensors in zip(*found, strict=True))
        row[part] = (logits.argmax(1) == answers).double().mean().item()
        row[f"{part}, nats"] = F.cross_entropy(logits.double(), answers).item()
    return row


def main() -> None:
    """Train what is not there, and print the tables: ceilings, all trainings, the best of each model."""
    made = parser(__doc__, study=True)
    made.add_argument("--models", nargs="*", default=[*MODELS], metavar="MODEL", help="none: ceilings alone")
    made.add_argument("--steps", type=int, default=STEPS)
    options = made.parse_args()
    if unknown := set(options.models) - set(MODELS):
        raise SystemExit(f"--models: expected {', '.join(MODELS)}, got {', '.join(sorted(unknown))}.")
    same_settings(options.folder, {"steps": options.steps})
    report("ceilings", once(options.folder / "ceilings.json", ceiling_rows), as_json=options.json)
    settings = [(name, start, way) for name in options.models for way in RATES for start in MODELS[name]]
    rows = every_seed(one, {", ".join(setting): setting for setting in settings}, options, "segments")
    found = [
        {"": name, "start": start, "recipe": way, **means(some, "test")}
        for (name, start, way), some in zip(settings, rows.values(), strict=True)
    ]
    report("trainings", found, as_json=options.json)
    best = {row[""]: row for row in sorted(found, key=lambda row: row["validation"])}
    report("best", [best[name] for name in options.models], as_json=options.json)


if __name__ == "__main__":
    main()
