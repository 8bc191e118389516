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
import time
from argparse import Namespace
from collections import Counter
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from diabat.models.transformer import Transformer
from diabat.tasks import Split, Task
from diabat.tasks.data import fetch
from experiments.common import Row, add_choice, every_seed, fit, means, once, parser, report, same_settings
from experiments.recall import BAND, OWN_INIT, built, groups
from experiments.training import Backward, size_of, step_ms

WIDTH, BATCH, TESTED = 96, 16, 400
TOKENS = {
    "letters": (".", 66),
    "pairs of letters": ("..", 1_000),
    "words": (r"[A-Za-z']+|[^A-Za-z' ]", 4_000),
}
"""Expression of a token, and how many of them have a symbol; the rest share symbol 0."""

BANDED: Row = {"sampler": {"backend": "banded"}, **BAND}
CHAIN: Row = {"sampler": {"backend": "banded"}, "couplings": "tokens", "readout": "odds"}
"""Over the whole context, see experiments/chains.py."""

MODELS: dict[str, Row] = {
    "softmax": {"mode": "softmax"},
    "softmax, keys convolved": {"mode": "softmax", "convolved": ("k",)},
    "softmax, q, k, v convolved": {"mode": "softmax", "convolved": ("qkv",)},
    "h+J, band of 1": BANDED,
    "h+J, band of 1, odds": {**BANDED, "readout": "odds"},
    "chain, J from distance": {**CHAIN, "couplings": "distance"},
    "chain, J from tokens": CHAIN,
    "chain, J from tokens, q, k, v convolved": {**CHAIN, "convolved": ("qkv",)},
    "softmax, keys scanned": {"mode": "softmax", "scanned": ("k",)},
    "softmax, keys and values scanned": {"mode": "softmax", "scanned": ("kv",)},
}
MODELS |= {
    f"{name}, {word} positions": {**MODELS[name], "positions": positions}
    for name in [*MODELS]
    if not name.startswith("h+J")
    for word, positions in (("learned", "learned"), ("no", "none"))
}


@cache
def task_of(tokens: str, context: int) -> Task:
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


def made(tokens: str, context: int, name: str, layers: int, seed: int) -> tuple[Transformer, Task]:
    """A model and its task."""
    task = task_of(tokens, context)
    return built({**MODELS[name], "num_heads": 4, "num_layers": layers, **OWN_INIT}, task, WIDTH, seed), task


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def cost(folder: Path, tokens: str, context: int, name: str, layers: int) -> float:
    """CPU ms of a step on one thread: the fastest of ten; measured once for a folder."""

    def measured() -> float:
        model, task = made(tokens, context, name, layers, 0)
        backward, batch = Backward(model, loss_of, "cpu"), task.train.batch(torch.arange(BATCH))
        optimiser = torch.optim.AdamW(groups(model, 2e-2), 2e-3, fused=True)
        return step_ms(lambda: backward(*batch), optimiser)

    found: float = once(folder / "costs" / f"{tokens}, {name}, {layers}.json", measured)
    return found


def one(job: tuple[str, str, int, int], seed: int, options: Namespace) -> Row:
    """One training: tokens, the name of a model, layers and steps."""
    tokens, name, layers, steps = job
    model, task = made(tokens, options.context, name, layers, seed)
    model, generator = model.to(options.device), torch.Generator().manual_seed(seed)
    backward, began = Backward(model, loss_of, options.device), time.process_time()

    def gradients(_: int) -> None:
        backward(*task.train.batch(torch.randint(len(task.train), (BATCH,), generator=generator)))

    fit(model, gradients, steps, 2e-3, groups(model, 2e-2))
    seconds = time.process_time() - began
    inputs, targets = task.validation.inputs, task.validation.targets
    with torch.no_grad():
        logits = torch.cat([model(some.to(options.device)).cpu() for some in inputs.split(BATCH)])
        losses = cross_entropy(logits.mT, targets, reduction="none")
    parts = zip(inputs.split(50), targets.split(50), strict=True)
    again = torch.cat([seen_before(*some) for some in parts])
    return {
        "loss": losses.mean().item(),
        "bigram seen before": losses[again].mean().item(),
        "others": losses[~again].mean().item(),
        "share seen before": again.double().mean().item(),
        "steps": steps,
        "parameters": size_of(model),
        "CPU ms a step": 1e3 * seconds / steps if options.device == "cpu" else None,
    }


def main() -> None:
    """Train what is not there, and print a table for each kind of tokens."""
    parsed = parser(__doc__, study=True)
    parsed.add_argument("--steps", type=int, default=1_000)
    parsed.add_argument("--minutes", type=float, help="of CPU time, in place of steps")
    parsed.add_argument("--context", type=int, default=64)
    add_choice(parsed, "--tokens", TOKENS)
    add_choice(parsed, "--only", MODELS, "models")
    parsed.add_argument("--layers", nargs="+", type=int, default=[1, 2, 4])
    options = parsed.parse_args()
    settings = {"steps": options.steps, "minutes": options.minutes, "context": options.context}
    same_settings(options.folder, settings)
    for tokens in options.tokens:
        jobs = {}
        for layers in options.layers:
            for name in options.only:
                steps = options.steps
                if options.minutes is not None:
                    ms = cost(options.folder, tokens, options.context, name, layers)
                    steps = round(6e4 * options.minutes / ms)
                jobs[f"{name}, {layers} layer{'s' * (layers > 1)}"] = tokens, name, layers, steps
        rows = every_seed(one, jobs, options, tokens)
        report(
            tokens, [{"": title, **means(some, "loss")} for title, some in rows.items()], as_json=options.json
        )


if __name__ == "__main__":
    main()
