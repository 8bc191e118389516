"""Trainer of transformers with the losses of GAME-LoRA: a mixin that returns one scalar from ``compute_loss``.

What a Trainer does with that scalar (accumulation, mixed precision, clipping, processes, checkpoints) stays as it is.
The state of the game is part of ``trainer_state.json``, the file that a Trainer writes last into a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from diabat.checkpoints import locked
from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.files import read_file
from diabat.heads.lora.loss import GameLoss
from diabat.heads.lora.losses import IGNORED
from diabat.heads.lora.options import GameOptions
from diabat.samplers.capabilities import UnsupportedError

_STATE_FILE = "trainer_state.json"
_CALLBACK = "GameCallback"
_MAX_BYTES = 1 << 28


class GameMixin:
    """Put before a class that is a Trainer: ``class GameSFTTrainer(GameMixin, SFTTrainer): pass``.

    The loss that is logged, and compared between runs, is the cross-entropy; the losses on heads, Γ and the weights of
    the gradients are logged beside it as ``game/...``.

    Its arguments are those of the Trainer, and ``game``, the options of GAME-LoRA.

    Attributes:
        game: The losses with their state.

    Raises:
        ArgumentError: An option does not fit the model.
        UnsupportedError: The Trainer shards parameters, replicates the model in threads, compiles it, or uses float16.
    """

    game: GameLoss
    # Attributes of the Trainer that the mixin is combined with.
    args: Any
    model: Any
    accelerator: Any
    model_init: Any
    compute_loss_func: Any
    current_gradient_accumulation_steps: int
    loss_is_scaled_for_ga: bool | None
    model_accepts_loss_kwargs: bool

    def __init__(self, *args: Any, game: GameOptions, **kwargs: Any) -> None:
        if not isinstance(game, GameOptions):
            raise ArgumentError("game", "GameOptions", type(game).__name__)
        base: Any = super()
        base.__init__(*args, **kwargs)
        _check_trainer(self)
        # The number of steps is known when training begins.
        self.game = GameLoss(self.model, game, total_steps=1)
        base.add_callback(_callback(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does; the state of the game is restored together with the checkpoint.

        ``resume_from_checkpoint`` is a checkpoint; or True for the newest whole one in ``output_dir``, from which a
        training that was killed while it saved goes on.  If there is none, the training begins anew.  ``output_dir`` is
        locked meanwhile.

        Raises:
            ArgumentError: The training is finished, or the checkpoint is not whole or one of other options.
            OutputError: Another training has ``output_dir``, or it cannot be written.
        """
        chosen: Any = resume_from_checkpoint
        base: Any = super()
        folder, first = Path(self.args.output_dir), self.args.process_index == 0
        with locked(folder, "args.output_dir") if first else nullcontext():
            if chosen is True:
                chosen = _newest_whole(folder)
            elif chosen and not _is_whole(Path(chosen)):
                damage = f"whose {_STATE_FILE} is damaged or has no state of the game"
                got = f"'{chosen}', {damage}; True takes the newest that is whole"
                raise ArgumentError("resume_from_checkpoint", "a whole checkpoint of GameTrainer", got)
            return base.train(chosen or None, *args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Cross-entropy of the Trainer, with the gradient of the game while the model is in training."""
        base: Any = super()
        options = {"return_outputs": return_outputs, "num_items_in_batch": num_items_in_batch}
        if not model.training:
            return base.compute_loss(model, inputs, **options)
        _check_targets(inputs, num_items_in_batch)
        # The Trainer may change the mapping, for example take the labels out.
        with self.game.capture(dict(inputs)):
            answer = base.compute_loss(model, inputs, **options)
        cross_entropy, *rest = answer if return_outputs else (answer,)
        micro_batches = self.current_gradient_accumulation_steps
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            by_items = self.model_accepts_loss_kwargs and num_items_in_batch is not None
            scaled = by_items or self.compute_loss_func is not None
        # Without a number of items the loss is a mean, which training_step divides by the micro-batches.
        divided = 1 if scaled else micro_batches
        loss = self.game.loss(
            cross_entropy / divided, micro_batches=micro_batches, last=self.accelerator.sync_gradients
        )
        loss = loss * divided
        return (loss, *rest) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the values of the game to those of training."""
        if "loss" in logs:
            logs |= self.game.metrics()
        base: Any = super()
        base.log(logs, *args, **kwargs)


@cache
def game_trainer() -> Any:
    """The class `GameTrainer`: the mixin and ``transformers.Trainer``."""

    class GameTrainer(GameMixin, extra("transformers").Trainer):  # type: ignore[misc]  # imported late
        """Trainer of transformers with the losses of GAME-LoRA.

        GameTrainer(get_peft_model(model, lora), args, train_dataset=data, game=GameOptions(layers=[19])).train()
        """

    GameTrainer.__module__, GameTrainer.__qualname__ = __name__, "GameTrainer"
    return GameTrainer


def _callback(trainer: Any) -> Any:
    """The callback that counts steps, and hands the state of the game to the Trainer's own."""
    callbacks: Any = extra("transformers.trainer_callback")

    class GameCallback(callbacks.TrainerCallback, callbacks.ExportableState):  # type: ignore[misc]  # imported late
        game: Any = None  # the Trainer sets the attributes of a state where it restores callbacks itself

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"game": trainer.game.state_dict()}}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            game, step, most = trainer.game, state.global_step, state.max_steps
            game.total_steps = most
            game.reset()  # also after a smaller batch size was tried
            if step == 0:
                return
            if step >= most:
                got = f"one that is finished: step {step} of {most}"
                raise ArgumentError("resume_from_checkpoint", "a training to go on with", got)
            game.load_state_dict(state.stateful_callbacks[_CALLBACK]["attributes"]["game"])
            if game.steps != step:
                expected = f"a game state of step {step}"
                raise ArgumentError("resume_from_checkpoint", expected, f"one of step {game.steps}")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.game.step()

    return GameCallback()


