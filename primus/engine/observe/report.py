"""`write_report` draws a run's curves from its metrics file: one PNG a subject and one HTML page that shows them.

`python -m primus.engine.observe.report RUN_FOLDER` draws it anew; a run ends by calling just that, since a process of its
own keeps matplotlib's memory out of the trainer's peak.
"""

import html
import sys
from collections.abc import Sequence
from pathlib import Path

from primus.engine.observe.metrics_file import read_metrics

__all__ = ["main"]

_Row = dict[str, float | None]

_CURVES = (
    ("loss", "loss", (("lm_loss", "training"), ("validation_loss", "validation"), ("test_loss", "test"))),
    ("throughput", "tokens a second", (("tokens_per_second", "tokens/s"),)),
    ("learning_rate", "learning rate", (("learning_rate", "learning rate"),)),
    ("grad_norm", "gradient norm", (("grad_norm", "gradient norm"),)),
)


def write_report(metrics: Path, folder: Path, *, title: str, config_text: str) -> Path | None:
    """Write `folder/index.html` and its pictures; None if the run logged nothing."""
    rows = read_metrics(metrics) if metrics.exists() else []
    if not rows:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, label, series in _CURVES:
        drawn = [(text, points) for key, text in series if (points := _points(rows, key))]
        if drawn:
            _draw(folder / f"{name}.png", label, drawn)
            pictures.append(f"{name}.png")
    page = folder / "index.html"
    page.write_text(_page(title, rows[-1], pictures, config_text), encoding="utf-8")
    return page


def _points(rows: Sequence[_Row], key: str) -> list[tuple[float, float]]:
    """Return (iteration, value) where there is a finite value."""
    pairs = [(row["iteration"], row.get(key)) for row in rows]
    return [(iteration, value) for iteration, value in pairs if iteration is not None and value is not None]


def main(folder: Path) -> None:
    """Write `folder/report` from the run's metrics and container file."""
    config = folder / "config.yaml"
    text = config.read_text(encoding="utf-8") if config.exists() else ""
    write_report(folder / "metrics.jsonl", folder / "report", title=folder.name, config_text=text)


def _draw(file: Path, label: str, series: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points in series:
        few = len(points) < 40
        axes.plot(*zip(*points, strict=True), label=name, marker="o" if few else None, markersize=3, linewidth=1.2)
    axes.set(xlabel="iteration", ylabel=label)
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend()
    figure.savefig(file, dpi=110)


def _page(title: str, last: _Row, pictures: Sequence[str], config_text: str) -> str:
    cells = "".join(
        f"<tr><th>{html.escape(k)}</th><td>{'not finite' if v is None else f'{v:,.6g}'}</td></tr>" for k, v in last.items()
    )
    images = "".join(f'<img src="{name}" alt="{name}">' for name in pictures)
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>{html.escape(title)}</title>"
        "<style>body{font:15px/1.5 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}"
        "img{width:100%;margin:.5em 0}th{text-align:left;padding-right:2em;font-weight:normal}"
        "pre{background:#f4f4f4;padding:1em;overflow:auto}</style>"
        f"<h1>{html.escape(title)}</h1>{images}"
        f"<h2>Last logged iteration</h2><table>{cells}</table>"
        f"<h2>Configuration</h2><pre>{html.escape(config_text)}</pre></html>\n"
    )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except OSError as error:
        sys.exit(f"no report: {error}")
