"""Does recall carry over to language?  Loss where a bigram comes again, and elsewhere, by model.

    python -m experiments.recall_language FOLDER            # DIABAT_DATA holds Tiny Shakespeare
    python -m experiments.recall_language FOLDER --tokens letters --context 256 --layers 2 --minutes 4

Tokens are letters, pairs of letters, or words.  A target is recall if the token before it and the target stood side by
side earlier in the context (Arora et al., "Zoology", arXiv:2312.04927, sec. 3).  Loss in nats per token on 400 contexts
of 64 tokens from the last tenth of the text.  Every training is one file in the folder, and is not done again.  With
--minutes a model gets the steps for which it takes this CPU time on one thread, of a processor that nothing else uses.
"""

from __future__ import annotations

import re
import statistics
import time
from argparse import Namespace
from collections import Counter
from functools import cache
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor
from torch.nn.functional import cross_entropy

from diabat.models.transformer import Transformer
from diabat.tasks import Split, Task
from diabat.tasks.data import fetch
from experiments.common import Backward, Row, calls, fit, keep, kept, parser, report, same_settings
from experiments.recall import BAND, OWN_INIT, built, groups

WIDTH, BATCH, TESTED = 96, 16, 400
TOKENS = {
    "letters": (".", 66),
    "pairs of letters": ("..", 1_000),
    "words": (r"[A-Za-z']+|[^A-Za-z' ]", 4_000),
}
"""Expression of a token, and how many of them have a symbol; the rest share symbol 0."""

BANDED: Row = {"sampler": {"backend": "banded"}, **BAND}
CHAIN: Row = {
    "sampler": {"backend": "banded"},
    "relative": True,
    "couplings": "tokens",
    "weights": "odds",
}
"""Over the whole context, see experiments/chains.py."""

MODELS: dict[str, Row] = {
    "softmax": {"mode": "softmax"},
    "softmax, keys convolved": {"mode": "softmax", "convolved": "k"},
    "softmax, q, k, v convolved": {"mode": "softmax", "convolved": "qkv"},
    "h+J, band of 1": BANDED,
    "h+J, band of 1, odds": {**BANDED, "weights": "odds"},
    "chain, J from distance": {**CHAIN, "couplings": "distance"},
    "chain, J from tokens": CHAIN,
    "chain, J from tokens, q, k, v convolved": {**CHAIN, "convolved": "qkv"},
    "softmax, keys scanned": {"mode": "softmax", "scanned": "k"},
    "softmax, keys and values scanned": {"mode": "softmax", "scanned": "kv"},
}
MODELS |= {
    f"{name}, {positions} positions": {
        **MODELS[name],
        "positions": "none" if positions == "no" else positions,
    }
    for name in [*MODELS]
    if not name.startswith("h+J")
    for positions in ("learned", "no")
}
FEATURE_RATE = 2e-4
"""Of the features that couplings are products of: a tenth of the rate of the model."""


