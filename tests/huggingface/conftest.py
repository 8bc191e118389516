from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
pytest.importorskip("peft", reason="the extra 'hf' is not installed")
pytest.importorskip("accelerate", reason="the extra 'hf' is not installed")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