def _newest_whole(folder: Path) -> str | None:
    """The whole checkpoint of the most steps."""
    steps = {path.name.removeprefix("checkpoint-"): path for path in folder.glob("checkpoint-*")}
    whole = {int(step): path for step, path in steps.items() if step.isdecimal() and _is_whole(path)}
    return str(whole[max(whole)]) if whole else None


def _is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint has everything: the file that is written last can be read, and has a state of the game."""
    try:
        state = json.loads(read_file(checkpoint / _STATE_FILE, _MAX_BYTES))  # its log may hold NaN
        return isinstance(state["stateful_callbacks"][_CALLBACK]["attributes"]["game"], Mapping)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _check_trainer(trainer: Any) -> None:
    args, kind = trainer.args, str(trainer.accelerator.distributed_type.value)
    refused = {
        "args": kind != "NO" and not kind.startswith("MULTI_")
        and f"expected whole parameters in every process, got {kind}; use torchrun alone.",
        "args.n_gpu": args.n_gpu > 1 and f"expected one device per process, got {args.n_gpu}; start with torchrun.",
        "args.fp16": args.fp16
        and "expected bf16 or float32, got float16, whose gradients underflow without a scaled loss.",
        "args.torch_compile": args.torch_compile and "expected False: hooks on heads are not compiled, got True.",
        "model_init": trainer.model_init is not None and "expected a model, got a function that makes one.",
    }  # fmt: skip
    for name, sentence in refused.items():
        if sentence:
            raise UnsupportedError(name, sentence)


def _check_targets(inputs: dict[str, Any], num_items_in_batch: Tensor | int | None) -> None:
    """Refuse a step without targets, because its cross-entropy has no gradient."""
    labels = inputs.get("shift_labels", inputs.get("labels"))
    if not isinstance(labels, Tensor):
        raise ArgumentError("labels", "labels in the batch, which the cross-entropy needs", "none")
    shifted = labels if "shift_labels" in inputs else labels[..., 1:]
    count = shifted.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    if not int(count):
        raise ArgumentError("labels", "one target or more in the batch", f"{IGNORED} everywhere")