@cache
def task_of(tokens: str, context: int) -> Task[Split]:
    """Next tokens of Tiny Shakespeare; the first nine tenths are for training."""
    text = fetch("tinyshakespeare", None).read_text(encoding="utf-8")
    expression, size = TOKENS[tokens]
    found = re.findall(expression, text, re.DOTALL)
    cut = len(found) * 9 // 10
    symbol = {name: code for code, (name, _) in enumerate(Counter(found[:cut]).most_common(size - 1), 1)}
    codes = torch.tensor([symbol.get(name, 0) for name in found])
    train, validation = (
        Split(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        for windows in (
            codes[:cut].unfold(0, context + 1, 8),
            codes[cut:].unfold(0, context + 1, context)[:TESTED],
        )
    )
    return Task("language", context, size, size, "perplexity", train, validation)


def seen_before(inputs: Tensor, targets: Tensor) -> Tensor:
    """Whether token t and its target stood side by side in tokens 0 .. t; bool [B, T]."""
    pairs = inputs * (int(targets.max()) + 1) + targets
    return (pairs[:, :, None] == pairs[:, None, :]).tril(-1).any(-1)


def made(tokens: str, context: int, name: str, layers: int, seed: int) -> tuple[Transformer, Task[Split]]:
    """A model and its task."""
    task = task_of(tokens, context)
    return built({**MODELS[name], "num_heads": 4, "num_layers": layers, **OWN_INIT}, task, WIDTH, seed), task


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def cost(folder: Path, tokens: str, context: int, name: str, layers: int) -> float:
    """CPU ms of a step on one thread: the fastest of ten; measured once for a folder."""
    path = folder / "costs" / f"{tokens}, {name}, {layers}.json"
    if not path.exists():
        torch.set_num_threads(1)
        model, task = made(tokens, context, name, layers, 0)
        backward, times = Backward(model, loss_of, "cpu"), []
        optimiser = torch.optim.AdamW(groups(model, 2e-2, FEATURE_RATE), 2e-3, fused=True)
        for _ in range(12):
            began = time.process_time()
            backward(*task.train.batch(torch.arange(BATCH)))
            optimiser.step()
            times.append(1e3 * (time.process_time() - began))
        keep(path, min(times[2:]))
    found: float = kept(path)
    return found


def one(
    options: Namespace, tokens: str, name: str, layers: int, seed: int, steps: int
) -> tuple[str, str, Row]:
    """One training, unless its result is there."""
    title = f"{name}, {layers} layer{'s' * (layers > 1)}"
    path = options.folder / tokens / f"{title} {seed}.json"
    if not path.exists():
        torch.set_num_threads(1)
        model, task = made(tokens, options.context, name, layers, seed)
        model, generator = model.to(options.device), torch.Generator().manual_seed(seed)
        backward, began = Backward(model, loss_of, options.device), time.process_time()

        def gradients(_: int) -> None:
            backward(*task.train.batch(torch.randint(len(task.train), (BATCH,), generator=generator)))

        fit(model, gradients, steps, 2e-3, groups(model, 2e-2, FEATURE_RATE))
        seconds = time.process_time() - began
        inputs, targets = task.validation.inputs, task.validation.targets
        with torch.no_grad():
            logits = torch.cat([model(some.to(options.device)).cpu() for some in inputs.split(BATCH)])
            losses = cross_entropy(logits.mT, targets, reduction="none")
        again = torch.cat(
            [seen_before(*some) for some in zip(inputs.split(50), targets.split(50), strict=True)]
        )
        row: Row = {
            "loss": losses.mean().item(),
            "bigram seen before": losses[again].mean().item(),
            "others": losses[~again].mean().item(),
            "share seen before": again.double().mean().item(),
            "steps": steps,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }
        keep(path, row | {"CPU ms a step": 1e3 * seconds / steps if options.device == "cpu" else None})
    return tokens, title, kept(path)


def main() -> None:
    """Train what is not there, and print a table for each kind of tokens."""
    parsed = parser(__doc__, study=True)
    parsed.add_argument("--steps", type=int, default=1_000)
    parsed.add_argument("--minutes", type=float, help="of CPU time, in place of steps")
    parsed.add_argument("--context", type=int, default=64)
    parsed.add_argument("--tokens", nargs="+", default=list(TOKENS), choices=list(TOKENS))
    parsed.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS), help="models")
    parsed.add_argument("--layers", nargs="+", type=int, default=[1, 2, 4])
    options = parsed.parse_args()
    settings = {"steps": options.steps, "minutes": options.minutes, "context": options.context}
    same_settings(options.folder, settings)
    models = [(t, name, layers) for t in options.tokens for layers in options.layers for name in options.only]
    steps = dict.fromkeys(models, options.steps)
    if options.minutes is not None:
        for t, name, layers in track(models, "cost"):
            ms = cost(options.folder, t, options.context, name, layers)
            steps[t, name, layers] = round(6e4 * options.minutes / ms)
    jobs = [(options, *model, seed, steps[model]) for seed in range(options.seeds) for model in models]
    tables: dict[str, dict[str, list[Row]]] = {tokens: {} for tokens in options.tokens}
    for tokens, title, row in track(calls(one, jobs, options.workers), "language", len(jobs)):
        tables[tokens].setdefault(title, []).append(row)
    for tokens, rows in tables.items():
        report(tokens, [_summary(title, found) for title, found in rows.items()], as_json=options.json)


def _summary(title: str, rows: list[Row]) -> Row:
    means = {key: statistics.fmean(row[key] for row in rows) for key in rows[0] if rows[0][key] is not None}
    spread = statistics.stdev(row["loss"] for row in rows) if len(rows) > 1 else None
    return {"": title, "seeds": len(rows), **means, "σ of the loss": spread}


if __name__ == "__main__":
    main()
