"""Templated facts with a known truth, so that hallucination is measured exactly (eq. 1-2 of GAME-LoRA).

A world gives each pair of an entity and a relation a law over the values of the relation.  Documents state facts, and
some begin with a note that overrides a fact for the rest of the document.  What comes next after "entity relation" is
therefore a known distribution y*, and with the prediction ŷ of a model

    E(x) = ½ ‖ŷ(x) - y*(x)‖₁,   Pr(H_δ) = share of x with E(x) >= δ

are exact, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count

Kind = Literal["seen", "unseen", "contradicted", "probabilistic"]
KINDS: tuple[Kind, ...] = ("seen", "unseen", "contradicted", "probabilistic")
# Tokens before those of entities, relations and values.
PAD, BEGIN, STOP, NOTE = range(4)
_SPECIAL = 4


@dataclass(frozen=True)
class World:
    """Facts of ``entities`` x ``relations``, drawn from a seed.

    Shares of the pairs are left out of all documents (unseen) or have two values (probabilistic); the others have one.

    Attributes:
        entities: Number of entities.
        relations: Number of relations.
        values: Values of each relation; every relation has its own.
        unseen: Share of the pairs that no document states.
        probabilistic: Share of the pairs with two values, the first with probability ``odds``.
        odds: Probability of the first of two values.
        noted: Probability that a document begins with a note.
        facts: Facts of a document, the note not counted.
        seed: Seed of the facts.
    """

    entities: int = 48
    relations: int = 4
    values: int = 12
    unseen: float = 0.2
    probabilistic: float = 0.2
    odds: float = 0.7
    noted: float = 0.3
    facts: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("entities", "relations", "values", "facts"):
            check_count(name, getattr(self, name), least=2)
        for name in ("unseen", "probabilistic", "odds", "noted"):
            if not 0 <= getattr(self, name) <= 1:
                raise ArgumentError(name, f"expected a number in 0 .. 1, got {getattr(self, name)!r}.")
        if self.unseen + self.probabilistic >= 1:
            raise ArgumentError(
                "unseen",
                f"expected less than 1 together with probabilistic, got {self.unseen + self.probabilistic}.",
            )

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return _SPECIAL + self.entities + self.relations * (1 + self.values)

    @property
    def length(self) -> int:
        """Tokens of a document with a note; others are padded to it."""
        return 1 + 5 + 4 * self.facts

    def entity(self, index: int) -> int:
        """Token of an entity."""
        return _SPECIAL + index

    def relation(self, index: int) -> int:
        """Token of a relation."""
        return _SPECIAL + self.entities + index

    def value(self, relation: int, index: int) -> int:
        """Token of a value of a relation."""
        return _SPECIAL + self.entities + self.relations + relation * self.values + index

    def laws(self) -> np.ndarray:
        """P(value | entity, relation) of documents without a note, float64 [entities, relations, values].

        Pairs that no document states have the uniform law, from which the facts were drawn.
        """
        kinds, first, second = self._drawn()
        laws = np.full((self.entities, self.relations, self.values), 1 / self.values)
        rows, columns = np.nonzero(kinds == 0)
        laws[rows, columns] = np.eye(self.values)[first[rows, columns]]
        rows, columns = np.nonzero(kinds == 2)
        one, two = (np.eye(self.values)[x[rows, columns]] for x in (first, second))
        laws[rows, columns] = self.odds * one + (1 - self.odds) * two
        return laws

    def pairs(self, kind: Kind) -> np.ndarray:
        """Pairs (entity, relation) of a kind, [N, 2].

        Contradicted pairs are the seen ones, in prompts whose note has another value.
        """
        code = {"seen": 0, "contradicted": 0, "unseen": 1, "probabilistic": 2}[kind]
        return np.argwhere(self._drawn()[0] == code)

    def _drawn(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kind (0 seen, 1 unseen, 2 probabilistic), first and second value of each pair."""
        random = np.random.default_rng([self.seed, 0])
        count = self.entities * self.relations
        kinds = np.zeros(count, dtype=np.int64)
        order = random.permutation(count)
        ends = round(self.unseen * count), round((self.unseen + self.probabilistic) * count)
        kinds[order[: ends[0]]], kinds[order[ends[0] : ends[1]]] = 1, 2
        shape = self.entities, self.relations
        first = random.integers(self.values, size=shape)
        second = (first + random.integers(1, self.values, size=shape)) % self.values
        return kinds.reshape(shape), first, second


