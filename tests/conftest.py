from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

# The same examples on every machine: a property that fails here fails everywhere, and no database is written.
settings.register_profile("diabat", derandomize=True, deadline=None, max_examples=30, database=None)
settings.load_profile("diabat")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage meanwhile: of the two million objects of all libraries, 3 % are."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _older_objects_are_no_garbage() -> None:
    """Else a search of them all takes half a second, and a Trainer of transformers asks for two per training."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, a fixed global seed and no width of a terminal per test; whatever a test changes is put back."""
    monkeypatch.delenv("COLUMNS", raising=False)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    # Without CUDA, torch.manual_seed would note the stack of its caller for later, which costs half a millisecond.
    (torch.manual_seed if torch.cuda.is_initialized() else torch.default_generator.manual_seed)(0)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that matplotlib was to save; laying out and rendering one takes longer than most tests."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures
