from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
pytest.importorskip("datasets", reason="the extra 'hf' is not installed")
