"""Statements of the guide, each beside the code that says whether it is true.

The sentence must stand on its page word for word: who changes one mends the other.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("statements")
from statements.table import ROWS, Check, on  # noqa: E402 - its asserts are rewritten

NAMES = [f"{page}-{check.__name__}" for page, _, check in ROWS]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func.jacfwd
@pytest.mark.parametrize(("page", "statement", "check"), ROWS, ids=NAMES)
def test_statement(page: str, statement: str, check: Check) -> None:
    assert statement in on(page), f"docs/{page}.md no longer says this; mend the row with the page"
    check()
