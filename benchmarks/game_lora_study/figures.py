"""The figure of the study: couplings of all pairs during fine-tuning, by arm."""

from __future__ import annotations

from pathlib import Path

from benchmarks.game_lora_study.arms import ARMS, EVERY, Run
from diabat.drawing import COLOURS, new_figure, save_figure, tidy


def draw(folder: Path) -> None:
    """Write pairs.png: G_ij of all pairs over the steps, seed 0; pairs that end higher than they began in colour."""
    figure = new_figure(10.0, 7.0)
    axes = figure.subplots(3, 4, sharex=True, sharey=True, squeeze=False).ravel()
    for axis, arm in zip(axes, ARMS, strict=False):
        traces = Run(arm, 0).read(folder)["traces"]
        steps = [EVERY * index for index in range(len(traces))]
        pairs = list(zip(*traces, strict=True))
        rising = [values for values in pairs if values[-1] > values[0]]
        for values in pairs:
            look = {"color": COLOURS[1], "zorder": 3} if values in rising else {"color": "0.55"}
            axis.plot(steps, values, linewidth=0.8, **look)
        axis.set_title(f"{arm}: {len(rising)} of {len(pairs)} rise", fontsize=9)
        tidy(axis)
    for axis in axes[len(ARMS) :]:
        axis.set_axis_off()
    for axis in axes[len(ARMS) - 4 : len(ARMS)]:
        axis.xaxis.set_tick_params(labelbottom=True)
        axis.set_xlabel("step")
    for axis in axes[::4]:
        axis.set_ylabel("coupling G_ij")
    save_figure(figure, folder / "pairs.png")
