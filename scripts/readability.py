"""Lines, and mean words of a sentence, of Markdown pages, without code, tables and headings.

python scripts/readability.py README.md docs/*.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def sentences(text: str) -> list[int]:
    """Words of each sentence of the prose."""
    text = re.sub(r"^(```|:::).*?^\1:*$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = " ".join(
        line for line in text.splitlines() if not line.startswith(("|", "#", "    ", "![", ":::"))
    )
    found = re.split(r"(?<=[.!?])[\"*)]*\s+", re.sub(r"\]\([^)]*\)", "]", prose))
    return [words for words in (len(sentence.split()) for sentence in found) if words > 1]


def main() -> None:
    """Print a line for each page, and one for all."""
    total: list[int] = []
    for name in sys.argv[1:]:
        text = Path(name).read_text(encoding="utf-8")
        words = sentences(text)
        total += words
        if words:
            print(f"{name:40} {text.count(chr(10)):4} lines, {sum(words) / len(words):5.1f} words a sentence")
    print(f"{sum(total) / len(total):.1f} words a sentence, {len(total)} sentences")


if __name__ == "__main__":
    main()
