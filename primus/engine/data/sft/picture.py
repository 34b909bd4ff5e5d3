"""`draw_lengths`: how long samples are, as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["draw_lengths"]


def draw_lengths(file: Path, splits: Mapping[str, Sequence[tuple[int, int]]], size: int) -> None:
    """Draw for each split how many samples have how many tokens; ranges are given by their upper ends."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.5 * len(splits) + 1), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (name, ranges) in enumerate(splits.items(), start=1):
        axes = figure.add_subplot(len(splits), 1, number)
        width = ranges[0][0]
        axes.bar([end - width / 2 for end, _ in ranges], [count for _, count in ranges], width=width)
        axes.axvline(size, color="black", linewidth=0.8, linestyle="--")
        axes.set(xlabel="tokens of a sample (dashed: a sequence)", ylabel="samples", title=name)
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)
