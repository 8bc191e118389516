"""Measure how the heads of a decoder interact on texts, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from diabat.attention.heads.interaction.coalition_tests import Clustering, within_against_between
from diabat.attention.heads.interaction.communities import biclusters, communities
from diabat.attention.heads.interaction.coupling import Aggregation
from diabat.attention.heads.interaction.measure import HeadInteractions
from diabat.checks import ArgumentError, check_count
from diabat.runs.heads.texts import TokenText, batches_of
from diabat.samplers.registry import sampler
from diabat.studies.head_interaction import InteractionReport


def measure_interaction(
    model: Any,
    texts: Sequence[TokenText],
    *,
    name: str,
    layers: Sequence[int] | None = None,
    batch_size: int = 8,
    aggregation: Aggregation = "concatenated",
    biclusters_of: int | None = None,
    backend: str = "tempering",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> InteractionReport:
    """Measure all layers; coalitions are found in the batches of even position and tested on the others.

    Args:
        model: A causal language model of transformers, or a PEFT model around one.
        texts: Those measured, enough for two batches.
        name: Of the model, for the report.
        layers: Positions of blocks; None for all.
        batch_size: Texts in one pass.
        aggregation: How the tokens make ρ.
        biclusters_of: Find so many coalitions by spectral biclustering; None for communities by a sampler.
        backend: The sampler that finds communities, by its name.
        seed: Of the search for coalitions.
        progress: Called with the number of batches done, and of all.

    Raises:
        ValueError: If an argument is out of range, or the texts make one batch only.
        UnsupportedError: If the model cannot be measured.
    """
    check_count("biclusters", biclusters_of, least=2, optional=True)
    chosen = sampler(backend)

    def cluster(G: Tensor) -> Tensor:
        return (
            communities(G, chosen, seed=seed)
            if biclusters_of is None
            else biclusters(G, biclusters_of, seed=seed)
        )

    how = f"communities by {backend}" if biclusters_of is None else f"{biclusters_of} biclusters"
    batches = batches_of(texts, batch_size)
    if len(batches) < 2:
        raise ArgumentError(
            "batch_size",
            f"expected less than the {len(texts)} texts, of which two batches are made, got {batch_size}.",
        )
    interactions = HeadInteractions(model, layers, aggregation=aggregation)
    rows = _rows(interactions, batches, cluster, progress)
    return InteractionReport(rows, name, len(texts), aggregation, how)


def _rows(
    interactions: HeadInteractions,
    batches: Sequence[dict[str, Tensor]],
    cluster: Clustering,
    progress: Callable[[int, int], None] | None,
) -> list[dict[str, Any]]:
    def report(done: int) -> None:
        if progress is not None:
            progress(done, len(batches))

    even, odd, both = interactions.measure_halves(batches, report)
    rows = []
    for layer in interactions.layers:
        labels = cluster(even[layer].G)
        rows.append(InteractionReport.row(both[layer], labels, within_against_between(odd[layer].G, labels)))
    return rows
