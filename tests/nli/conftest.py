from __future__ import annotations

from pathlib import Path

import pytest

from .tiny_pairs import PairTask, make_data, make_encoder, tiny_task

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
