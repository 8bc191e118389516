"""States in which a model is evaluated: as it is, calibrated, calibrated otherwise for comparison, with an adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from diabat.attention.heads.calibration import Calibration
from diabat.attention.heads.decoder import Site
from diabat.checks import ArgumentError
from diabat.huggingface.adapters import adapter_applied, adapter_digest
from diabat.huggingface.gac import disable_gac, enable_gac, enabled_calibration

OFF, ON, ALL_HEADS, RANDOM = "off", "calibrated", "all heads", "random"


@dataclass(frozen=True)
class State:
    """A state of the model.

    Attributes:
        name: As in the report.
        calibration: What is calibrated; None if nothing is.
        control: Whether it is one of several random groups.
        adapter: Folder of a LoRA adapter; None for the model without.
        digest: Checksum of the adapter.
    """

    name: str
    calibration: Calibration | None
    control: bool = False
    adapter: Path | None = None
    digest: str | None = None

    @property
    def key(self) -> str:
        """The same text for the same calibration or adapter, whatever its name."""
        if self.adapter is not None:
            return json.dumps({"adapter": self.digest})
        content = None if self.calibration is None else self.calibration.as_dict()
        return json.dumps(content, sort_keys=True)


def states_of(
    calibration: Calibration | None,
    sites: Mapping[int, Site],
    *,
    all_heads: bool = False,
    random_groups: int = 0,
    seed: int = 0,
) -> list[State]:
    """The model as it is, calibrated, and the controls that are asked for.

    Args:
        calibration: None for the model as it is alone.
        sites: Attention by layer.
        all_heads: Also calibrate all heads of the layers.
        random_groups: Number of calibrations with salient groups drawn at random, as large in every layer.
        seed: Seed of the groups.

    Raises:
        ArgumentError: If a control is asked for and there is no calibration, or the model has no such layer.
    """
    states = [State(OFF, None)]
    if calibration is None:
        if all_heads or random_groups:
            name = "all_heads" if all_heads else "random_groups"
            raise ArgumentError(name, "expected a calibration to compare with, got none.")
        return states
    for layer in calibration.salient:
        if layer not in sites:
            raise ArgumentError(
                "calibration",
                f"expected layers among {', '.join(map(str, sites))} of this model, got {layer}.",
            )
    states.append(State(ON, calibration))
    if all_heads:
        states.append(State(ALL_HEADS, replace(calibration, salient={k: () for k in calibration.salient})))
    generator = torch.Generator().manual_seed(seed)
    for k in range(random_groups):
        salient = {
            layer: _random(sites[layer], heads, generator) for layer, heads in calibration.salient.items()
        }
        states.append(State(f"random group {k}", replace(calibration, salient=salient), control=True))
    return states


def adapter_states(model: Any, adapters: Sequence[Path]) -> list[State]:
    """The model with each of several adapters, which are not calibrated.

    Every adapter is tried once, so that one that does not fit is refused before anything is measured.

    Raises:
        ArgumentError: If an adapter does not fit the model, or is given twice.
    """
    states = [State(str(folder), None, adapter=folder, digest=adapter_digest(folder)) for folder in adapters]
    for state in states:
        if state.name in (OFF, ON, ALL_HEADS) or [s.name for s in states].count(state.name) > 1:
            raise ArgumentError(
                "adapter",
                f"expected different folders, not named as a state of the report, got '{state.name}'.",
            )
        with entered(model, state):
            pass
    return states


def _random(site: Site, heads: Any, generator: torch.Generator) -> list[int]:
    """As many heads at random; whole key/value groups if the heads are whole groups."""
    size = site.heads // site.groups
    players = {head // size for head in heads}
    if len(players) * size != len(heads):
        size, players = 1, set(heads)
    drawn = torch.randperm(site.heads // size, generator=generator)[: len(players)].tolist()
    return [player * size + i for player in drawn for i in range(size)]


@contextmanager
def entered(model: Any, state: State) -> Iterator[None]:
    """Put the model into a state, and back into the one it was in."""
    before = enabled_calibration(model)
    _enable(model, state.calibration)
    try:
        with nullcontext() if state.adapter is None else adapter_applied(model, state.adapter):
            yield
    finally:
        _enable(model, before)


def _enable(model: Any, calibration: Calibration | None) -> None:
    if calibration is None:
        disable_gac(model)
    else:
        enable_gac(model, calibration)
