"""Statements of the guide, each beside the code that says whether it is true.

The sentence must stand on its page word for word: who changes one mends the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("statements")
from statements.table import ROWS, Check, on  # noqa: E402 - its asserts are rewritten

ROOT = Path(__file__).parent.parent
NAMES = [f"{page}-{check.__name__}" for page, _, check in ROWS]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func.jacfwd
@pytest.mark.parametrize(("page", "statement", "check"), ROWS, ids=NAMES)
def test_statement(page: str, statement: str, check: Check) -> None:
    assert statement in on(page), f"docs/{page}.md no longer says this; mend the row with the page"
    check()


def held_elsewhere() -> list[tuple[str, str, str]]:
    """Test, page and sentence of each row of held.txt; more indented lines go on."""
    lines = (ROOT / "tests/statements/held.txt").read_text(encoding="utf-8").splitlines()[1:]
    found, test = [], ""
    for line in "\n".join(lines).replace("\n        ", " ").splitlines():
        if line[0] != " ":
            test = line
        else:
            page, sentence = line.strip().split(": ", 1)
            found.append((test, page, sentence))
    return found


@pytest.mark.parametrize(("test", "page", "statement"), held_elsewhere())
def test_a_statement_names_the_test_that_holds_it(test: str, page: str, statement: str) -> None:
    assert statement in on(page), f"docs/{page}.md no longer says this; mend the row with the page"
    file, name = test.split("::")
    assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"there is no {test}"
