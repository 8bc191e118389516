"""The rows of a fidelity report in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Mean errors of reads of the exact law scatter by some percent about the floor.
_NOISE = 1.25


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Rank the backends that answered every problem by their mean error, and name those within read noise.

    Within read noise is a row of a sampled backend whose mean error is at most 1.25 times that of as many exact reads.
    """
    names = list(dict.fromkeys(row["backend"] for row in rows))
    answered = {name: [row for row in rows if row["backend"] == name] for name in names}
    refusing = [name for name, own in answered.items() if any(row["refused"] is not None for row in own)]
    errors = {
        name: sum(row["marginal_mean"] for row in own) / len(own)
        for name, own in answered.items()
        if name not in refusing
    }
    parts = []
    if errors:
        ranked = [f"{name} ({errors[name]:.2g})" for name in sorted(errors, key=lambda name: errors[name])]
        parts.append(f"Mean |ΔP| over all problems, best first: {', '.join(ranked)}.")
    sampled = [name for name in errors if all(row["marginal_floor"] is not None for row in answered[name])]
    if sampled:
        parts.append(
            f"Within read noise: {', '.join(_within_noise(name, answered[name]) for name in sampled)}."
        )
    if refusing:
        parts.append(f"Not ranked, as they refused some problems: {', '.join(refusing)}.")
    return " ".join(parts)


def _within_noise(name: str, rows: Sequence[dict[str, Any]]) -> str:
    count = sum(row["marginal_mean"] <= _NOISE * row["marginal_floor"] for row in rows)
    return f"{name} in {'every row' if count == len(rows) else f'{count} of {len(rows)} rows'}"
