"""``diabat heads train``: a configuration of GAME-LoRA, built and trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError, did_you_mean
from diabat.config.game import GameConfig, GameLora, game_config_yaml
from diabat.extras import extra
from diabat.files import replace_file
from diabat.huggingface.game import game_trainer
from diabat.huggingface.loading import load_decoder
from diabat.runs.heads.texts.packed import training_examples

ADAPTER = "adapter"
CONFIG = "game.yaml"


def train_heads(
    config: GameConfig, *, resume: bool = False, local_files_only: bool = False, progress: bool = False
) -> dict[str, Any]:
    """Train, and save the adapter into ``output/adapter``.

    Args:
        config: What to train.
        resume: Go on from the newest checkpoint in ``output``.
        local_files_only: Use models that are on the disk; do not ask the hub.
        progress: Show the bar and the lines of the Trainer.

    Returns:
        Folder of the adapter, steps, and the last values that were logged of each kind.

    Raises:
        ArgumentError: A part of the configuration does not fit the model, or the folder is not the one expected.
        DataError: The texts cannot be read.
        ImportError: If the extra ``hf`` is not installed.
    """
    output, former = config.output, config.output / CONFIG
    if not resume and output.exists() and any(output.iterdir()):
        raise ArgumentError(
            "output", f"expected a new or empty folder, got '{output}'; resume it, or name another."
        )
    if resume and (not former.is_file() or former.read_text(encoding="utf-8") != game_config_yaml(config)):
        raise ArgumentError(
            "output", f"expected a run of this configuration to resume, got none in '{output}'."
        )
    arguments = _arguments(config, progress)
    model, tokenizer = load_decoder(config.model, dtype=config.dtype, local_files_only=local_files_only)
    if tokenizer is None:
        raise ArgumentError("model", f"expected a model with a tokenizer, got none in '{config.model}'.")
    examples = training_examples(config.data, tokenizer)
    extra("transformers").set_seed(arguments.seed)  # of the adapters
    adapted = extra("peft").get_peft_model(model, lora_config(config.lora, model.config.num_hidden_layers))
    trainer = game_trainer()(
        adapted, arguments, train_dataset=examples, processing_class=tokenizer, game=config.game
    )
    if not progress:  # it prints lines on stdout where there is no bar
        trainer.remove_callback(extra("transformers").PrinterCallback)
    output.mkdir(parents=True, exist_ok=True)
    replace_file(former, game_config_yaml(config).encode())
    trainer.train(resume_from_checkpoint=True if resume else None)
    trainer.save_model(str(output / ADAPTER))
    trainer.save_state()
    last: dict[str, float] = {}
    for line in trainer.state.log_history:
        last |= {key: value for key, value in line.items() if key == "loss" or key.startswith("game/")}
    return {"adapter": str(output / ADAPTER), "steps": trainer.state.global_step, **last}


def lora_config(options: GameLora, layers: int) -> Any:
    """The adapters of a configuration for a model of so many layers, as peft takes them.

    Raises:
        ArgumentError: A layer is out of range.
    """
    for name, chosen in (
        ("layers", options.layers or ()),
        ("peak", () if options.peak is None else (options.peak,)),
    ):
        if any(layer >= layers for layer in chosen):
            raise ArgumentError(f"lora.{name}", f"expected layers below {layers}, got {max(chosen)}.")
    pattern = {}
    if options.peak is not None:
        alphas = triangular_alphas(layers, options.peak, options.alpha, options.range)
        pattern = {rf"(layers|h)\.{layer}\..*": alpha for layer, alpha in enumerate(alphas)}
    return extra("peft").LoraConfig(
        r=options.r,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=list(options.targets),
        layers_to_transform=None if options.layers is None else list(options.layers),
        alpha_pattern=pattern,
        task_type="CAUSAL_LM",
    )


def triangular_alphas(layers: int, peak: int, mean: float, spread: float) -> list[float]:
    """Alpha by layer: linear from the first layer up to the peak and down to the last, with this mean (table 9).

    The paper gives 7 to 57 with the mean 32; such a triangle with its peak at layer 19 of 24 goes from 8.04 to 58.04.

    Args:
        layers: Number of layers.
        peak: Layer of the largest alpha.
        mean: Mean over layers.
        spread: Largest less least alpha.

    Raises:
        ArgumentError: An alpha would not be positive.
    """
    after = max(layers - 1 - peak, 1)
    heights = [layer / peak if layer < peak else 1 - (layer - peak) / after for layer in range(layers)]
    shift = mean - spread * sum(heights) / layers
    alphas = [shift + spread * height for height in heights]
    if min(alphas) <= 0:
        raise ArgumentError(
            "lora.range", f"expected a range that leaves every alpha positive, got {spread:g}."
        )
    return alphas


def _arguments(config: GameConfig, progress: bool) -> Any:
    """The arguments of the Trainer.

    Raises:
        ArgumentError: A name is unknown, or a value is refused by transformers.
    """
    kind = extra("transformers").TrainingArguments
    known = [field.name for field in dataclasses.fields(kind) if field.init]
    for name in config.trainer:
        if name not in known:
            raise ArgumentError(
                f"trainer.{name}", f"expected an argument of TrainingArguments.{did_you_mean(name, known)}"
            )
    half = extra("transformers.utils").is_torch_bf16_gpu_available()
    settings = {"report_to": [], "disable_tqdm": not progress, "bf16": half, **config.trainer}
    try:
        return kind(str(Path(config.output)), **settings)
    except (TypeError, ValueError) as error:
        raise ArgumentError("trainer", f"expected values that transformers takes, got: {error}") from None
