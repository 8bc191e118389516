"""Comparing the folders of two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.lab.training import load_model


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl without times, which differ between any two runs."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("wall_s", "cpu_s")} for line in lines]


def same_weights(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def assert_same_run(a: Path, b: Path) -> None:
    assert metrics(a) == metrics(b)
    assert same_weights(load_model(a, "latest"), load_model(b, "latest"))
    assert same_weights(load_model(a, "best"), load_model(b, "best"))
