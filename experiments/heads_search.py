"""Search of good coalitions of heads in a trained decoder: three samplers against random search and the best of all.

python -m experiments.heads_search [--seeds 3] [--json]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import diabat
from diabat.attention.games.draws import sized_coalitions
from diabat.attention.games.tables import all_coalitions
from diabat.attention.heads import HeadCoalitions, fit_surrogate, surrogate
from experiments.common import Row, parser, report

WORDS, LENGTH, LAYERS, HEADS = 20, 8, 4, 8
PENALTY, EVALUATIONS, SAMPLERS = 0.3, 200, ("tempering", "dqa", "exact")


def repeated(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight different words, then the first of them again, [batch, 8 + k], and the word that follows, [batch]."""
    words = torch.stack([torch.randperm(WORDS, generator=generator)[:LENGTH] for _ in range(batch)])
    end = int(torch.randint(2, LENGTH, (), generator=generator))
    return torch.cat((words, words[:, :end]), 1), words[:, end]


def decoder(seed: int) -> tuple[Any, float]:
    """A Llama of four layers trained to continue the repetition, and its accuracy."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, max_position_embeddings=32,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(1000):
        tokens, following = repeated(64, generator)
        whole = torch.cat((tokens, following[:, None]), 1)
        logits: Any = model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, LENGTH:].flatten(0, 1), whole[:, LENGTH + 1 :].flatten()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if float(loss.detach()) < 0.01:
            break
    with torch.no_grad():
        tokens, following = repeated(500, generator)
        right = model.eval()(input_ids=tokens).logits[:, -1].argmax(-1) == following
    return model, float(right.float().mean())


def game(model: Any, layers: list[int], samples: int, seed: int) -> HeadCoalitions:
    """The game of heads of layers on samples of its own seed."""
    generator = torch.Generator().manual_seed(seed + 1000)
    asked = []
    for _ in range(samples):
        tokens, following = repeated(1, generator)
        asked.append({"input_ids": tokens[0], "choices": list(range(WORDS)), "answer": int(following)})
    return HeadCoalitions(model, asked, layer=layers, batch_size=128)


def table(seeds: int) -> list[Row]:
    """16 players of two layers: the part of the way from an average coalition to the best of all 2^16."""
    masks, powers, rows = all_coalitions(16), torch.arange(16), []
    sizes = masks.sum(-1).double()
    for seed in range(seeds):
        model, accuracy = decoder(seed)
        v = game(model, [1, 2], 4, seed).table()
        objective = v - PENALTY * sizes
        best, mean = float(objective.max()), float(objective.mean())

        def value(some: Tensor, v: Tensor = v) -> Tensor:
            return v[(some.long() << powers).sum(-1)]

        row: Row = {"seed": seed, "accuracy": accuracy, "best": best, "mean": mean}
        for name in SAMPLERS:
            found = [
                surrogate(
                    value, 16, diabat.sampler(name), penalty=PENALTY, evaluations=EVALUATIONS, seed=k
                ).objective
                for k in range(5)
            ]
            row[name] = (sum(found) / len(found) - mean) / (best - mean)
        drawn = [float(objective[torch.randperm(len(v))[:EVALUATIONS]].max()) for _ in range(20)]
        row["random"] = (sum(drawn) / len(drawn) - mean) / (best - mean)
        everyone = torch.ones(16, dtype=torch.bool)
        held = sized_coalitions(everyone, 2000, 10_000 + seed, stratified=True)
        for count in (200, 550):
            fitted = sized_coalitions(everyone, count, seed, stratified=True)
            for kind, pairs in (("linear", False), ("pairs", True)):
                model_of = fit_surrogate(fitted, value(fitted), pairs=pairs)
                row[f"R² {kind}, {count}"] = model_of.explained(held, value(held))
        rows.append(row)
    return rows


def many(seeds: int) -> list[Row]:
    """24 players of three layers, 200 evaluations: two samplers, random coalitions of all sizes, and greedy removal."""
    rows = []
    for seed in range(seeds):
        model, _ = decoder(seed)
        players = game(model, [1, 2, 3], 8, seed)
        row: Row = {"seed": seed}
        for name in ("tempering", "exact"):  # an anneal of 24 qubits takes minutes
            row[name] = surrogate(
                players.value, 24, diabat.sampler(name), penalty=PENALTY, evaluations=EVALUATIONS, seed=seed
            ).objective
        drawn = sized_coalitions(torch.ones(24, dtype=torch.bool), EVALUATIONS, seed, stratified=True)
        row["random"] = float((players.value(drawn) - PENALTY * drawn.sum(-1)).max())
        row["greedy"], row["evaluations of greedy"] = greedy(players)
        rows.append(row)
    return rows


def greedy(players: HeadCoalitions) -> tuple[float, int]:
    """Remove the player whose absence gains most, as long as one gains."""
    current = torch.ones(1, players.num_players, dtype=torch.bool)
    best, evaluations = float(players.value(current)) - PENALTY * players.num_players, 1
    while bool(current.any()):
        inside = current[0].nonzero()[:, 0]
        fewer = current.repeat(len(inside), 1)
        fewer[torch.arange(len(inside)), inside] = False
        objective = players.value(fewer) - PENALTY * fewer.sum(-1)
        evaluations += len(inside)
        if float(objective.max()) <= best:
            break
        best, current = float(objective.max()), fewer[int(objective.argmax())][None]
    return best, evaluations


def main() -> None:
    """Print both tables."""
    command = parser(__doc__)
    command.add_argument("--seeds", type=int, default=3)
    options = command.parse_args()
    torch.set_num_threads(1)
    title = f"λ = {PENALTY}, {EVALUATIONS} evaluations"
    share = "share of the way from the mean to the best of all"
    report(f"16 players, {title}: {share}", table(options.seeds), as_json=options.json)
    report(f"24 players, {title}: v(S) - λ|S| found", many(options.seeds), as_json=options.json)


if __name__ == "__main__":
    main()
