"""How the heads of a decoder interact: layers as rows of a report, and as heat maps."""

from diabat.studies.head_interaction.figure import plot_interaction
from diabat.studies.head_interaction.report import InteractionReport

__all__ = ["InteractionReport", "plot_interaction"]