def documents(
    world: World, count: int, seed: int, pairs: np.ndarray | None = None
) -> list[dict[str, Tensor]]:
    """Documents as examples for a Trainer: ``input_ids``, ``attention_mask``, ``labels``, each int64 [length].

    Each states facts drawn from ``pairs`` [N, 2], by default all that are not unseen.  With probability ``noted`` it
    begins with "note entity relation value ." of a random value, and states that pair again with this value.
    """
    check_count("count", count)
    random = np.random.default_rng([seed, 1])
    known = np.concatenate([world.pairs("seen"), world.pairs("probabilistic")]) if pairs is None else pairs
    laws = world.laws()
    found = []
    for _ in range(count):
        stated = known[random.integers(len(known), size=world.facts)]
        drawn = [int(random.choice(world.values, p=laws[e, r])) for e, r in stated]
        tokens = [BEGIN]
        if random.random() < world.noted:
            e, r = stated[random.integers(world.facts)]
            other = int(random.integers(world.values))
            tokens += [NOTE, *_statement(world, e, r, other)]
            same = (stated == (e, r)).all(1)
            drawn = [other if is_same else value for value, is_same in zip(drawn, same, strict=True)]
        for (e, r), value in zip(stated, drawn, strict=True):
            tokens += _statement(world, e, r, value)
        found.append(_example(tokens, world.length))
    return found


@dataclass(frozen=True)
class Probes:
    """Prompts of one kind and the true distributions of the next token.

    Attributes:
        kind: The kind.
        prompts: int64 [N, T], without padding.
        truth: y*, float64 [N, vocabulary].
    """

    kind: Kind
    prompts: Tensor
    truth: Tensor


def probes(world: World, kind: Kind, seed: int = 0) -> Probes:
    """One prompt per pair of a kind: "begin [note entity relation other .] entity relation".

    A contradicted pair has a note with a value that is not its own; the note is then the truth.
    """
    if kind not in KINDS:
        raise ArgumentError("kind", f"expected one of {', '.join(KINDS)}, got {kind!r}.")
    random = np.random.default_rng([seed, 2])
    laws, prompts, truth = world.laws(), [], []
    for e, r in world.pairs(kind):
        law, tokens = laws[e, r], [BEGIN]
        if kind == "contradicted":
            own = int(law.argmax())
            other = int((own + random.integers(1, world.values)) % world.values)
            tokens += [NOTE, *_statement(world, e, r, other)]
            law = np.eye(world.values)[other]
        prompts.append([*tokens, world.entity(e), world.relation(r)])
        row = np.zeros(world.vocabulary)
        row[world.value(r, 0) : world.value(r, 0) + world.values] = law
        truth.append(row)
    if not prompts:
        raise ArgumentError("kind", f"expected a world with pairs that are {kind}, got one without.")
    return Probes(kind, torch.tensor(prompts), torch.from_numpy(np.array(truth)))


@dataclass(frozen=True)
class Deviation:
    """How far predictions are from the truth, over the probes of one kind.

    Attributes:
        deviation: E(x), float64 [N].
        accuracy: Share of probes whose most probable prediction is a most probable truth.
        cross_entropy: Mean of -Σ y* log ŷ, nats.
    """

    deviation: Tensor
    accuracy: float
    cross_entropy: float

    @property
    def mean(self) -> float:
        """Mean of E."""
        return self.deviation.mean().item()

    def exceeds(self, delta: float) -> float:
        """Pr(E >= δ)."""
        if not 0 < delta <= 1:
            raise ArgumentError("delta", f"expected a number in (0, 1], got {delta!r}.")
        return (self.deviation >= delta).double().mean().item()


def deviation(prediction: Tensor, truth: Tensor) -> Deviation:
    """Compare log-probabilities [N, V] with the truth [N, V].

    Raises:
        ArgumentError: The shapes differ.
    """
    if prediction.shape != truth.shape or truth.ndim != 2:
        raise ArgumentError(
            "prediction", f"expected [N, V] as the truth {list(truth.shape)}, got {list(prediction.shape)}."
        )
    logs = prediction.double()
    best = truth.gather(1, logs.argmax(1, keepdim=True))[:, 0] >= truth.max(1).values - 1e-12
    # 0 log 0 = 0, also where a prediction is 0.
    terms = torch.where(truth > 0, truth * logs, torch.zeros_like(logs))
    return Deviation(
        (logs.exp() - truth).abs().sum(1) / 2, best.double().mean().item(), -terms.sum(1).mean().item()
    )


@torch.no_grad()
def judge(model: Any, world: World, kinds: Sequence[Kind] = KINDS) -> Mapping[Kind, Deviation]:
    """Deviations of a causal language model by kind of probe; it runs in evaluation mode and is left as it was."""
    was = model.training
    model.eval()
    try:
        found = {}
        for kind in kinds:
            asked = probes(world, kind)
            logits = model(input_ids=asked.prompts.to(model.device)).logits[:, -1].double().cpu()
            found[kind] = deviation(logits.log_softmax(-1), asked.truth)
        return found
    finally:
        model.train(was)


def _statement(world: World, entity: int, relation: int, value: int) -> list[int]:
    return [world.entity(entity), world.relation(relation), world.value(relation, value), STOP]


def _example(tokens: list[int], length: int) -> dict[str, Tensor]:
    ids = torch.full((length,), PAD)
    ids[: len(tokens)] = torch.tensor(tokens)
    mask = (torch.arange(length) < len(tokens)).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, -100)}
