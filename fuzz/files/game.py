"""Damaged states of GAME-LoRA: a sentence that names them, or a state to go on from with finite numbers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from diabat.huggingface import GameLoss, GameOptions
from fuzz.decoders import LAYERS, VOCABULARY, decoder
from fuzz.dice import Dice
from fuzz.files.mutations import tampered
from fuzz.outcome import REFUSALS, demand, naming

OPTIONS = (
    GameOptions(layers=[0]),
    GameOptions(
        layers=list(range(LAYERS)), losses=["ldb", "abt", "entropy"], combination="sum", rho="last_step"
    ),
)


@cache
def losses() -> tuple[GameLoss, ...]:
    """Losses around the decoder, one step old."""
    return tuple(_stepped(options) for options in OPTIONS)


def game_state(dice: Dice, folder: Path) -> None:
    """A damaged state: a sentence with its name and the losses as they were, or a state to go on with."""
    game = dice.pick(losses())
    before = game.state_dict()
    changed = tampered(dice, before)
    try:
        try:
            with naming("game_state"):
                game.load_state_dict(changed)
        except REFUSALS:
            demand(game.state_dict() == before, "refusal: expected the state as it was")
            raise
        _go_on(game)  # or a sentence: products that no gradients have
    finally:
        game.load_state_dict(before)


def _stepped(options: GameOptions) -> GameLoss:
    game = GameLoss(decoder().train(), options, total_steps=10)
    _go_on(game)
    game.step()
    decoder().eval()
    return game


def _go_on(game: GameLoss) -> None:
    """One backward pass of a small batch; gradients must be finite."""
    model = decoder().train()
    tokens = torch.arange(12).reshape(2, 6) % VOCABULARY
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    try:
        with game.capture(batch):
            cross_entropy = model(**batch).loss
        loss = game.loss(cross_entropy)
        loss.backward()
        demand(bool(loss.isfinite()), f"loss: expected a finite number, got {loss}")
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        demand(all(bool(g.isfinite().all()) for g in gradients), "gradients: expected finite numbers")
    finally:
        model.zero_grad()
        model.eval()
