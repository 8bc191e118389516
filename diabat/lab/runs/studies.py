"""Studies that a configuration describes, and the problems of a trained run for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from diabat.attention.coupled import recording
from diabat.documents.errors import ConfigError, of_section
from diabat.ising.problem_files import read_problem
from diabat.lab.config.loading import load_config
from diabat.lab.config.schema import Config
from diabat.lab.runs.build import build_sampler, use_threads
from diabat.lab.runs.finished import load_run
from diabat.lab.studies.ensembles import Ensemble, coupling_strength, from_attention
from diabat.lab.training.folder import CONFIG

_WINDOWS = 16


def compared(config: Config, *, trust: bool = False) -> dict[str, Any]:
    """Backends and problems of the section ``fidelity``, with those of its checkpoint, and the reads.

    Raises:
        ConfigError: If a backend refuses its options, there are no problems, the file of the problem cannot be read,
            or the checkpoint is not a run of Boltzmann attention, or would have to be trusted.
        CheckpointError: If the checkpoint is damaged.
    """
    use_threads(config)
    options, named = config.fidelity, config.fidelity.backends.items()
    backends = {label: build_sampler(choice, f"fidelity.backends.{label}") for label, choice in named}
    if options.problem is None:
        with of_section("fidelity", {"weights": "fidelity.token_weights"}):
            ensembles = options.problems(config.seed)
    else:
        with of_section("fidelity", {None: "fidelity.problem"}):
            ising = read_problem(options.problem, beta=options.beta).ising
        ensembles = [Ensemble(options.problem.name, coupling_strength(ising), ising)]
    if options.checkpoint is not None:
        ensembles += attention_ensembles(options.checkpoint, seed=config.seed, trust=trust)
    elif not ensembles:
        raise ConfigError("fidelity", "ensembles, strengths and sizes, or a checkpoint", "an empty list")
    return {"backends": backends, "ensembles": ensembles, "num_reads": options.num_reads, "seed": config.seed}


def attention_ensembles(
    run_dir: Path, *, seed: int, trust: bool = False, key: str = "fidelity.checkpoint"
) -> list[Ensemble]:
    """Run a trained model on validation sequences drawn by seed, and take the problems of each attention layer.

    ``key`` names the folder in a ConfigError: it holds no run, would have to be trusted (see
    :func:`diabat.lab.config.load_config`), or its model has softmax attention.  CheckpointError if that is damaged.
    """
    stored = run_dir / CONFIG
    if not stored.is_file():
        raise ConfigError(key, "the folder of a run", f"'{run_dir}' without {CONFIG}")
    model = load_config(stored, trust=trust).model
    if not model.uses_sampler:
        raise ConfigError(key, "a run with couplings", f"'{run_dir}' whose attention is {model.described}")
    run = load_run(run_dir, ["device=cpu"], trust=trust)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(run.task.validation), generator=generator)[:_WINDOWS]
    layers = run.model.attention_layers()
    with torch.no_grad(), recording(layers):
        run.model(run.task.validation.inputs[chosen])
        problems = [layer.last_problem().to(torch.float64) for layer in layers]
    return [from_attention(one, name=f"trained, layer {i}") for i, one in enumerate(problems, start=1)]
