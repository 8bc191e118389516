"""Groups of parameters for optimisers: couplings with a rate of their own, and without decay."""

from __future__ import annotations

from typing import Any

from torch import nn

from diabat.checks import ArgumentError, check_positive, is_number
from diabat.huggingface.boltzmann.attention import NAME
from diabat.huggingface.boltzmann.heads import BoltzmannHeads


def parameter_groups(
    model: nn.Module, lr: float, coupling_lr: float, weight_decay: float = 0.01
) -> list[dict[str, Any]]:
    """Groups of the trained parameters, for an optimiser of torch.

    ``Trainer(model, args, optimizers=(torch.optim.AdamW(parameter_groups(model, 2e-5, 3e-3)), None))`` takes its
    schedule from ``args`` and scales all rates by it.

    Args:
        model: A converted model, or a model of peft around one.
        lr: Rate of all parameters but the couplings.
        coupling_lr: Rate of the couplings (and of parameters that a backend learns); they are sums of few terms, and
            rates of about 3e-3 moved them in our runs, where 3e-4 did not.
        weight_decay: Of matrices; vectors (biases, norms) and couplings do not decay.

    Returns:
        Up to three groups, with the key ``name``: decayed, other, couplings.

    Raises:
        ArgumentError: If a rate is invalid, or no coupling is trained.
    """
    check_positive("lr", lr)
    check_positive("coupling_lr", coupling_lr)
    if not is_number(weight_decay) or not 0 <= weight_decay < float("inf"):
        raise ArgumentError("weight_decay", f"expected a finite number >= 0, got {weight_decay!r}.")
    heads = [part for part in model.modules() if isinstance(part, BoltzmannHeads)]
    if not heads:
        raise ArgumentError(
            "model",
            f"expected a model with couplings (diabat.huggingface.convert), got {type(model).__name__}.",
        )
    couplings = [p for part in heads for p in part.parameters() if p.requires_grad]
    if not couplings:
        raise ArgumentError(
            "model",
            f"expected couplings that are trained, got frozen ones; adapters of peft need modules_to_save=[{NAME!r}].",
        )
    own = {id(p) for p in couplings}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    groups = [
        {"name": "decayed", "params": [p for p in others if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
        {"name": "other", "params": [p for p in others if p.ndim < 2], "lr": lr, "weight_decay": 0.0},
        {"name": "couplings", "params": couplings, "lr": coupling_lr, "weight_decay": 0.0},
    ]  # fmt: skip
    return [group for group in groups if group["params"]]
