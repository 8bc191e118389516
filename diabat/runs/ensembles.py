"""The problems of the section ``fidelity``: random ensembles, and the attention of a trained run."""

from __future__ import annotations

from pathlib import Path

import torch

from diabat.attention import BoltzmannAttention
from diabat.attention.windows import visible_slots
from diabat.config.errors import ConfigError
from diabat.config.loading import load_config
from diabat.config.schema import Config
from diabat.ising import Ising
from diabat.models import Transformer, TransformerOptions
from diabat.runs.build import build_model, build_task
from diabat.studies.ensembles import Ensemble, from_attention
from diabat.training import load_model

_WINDOWS = 16


def build_ensembles(config: Config, *, trust: bool = False) -> list[Ensemble]:
    """Build the problems of ``config.fidelity``; the seed is ``config.seed``.

    Args:
        config: The configuration.
        trust: As for :func:`diabat.config.load_config`, of the run that it names.

    Raises:
        ConfigError: If the checkpoint is not a run of Boltzmann attention, or would have to be trusted.
        CheckpointError: If the checkpoint is damaged.
    """
    options = config.fidelity
    ensembles = options.problems(config.seed)
    if not ensembles and options.checkpoint is None:
        raise ConfigError(
            "fidelity", "expected ensembles, strengths and sizes, or a checkpoint, got an empty list."
        )
    if options.checkpoint is not None:
        ensembles += attention_ensembles(options.checkpoint, seed=config.seed, trust=trust)
    return ensembles


def attention_ensembles(
    run_dir: Path, *, seed: int, trust: bool = False, key: str = "fidelity.checkpoint"
) -> list[Ensemble]:
    """Run a trained model on validation sequences and take the problems of each attention layer.

    Args:
        run_dir: Folder of the run.
        seed: Seed of the choice of sequences.
        trust: As for :func:`diabat.config.load_config`.
        key: Dotted key that names the folder, for errors.

    Raises:
        ConfigError: If the folder holds no run or would have to be trusted, or its model has softmax attention.
        CheckpointError: If the checkpoint is damaged.
    """
    stored = run_dir / "config.json"
    if not stored.is_file():
        raise ConfigError(key, f"expected the folder of a run, got '{run_dir}' without config.json.")
    config = load_config(stored, trust=trust)
    if not isinstance(config.model, TransformerOptions):
        raise ConfigError(key, f"expected a run of a transformer, got '{run_dir}', a classifier of pairs.")
    if config.model.mode == "softmax":
        raise ConfigError(key, f"expected a run with couplings, got '{run_dir}' with model.mode=softmax.")
    task = build_task(config)
    model = build_model(config, task)
    assert isinstance(model, Transformer)
    model.load_state_dict(load_model(run_dir))
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(task.validation), generator=generator)[:_WINDOWS]
    with torch.no_grad():
        model(task.validation.inputs[chosen])
    return [_layer_ensemble(layer, f"layer {i}") for i, layer in enumerate(model.attention_layers(), start=1)]


def _layer_ensemble(layer: BoltzmannAttention, name: str) -> Ensemble:
    fields, couplings = layer.last_fields_and_couplings()
    length = fields.shape[-1]
    visible = torch.ones(length, length, dtype=torch.bool)
    if layer.relative:
        visible = visible_slots(fields.shape[-2], length, None, fields.device)
    elif layer.causal:
        visible = visible.tril()
    ising = Ising(fields, couplings, visible, layer.three_body(length)).detach().to(torch.float64)
    if layer.mode == "J-self":  # the own spin of a query is +1
        own = torch.eye(length, dtype=torch.int8)
        ising = ising.clamp(own[-1] if layer.relative else own)
    return from_attention(
        ising.fields,
        ising.couplings,
        ising.visible,
        ising.three_body,
        windows=_WINDOWS,
        name=f"trained, {name}",
    )
