"""The prepared run for a GPU: what of it runs on the CPU, and what it says without a device."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable

import pytest
import torch
from test_docs import ROOT


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Its entry, with arguments of the command line."""
    found: Callable[[], int] = runpy.run_path(str(ROOT / "scripts/on_gpu.py"))["main"]

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["on_gpu.py", *arguments])
        return found()

    return run


@pytest.mark.slow
def test_a_dry_run_compares_and_times(main: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--dry") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(line["ok"] for line in lines)
    numbers = [line for line in lines if line["kind"] == "numbers"]
    assert {line["difference"]["float64"] < 1e-9 for line in numbers} == {True}
    rows = {line["name"]: line for line in lines if line["kind"] == "row"}
    for name in ("window", "far", "paper"):
        assert rows[f"{name}, bfloat16, eager"]["ratio"] > 0
        assert rows[f"{name}, float32, compiled"]["ratio"] > 0
    assert (lines[-1]["kind"], lines[-1]["device"]) == ("summary", "cpu")


def test_without_a_device_it_says_so(
    main: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main() == 2
    found = capsys.readouterr()
    assert found.err == "device: expected a CUDA device, got none; --dry runs a part of it on the CPU.\n"
    assert not found.out
