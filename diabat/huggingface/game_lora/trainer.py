"""Trainer of transformers with the losses of GAME-LoRA: a mixin that returns one scalar from ``compute_loss``.

What a Trainer does with that scalar (accumulation, mixed precision, clipping, processes, checkpoints) stays as it is.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from diabat.attention.heads.interaction.targets import IGNORED
from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.huggingface.game_lora.loss import GameLoss
from diabat.huggingface.game_lora.options import GameOptions
from diabat.huggingface.game_lora.state import read_state, write_state
from diabat.samplers.base import UnsupportedError


class GameMixin:
    """Put before a class that is a Trainer: ``class GameSFTTrainer(GameMixin, SFTTrainer): pass``.

    The loss that is logged, and compared between runs, is the cross-entropy; the losses on heads, Γ and the weights of
    the gradients are logged beside it as ``game/...``.

    Args:
        args: Those of the Trainer.
        game: Options of GAME-LoRA.
        kwargs: Those of the Trainer.

    Attributes:
        game: The losses with their state, a `GameLoss`.

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
            raise ArgumentError("game", f"expected GameOptions, got {type(game).__name__}.")
        base: Any = super()
        base.__init__(*args, **kwargs)
        _check_trainer(self)
        self.game = GameLoss(
            self.model, game, total_steps=1
        )  # the number of steps is known when training begins
        base.add_callback(_callback(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does; the state of the game is restored together with the checkpoint.

        Raises:
            ArgumentError: The checkpoint has no state of the game, or one of other options.
        """
        self.game.reset()
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = extra("transformers.trainer_utils").get_last_checkpoint(self.args.output_dir)
        if folder:
            self.game.load_state_dict(read_state(Path(folder)))
        base: Any = super()
        return base.train(resume_from_checkpoint, *args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Cross-entropy of the Trainer, with the gradient of the game while the model is in training."""
        base: Any = super()
        if not model.training:
            return base.compute_loss(
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
            )
        _check_targets(inputs, num_items_in_batch)
        # The Trainer may change the mapping, for example take the labels out.
        with self.game.capture(dict(inputs)):
            found = base.compute_loss(
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
            )
        cross_entropy, *rest = found if return_outputs else (found,)
        micro_batches = self.current_gradient_accumulation_steps
        # Without a number of items the loss is a mean, which training_step divides by the micro-batches.
        divided = 1 if self._is_scaled(num_items_in_batch) else micro_batches
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

    def _is_scaled(self, num_items_in_batch: Tensor | int | None) -> bool:
        """Whether the loss of a micro-batch is already divided, so that training_step does not divide it."""
        given = self.loss_is_scaled_for_ga
        if given is not None:
            return bool(given)
        by_items = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return bool(by_items or self.compute_loss_func is not None)


def game_trainer() -> Any:
    """The class `GameTrainer`: the mixin and ``transformers.Trainer``.

    Raises:
        ImportError: If the extra ``hf`` is not installed.
    """
    return _built()


@cache
def _built() -> Any:
    class GameTrainer(GameMixin, extra("transformers").Trainer):  # type: ignore[misc]
        """Trainer of transformers with the losses of GAME-LoRA.

        GameTrainer(get_peft_model(model, lora), args, train_dataset=data, game=GameOptions(layers=[19])).train()
        """

    GameTrainer.__module__, GameTrainer.__qualname__ = __name__, "GameTrainer"
    return GameTrainer


def _callback(trainer: Any) -> Any:
    """The callback that counts steps, and saves the state of the game in checkpoints; it has no state itself."""

    class GameCallback(extra("transformers").TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.game.total_steps = state.max_steps
            if state.global_step == 0:  # also after a smaller batch size was tried
                trainer.game.reset()
            if trainer.game.steps != state.global_step:
                raise ArgumentError(
                    "resume_from_checkpoint",
                    f"expected a game state of step {state.global_step}, got one of step {trainer.game.steps}.",
                )

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.game.step()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if args.should_save and not args.save_only_model:
                folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                write_state(folder, trainer.game.state_dict())

    return GameCallback()


def _check_trainer(trainer: Any) -> None:
    args, kind = trainer.args, str(trainer.accelerator.distributed_type.value)
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise UnsupportedError(
            "args", f"expected whole parameters in every process, got {kind}; use torchrun alone."
        )
    if args.n_gpu > 1:
        raise UnsupportedError(
            "args", f"expected one device per process, got {args.n_gpu}; start with torchrun."
        )
    if args.fp16:
        raise UnsupportedError(
            "args.fp16",
            "expected bf16 or float32, got float16, whose gradients underflow without a scaled loss.",
        )
    if args.torch_compile:
        raise UnsupportedError(
            "args.torch_compile", "expected False: hooks on heads are not compiled, got True."
        )
    if trainer.model_init is not None:
        raise UnsupportedError("model_init", "expected a model, got a function that makes one.")


def _check_targets(inputs: dict[str, Any], num_items_in_batch: Tensor | int | None) -> None:
    """Refuse a step without targets, because its cross-entropy has no gradient."""
    labels = inputs.get("shift_labels", inputs.get("labels"))
    if not isinstance(labels, Tensor):
        raise ArgumentError(
            "labels", "expected labels in the batch, which the cross-entropy needs, got none."
        )
    if num_items_in_batch is not None:
        count = int(num_items_in_batch)
    else:
        shifted = labels if "shift_labels" in inputs else labels[..., 1:]
        count = int(shifted.ne(IGNORED).sum())
    if count == 0:
        raise ArgumentError("labels", f"expected one target or more in the batch, got {IGNORED} everywhere.")
