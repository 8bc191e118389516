from __future__ import annotations

from pathlib import Path

import pytest

from .tiny_pairs import PairTask, make_data, make_encoder, run, small, tiny_task

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def task(encoder: Path, data: Path) -> PairTask:
    return tiny_task(encoder, data)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, encoder: Path, data: Path) -> Path:
    """A run of NeuroGame pooling, which tests read only."""
    folder = tmp_path_factory.mktemp("trained")
    result = run("train", str(small(folder, encoder, data)), "--no-progress")
    assert result.exit_code == 0, result.stderr
    assert "neurogame pooling with mean_field" in result.stdout
    assert "best validation accuracy" in result.stdout
    return folder / "run"
