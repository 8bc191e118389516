"""Damaged states of GAME-LoRA in checkpoints: the state that was written, or a sentence that names it.

A change of a file must be detected.  With a new checksum for the changed content, a state that is valid is taken as it
is, and the model goes on from it with finite numbers.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from diabat.files import seal, to_json
from diabat.huggingface import GameLoss, GameOptions
from diabat.huggingface.game_lora.state import FILE, read_state, write_state
from fuzz.decoders import LAYERS, VOCABULARY, decoder
from fuzz.dice import Dice
from fuzz.files.mutations import damaged, tampered
from fuzz.outcome import REFUSALS, Wrong, demand, naming

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


@cache
def originals() -> tuple[bytes, ...]:
    """Contents of the states."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for game in losses():
            write_state(Path(folder), game.state_dict())
            found.append((Path(folder) / FILE).read_bytes())
    return tuple(found)


def game_state(dice: Dice, folder: Path) -> None:
    """``game_state.json``: the state that was written, or a sentence with its name and the losses as they were."""
    at = dice.integer(0, len(OPTIONS) - 1)
    game, content = losses()[at], originals()[at]
    resealed = dice.chance(0.6)
    if resealed:
        document = json.loads(content)
        document.pop("sha256")
        content = _sealed(tampered(dice, document))
    else:
        content = damaged(dice, content, originals())
    (folder / FILE).write_bytes(content)
    before = to_json(game.state_dict())
    try:
        try:
            with naming("game_state"):
                game.load_state_dict(read_state(folder))
        except REFUSALS:
            demand(to_json(game.state_dict()) == before, "refusal: expected the state as it was")
            raise
        after = game.state_dict()
        demand(resealed or to_json(after) == before, f"state: expected the one that was written, got {after}")
        try:
            _go_on(game)
        except REFUSALS as error:
            raise Wrong(f"step: expected an accepted state to go on, got {error}") from error
    finally:
        game.load_state_dict(json.loads(before))


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


def _sealed(document: Any) -> bytes:
    if not isinstance(document, dict):
        return json.dumps(document).encode()
    try:
        return seal(document)
    except (ValueError, TypeError):  # NaN, which JSON does not hold
        return json.dumps(document).encode()
