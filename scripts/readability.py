"""Lines, and mean words of a sentence, of Markdown pages, without code, formulas, tables and headings.

An item of a list is a sentence of its own, and what introduces a list ends before it.

python scripts/readability.py README.md docs/*.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LEFT_OUT = r"^(```|:::).*?^\1:*$|^\$\$.*?\$\$$"
ITEM = re.compile(r" {0,3}(?:[-*+]|\d+\.) ")
ENDS = r"(?<=[.!?])[\"*)]*\s+"


def sentences(text: str) -> list[int]:
    """Words of each sentence of the prose."""
    text = re.sub(LEFT_OUT, "\n", text, flags=re.MULTILINE | re.DOTALL)
    parts = [""]
    for line in text.splitlines():
        if not line.strip() or line.startswith(("|", "#", "    ", "![", ":::")):
            parts.append("")
        elif ITEM.match(line):
            parts.append(ITEM.sub("", line, count=1))
        else:
            parts[-1] += " " + line
    found = [s for part in parts for s in re.split(ENDS, re.sub(r"\]\([^)]*\)", "]", part))]
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
