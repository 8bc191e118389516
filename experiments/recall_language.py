"""Does recall carry over to language?  Loss where a bigram comes again, and elsewhere, by model.

    python -m experiments.recall_language FOLDER            # DIABAT_DATA holds Tiny Shakespeare

Tokens are letters, pairs of letters, or words.  A target is recall if the token before it and the target stood side by
side earlier in the context (Arora et al., "Zoology", arXiv:2312.04927, sec. 3).  Loss in nats per token on 400 contexts
of 64 tokens from the last tenth of the text.  Every training is one file in the folder, and is not done again.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from functools import cache
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor
from torch.nn.functional import cross_entropy

from diabat.tasks import Split, Task
from diabat.tasks.data import fetch
from experiments.common import Row, calls, fit, keep, kept, parser, report, same_settings
from experiments.recall import BAND, OWN_INIT, built, groups

WINDOW, WIDTH, BATCH, TESTED = 64, 96, 16, 400
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
    "softmax, learned positions": {"mode": "softmax", "positions": "learned"},
    "chain, J from tokens, learned positions": {**CHAIN, "positions": "learned"},
    "softmax, no positions": {"mode": "softmax", "positions": "none"},
    "chain, J from tokens, no positions": {**CHAIN, "positions": "none"},
}
FEATURE_RATE = 2e-4
"""Of the features that couplings are products of: a tenth of the rate of the model."""


@cache
def task_of(tokens: str) -> Task[Split]:
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
            codes[:cut].unfold(0, WINDOW + 1, 8),
            codes[cut:].unfold(0, WINDOW + 1, WINDOW)[:TESTED],
        )
    )
    return Task("language", WINDOW, size, size, "perplexity", train, validation)


def seen_before(inputs: Tensor, targets: Tensor) -> Tensor:
    """Whether token t and its target stood side by side in tokens 0 .. t; bool [B, T]."""
    pairs = inputs * (int(targets.max()) + 1) + targets
    return (pairs[:, :, None] == pairs[:, None, :]).tril(-1).any(-1)


def one(folder: Path, tokens: str, name: str, layers: int, seed: int, steps: int) -> tuple[str, str, Row]:
    """One training, unless its result is there."""
    title = f"{name}, {layers} layer{'s' * (layers > 1)}"
    path = folder / tokens / f"{title} {seed}.json"
    if not path.exists():
        torch.set_num_threads(1)
        task, size = task_of(tokens), {"num_heads": 4, "num_layers": layers}
        model = built({**MODELS[name], **size, **OWN_INIT}, task, WIDTH, seed)
        generator, began = torch.Generator().manual_seed(seed), time.process_time()

        def loss(step: int) -> Tensor:
            inputs, targets = task.train.batch(torch.randint(len(task.train), (BATCH,), generator=generator))
            return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

        fit(model, loss, steps, 2e-3, groups(model, 2e-2, FEATURE_RATE))
        seconds = time.process_time() - began
        inputs, targets = task.validation.inputs, task.validation.targets
        with torch.no_grad():
            logits = torch.cat([model(some) for some in inputs.split(BATCH)])
            losses = cross_entropy(logits.mT, targets, reduction="none")
        again = seen_before(inputs, targets)
        keep(
            path,
            {
                "loss": losses.mean().item(),
                "bigram seen before": losses[again].mean().item(),
                "others": losses[~again].mean().item(),
                "share seen before": again.double().mean().item(),
                "CPU ms a step": 1e3 * seconds / steps,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
            },
        )
    return tokens, title, kept(path)


def main() -> None:
    """Train what is not there, and print a table for each kind of tokens."""
    made = parser(__doc__, study=True)
    made.add_argument("--steps", type=int, default=1_000)
    made.add_argument("--tokens", nargs="+", default=list(TOKENS), choices=list(TOKENS))
    made.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS), help="models")
    made.add_argument("--layers", nargs="+", type=int, default=[1, 2, 4])
    options = made.parse_args()
    same_settings(options.folder, {"steps": options.steps})
    jobs = [
        (options.folder, tokens, name, layers, seed, options.steps)
        for seed in range(options.seeds)
        for tokens in options.tokens
        for layers in options.layers
        for name in options.only
    ]
    tables: dict[str, dict[str, list[Row]]] = {tokens: {} for tokens in options.tokens}
    for tokens, title, row in track(calls(one, jobs, options.workers), "language", len(jobs)):
        tables[tokens].setdefault(title, []).append(row)
    for tokens, rows in tables.items():
        report(tokens, [_summary(title, found) for title, found in rows.items()], as_json=options.json)


def _summary(title: str, rows: list[Row]) -> Row:
    means = {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
    spread = statistics.stdev(row["loss"] for row in rows) if len(rows) > 1 else None
    return {"": title, "seeds": len(rows), **means, "σ of the loss": spread}


if __name__ == "__main__":
    main()
