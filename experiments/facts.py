"""Templated facts with a known truth, so that hallucination is measured exactly (eq. 1-2 of GAME-LoRA).

A world gives each pair of an entity and a relation a law over the values of the relation.  Documents state facts, and
some begin with a note that overrides a fact for the rest of the document.  What comes next after "entity relation" is
therefore a known distribution y*, and with the prediction ŷ of a model E(x) = ½ ‖ŷ(x) - y*(x)‖₁ is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

KINDS = ("seen", "unseen", "contradicted", "probabilistic")
# Tokens before those of entities, relations and values.
PAD, BEGIN, STOP, NOTE = range(4)
_SPECIAL = 4


@dataclass(frozen=True)
class World:
    """Facts of entities x relations: shares of the pairs are unseen or have two values, the others have one."""

    entities: int = 48
    relations: int = 4
    values: int = 12  # of each relation
    unseen: float = 0.2
    probabilistic: float = 0.2
    odds: float = 0.7  # of the first of two values
    noted: float = 0.3  # share of the documents that begin with a note
    facts: int = 6  # of a document
    seed: int = 0

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return _SPECIAL + self.entities + self.relations * (1 + self.values)

    @property
    def length(self) -> int:
        """Tokens of a document with a note; others are padded to it."""
        return 1 + 5 + 4 * self.facts

    def question(self, entity: int, relation: int) -> list[int]:
        """Tokens of "entity relation"."""
        return [_SPECIAL + entity, _SPECIAL + self.entities + relation]

    def value(self, relation: int, index: int) -> int:
        """Token of a value of a relation."""
        return _SPECIAL + self.entities + self.relations + relation * self.values + index

    def statement(self, entity: int, relation: int, index: int) -> list[int]:
        """Tokens of "entity relation value ."."""
        return [*self.question(entity, relation), self.value(relation, index), STOP]

    def drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """Kind of each pair (0 seen, 1 unseen, 2 probabilistic), and P(value | pair), uniform for unseen pairs."""
        random = np.random.default_rng([self.seed, 0])
        count, shape = self.entities * self.relations, (self.entities, self.relations)
        kinds, order = np.zeros(count, dtype=np.int64), random.permutation(count)
        ends = round(self.unseen * count), round((self.unseen + self.probabilistic) * count)
        kinds[order[: ends[0]]], kinds[order[ends[0] : ends[1]]] = 1, 2
        first = random.integers(self.values, size=shape)
        second = (first + random.integers(1, self.values, size=shape)) % self.values
        one, two = np.eye(self.values)[first], np.eye(self.values)[second]
        kinds = kinds.reshape(shape)
        laws = np.where((kinds == 2)[..., None], self.odds * one + (1 - self.odds) * two, one)
        return kinds, np.where((kinds == 1)[..., None], 1 / self.values, laws)

    def pairs(self, kind: str) -> np.ndarray:
        """Pairs (entity, relation) of a kind, [N, 2]; contradicted pairs are the seen ones, behind another note."""
        number = {"seen": 0, "contradicted": 0, "unseen": 1, "probabilistic": 2}[kind]
        return np.argwhere(self.drawn()[0] == number)


def documents(
    world: World, count: int, seed: int, pairs: np.ndarray | None = None
) -> list[dict[str, Tensor]]:
    """Documents as examples for a Trainer: ``input_ids``, ``attention_mask``, ``labels``, each int64 [length].

    Each states facts drawn from ``pairs`` [N, 2], by default all that are not unseen.  With probability ``noted`` it
    begins with "note entity relation value ." of a random value, and states that pair again with this value.
    """
    random = np.random.default_rng([seed, 1])
    known = np.concatenate([world.pairs("seen"), world.pairs("probabilistic")]) if pairs is None else pairs
    laws, rows = world.drawn()[1], []
    for _ in range(count):
        stated = known[random.integers(len(known), size=world.facts)]
        values = [int(random.choice(world.values, p=laws[e, r])) for e, r in stated]
        tokens = [BEGIN]
        if random.random() < world.noted:
            e, r = stated[random.integers(world.facts)]
            noted = int(random.integers(world.values))
            tokens += [NOTE, *world.statement(e, r, noted)]
            values = [noted if (pair == (e, r)).all() else v for pair, v in zip(stated, values, strict=True)]
        for (e, r), value in zip(stated, values, strict=True):
            tokens += world.statement(e, r, value)
        ids = torch.tensor(tokens + [PAD] * (world.length - len(tokens)))
        mask = torch.arange(world.length) < len(tokens)
        rows.append({"input_ids": ids, "attention_mask": mask.long(), "labels": ids.where(mask, -100)})
    return rows


def probes(world: World, kind: str) -> tuple[Tensor, Tensor]:
    """Prompts [N, T], one per pair of a kind, "begin [note entity relation other .] entity relation", and y* [N, V].

    A contradicted pair has a note with a value that is not its own; the note is then the truth.
    """
    random, laws = np.random.default_rng([0, 2]), world.drawn()[1]
    prompts, truth = [], []
    for e, r in world.pairs(kind):
        law, tokens = laws[e, r], [BEGIN]
        if kind == "contradicted":
            other = int((law.argmax() + random.integers(1, world.values)) % world.values)
            tokens += [NOTE, *world.statement(e, r, other)]
            law = np.eye(world.values)[other]
        prompts.append([*tokens, *world.question(e, r)])
        row = np.zeros(world.vocabulary)
        row[world.value(r, 0) : world.value(r, 0) + world.values] = law
        truth.append(row)
    return torch.tensor(prompts), torch.from_numpy(np.array(truth))


@torch.no_grad()
def deviations(model: Any, world: World, names: Tensor | None = None) -> dict[str, Tensor]:
    """E(x) of a causal language model by kind of probe, float64 [N].

    ``names`` are the model's tokens for those of the world, int64 [vocabulary]; what it gives to others is wrong.
    """
    errors = {}
    model.eval()
    for kind in KINDS:
        prompts, truth = probes(world, kind)
        prompts = prompts if names is None else names[prompts]
        predicted = model(input_ids=prompts, logits_to_keep=1).logits[:, -1].double().softmax(-1)
        named = predicted if names is None else predicted[:, names]
        errors[kind] = ((named - truth).abs().sum(1) + 1 - named.sum(1)) / 2
    return errors


def renamed(rows: list[dict[str, Tensor]], names: Tensor) -> list[dict[str, Tensor]]:
    """Documents in the tokens of a model, given for those of the world, int64 [vocabulary]."""
    return [
        {**row, "input_ids": names[row["input_ids"]],
         "labels": names[row["labels"].clamp(min=0)].where(row["labels"] >= 0, -100)}
        for row in rows
    ]  # fmt: skip
