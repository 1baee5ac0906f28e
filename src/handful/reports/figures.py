"""Pictures of what the methods do, drawn from rows of plain values: what is in the picture can also be kept as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from ..terminal import printable

Row = dict[str, Any]  # of a CSV file

# Okabe and Ito: told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#000000", "#56b4e9")
MARKERS = "os^D"  # the next one when the colours have run out
GREY = "#b8b8b8"
MOST_LETTERS = 40  # of a name in a legend
FEW_POINTS = 2000  # fewer are laid out by one thread
FAR_BELOW = 15.0  # points below the best of a row of panels, from where on lines are only counted


def add_legend(owner: Figure | Axes, entries: Sequence[tuple[Artist, str]], **options: Any) -> None:
    """A legend of (artist, name), which shows every name as it is, shortened if it is long.

    Left to itself, matplotlib leaves out names that begin with an underscore.
    """
    legend = owner.legend([artist for artist, _ in entries], [str(number) for number in range(len(entries))],
                          frameon=False, **options)  # fmt: skip
    for text, (_, name) in zip(legend.get_texts(), entries, strict=True):
        text.set_text(shortened(name))
        text.set_parse_math(False)


def shortened(name: str) -> str:
    """A name for a picture: printable, its middle left out if it is long.

    >>> shortened("a long name of a class that is longer than a legend is wide")
    'a long name of a cla…an a legend is wide'
    """
    name = printable(name)
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS // 2]}…{name[1 - MOST_LETTERS // 2 :]}"


def literal(figure: Figure) -> None:
    """Dollar signs in titles and notes are dollar signs, not mathematics; that of the axes' numbers stays."""
    for axis in figure.axes:
        for text in (axis.title, axis.xaxis.label, axis.yaxis.label, *axis.texts):
            text.set_parse_math(False)
    for text in figure.texts:
        text.set_parse_math(False)


def iteration_rows(setting: str, method: str, means: Sequence[float], intervals: Sequence[float | None]) -> list[Row]:
    """Mean accuracy, and the half-width of its interval, after 0, 1, ... refinements."""
    return [
        {"setting": setting, "method": method, "refinements": step, "accuracy": mean, "interval": interval}
        for step, (mean, interval) in enumerate(zip(means, intervals, strict=True))
    ]


def accuracy_by_iteration(rows: Sequence[Row]) -> Figure:
    """Accuracy against the number of refinements: one panel per setting, one line per method."""
    return _panels(rows, "setting", "refinements", "refinements with the unlabelled images")


def accuracy_by_share(rows: Sequence[Row]) -> Figure:
    """Accuracy against the share of distractors: one panel per number of shots, one line per method."""
    return _panels(rows, "setting", "share", "distractors among the unlabelled images (%)")


def accuracy_by_labels(rows: Sequence[Row], first: str) -> Figure:
    """Accuracy against labels a class: a row of panels per source, a panel per shape; ``first`` is drawn boldest."""
    figure, axes = _by_source(rows, first, bars=False)
    for axis in axes.flat:
        axis.set_xscale("log")
        ticks = sorted({row["labels"] for row in rows})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
    for axis in axes[-1]:
        axis.set_xlabel("labels a class")
    return figure


def accuracy_by_round(rows: Sequence[Row], first: str) -> Figure:
    """Accuracy against labels that were added: a row of panels per source, a panel per start; intervals for all."""
    figure, axes = _by_source(rows, first, bars=True)
    for axis in axes[-1]:
        axis.set_xlabel("labels added")
    return figure


def _by_source(rows: Sequence[Row], first: str, bars: bool) -> tuple[Figure, NDArray[Any]]:
    """Accuracy against ``labels``, a line per method; the interval of ``first``, or with ``bars`` of all."""
    sources, shapes, methods = ([*dict.fromkeys(row[key] for row in rows)] for key in ("source", "shape", "method"))
    figure = Figure(figsize=((3.3 if len(shapes) > 2 else 4.4) * len(shapes) + 2.6, 3.0 * len(sources)),
                    layout="constrained")  # fmt: skip
    axes = figure.subplots(len(sources), len(shapes), squeeze=False, sharex=True, sharey="row")
    drawn: dict[str, Artist] = {}
    for across, source in zip(axes, sources, strict=True):
        for axis, shape in zip(across, shapes, strict=True):
            for index, method in enumerate(methods):
                line = [row for row in rows if (row["source"], row["shape"], row["method"]) == (source, shape, method)]
                bold = method == first
                drawn[method] = axis.errorbar(
                    [row["labels"] for row in line], [row["accuracy"] for row in line],
                    [row["interval"] if bold or bars else 0.0 for row in line], color=COLOURS[index % len(COLOURS)],
                    marker=MARKERS[index // len(COLOURS) % len(MARKERS)], markersize=4 if bold else 3,
                    linewidth=2.4 if bold else 0.9, capsize=2 if bold or bars else 0, zorder=3 if bold else 2,
                )  # fmt: skip
            axis.set_title(f"{shortened(source)}, {shape}", fontsize=10)
            axis.grid(alpha=0.25)
        across[0].set_ylabel("accuracy (%)")
    add_legend(figure, [(drawn[method], method) for method in methods], loc="outside right upper", fontsize=8)
    return figure, axes


def accuracy_by_cost(rows: Sequence[Row]) -> Figure:
    """Accuracy against milliseconds an episode: a row of panels per number of shots, a panel per setting.

    The grey line joins what no other method beats in both. Hollow: trained from the start.
    """
    there = [row for row in rows if row["accuracy"] is not None and row["milliseconds"]]
    kinds = sorted({(row["distractors"], row["uneven"]) for row in there})
    shots, looks = sorted({row["shots"] for row in there}), _looks(there)
    figure = Figure(
        figsize=(3.3 * len(kinds) + 2.8, max(3.6 * max(1, len(shots)), 0.22 * len(looks))), layout="constrained"
    )
    axes = figure.subplots(max(1, len(shots)), max(1, len(kinds)), squeeze=False, sharex=True, sharey="row")
    drawn: dict[str, Artist] = {}
    for across, number in zip(axes, shots, strict=False):
        floor = max(row["accuracy"] for row in there if row["shots"] == number) - FAR_BELOW
        for axis, kind in zip(across, kinds, strict=True):
            panel = [row for row in there if (row["shots"], row["distractors"], row["uneven"]) == (number, *kind)]
            best, front = float("-inf"), []
            for row in sorted(panel, key=lambda row: (row["milliseconds"], -row["accuracy"])):
                if row["accuracy"] > best:
                    best = row["accuracy"]
                    front.append((row["milliseconds"], best))
            axis.plot(*zip(*front, strict=True), color=GREY, linewidth=1, zorder=1)
            for row in panel:
                drawn[row["system"]] = axis.errorbar(
                    row["milliseconds"], row["accuracy"], row["interval"] or 0.0, **looks[row["system"]],
                    markersize=5, linewidth=1, linestyle="none",
                )  # fmt: skip
            if below := sum(row["accuracy"] < floor for row in panel):
                axis.set_ylim(bottom=floor)
                axis.text(0.02, 0.02, f"{below} below {floor:.0f} %", transform=axis.transAxes, fontsize=8)
            words = ("distractors" * kind[0], "uneven" if kind[1] else "balanced")
            axis.set_title(", ".join(filter(None, (f"{number}-shot", *words))), fontsize=10)
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.grid(alpha=0.25)
        across[0].set_ylabel("accuracy (%), bar: 95 %")
    for axis in axes[-1]:
        axis.set_xlabel("ms of processor time an episode")
    add_legend(figure, [(drawn[name], name) for name in looks], loc="outside right upper", fontsize=8)
    return figure


def _looks(rows: Sequence[Row]) -> dict[str, dict[str, str]]:
    """Colour and marker of each line; those that were trained are hollow, and begin anew with the colours."""
    looks: dict[str, dict[str, str]] = {}
    for trained in (False, True):
        systems = dict.fromkeys(row["system"] for row in rows if bool(row["training_episodes"]) == trained)
        for index, name in enumerate(systems):
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
            looks[name] = {"color": colour, "marker": marker, "markerfacecolor": "white" if trained else colour}
    return looks


def learning_curves(rows: Sequence[Row]) -> Figure:
    """Validation accuracy against images shown, a line per run; below, what learned references gain, if any are."""
    runs = list(dict.fromkeys(row["run"] for row in rows))
    referenced = [row for row in rows if row["learned"] is not None]
    figure = Figure(figsize=(7.6, 6.4 if referenced else 4.2), layout="constrained")
    axes = figure.subplots(
        2 if referenced else 1, 1, sharex=True, squeeze=False, height_ratios=(2, 1)[: 1 + bool(referenced)]
    )
    drawn: dict[str, Artist] = {}
    for index, run in enumerate(runs):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
        for axis, of, value in zip(axes[:, 0], (rows, referenced), ("accuracy", "learned"), strict=False):
            line = [row for row in of if row["run"] == run]
            shown, values = [row["images"] / 1e6 for row in line], np.array([row[value] for row in line])
            (drawn_line,) = axis.plot(shown, values, color=colour, marker=marker, markersize=3, linewidth=1.4)
            drawn.setdefault(run, drawn_line)
            if value == "accuracy":
                half = np.array([row["interval"] for row in line])
                axis.fill_between(shown, values - half, values + half, color=colour, alpha=0.15, linewidth=0)
    axes[0, 0].set_ylabel("validation accuracy (%), band: 95 %")
    if referenced:
        axes[1, 0].set_ylabel("learned less random\nreferences (points)")
        axes[1, 0].axhline(0, color=GREY, linewidth=1)
    axes[-1, 0].set_xlabel("images shown in training (millions)")
    for axis in axes[:, 0]:
        axis.grid(alpha=0.25)
    add_legend(figure, [(drawn[run], run) for run in runs], loc="outside right upper", fontsize=8)
    return figure


def reliability(rows: Sequence[Row]) -> Figure:
    """Accuracy against confidence, a point per source and case: on the diagonal, confidence is a probability."""
    figure = Figure(figsize=(5.4, 4.6), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 100], [0, 100], color=GREY, linewidth=1)
    sources = list(dict.fromkeys(row["source"] for row in rows))
    entries = []
    for index, source in enumerate(sources):
        line = [row for row in rows if row["source"] == source]
        points = axis.scatter(
            [row["confidence"] for row in line], [row["accuracy"] for row in line], color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index // len(COLOURS) % len(MARKERS)], s=[10 + 3 * row["labels"] for row in line],
        )  # fmt: skip
        entries.append((points, source))
    axis.set(xlabel="mean confidence (%)", ylabel="accuracy (%)", xlim=(0, 100), ylim=(0, 100))
    axis.grid(alpha=0.25)
    add_legend(axis, entries, fontsize=8, loc="upper left")
    return figure


def _panels(rows: Sequence[Row], panel: str, x: str, label: str) -> Figure:
    """Accuracy with its intervals against ``x``; a method with one value only is a level to compare with."""
    titles = list(dict.fromkeys(row[panel] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = Figure(figsize=(max(5.5, 4.6 * len(titles)), 3.8), layout="constrained")
    axes = figure.subplots(1, len(titles), sharey=x == "refinements", squeeze=False)[0]
    drawn: dict[str, Artist] = {}
    for axis, title in zip(axes, titles, strict=True):
        for index, method in enumerate(methods):
            line = [row for row in rows if row[panel] == title and row["method"] == method]
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
            values = [row["accuracy"] for row in line]
            if len(line) == 1:
                drawn[method] = axis.axhline(values[0], color=colour, linestyle="--", linewidth=1.2)
            elif line:
                bars = [row["interval"] or 0.0 for row in line]
                drawn[method] = axis.errorbar([row[x] for row in line], values, bars, color=colour, marker=marker,
                                              markersize=4, linewidth=1.5, capsize=2)  # fmt: skip
        axis.set(title=title, xlabel=label)
        axis.grid(alpha=0.25)
        if x == "refinements":
            axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("accuracy (%), bars: 95 %")
    entries = [(drawn[method], method) for method in methods if method in drawn]
    add_legend(figure, entries, loc="outside right upper", fontsize=8)
    return figure


def entropy(rows: Sequence[Row]) -> Figure:
    """Accuracy and cross-entropy of the soft labels against refinements, one line per space of clustering."""
    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    names = {"accuracy": "accuracy of the queries (%)", "cross_entropy": "cross-entropy of the soft labels (nats)"}
    drawn: dict[str, Artist] = {}
    for axis, (value, label) in zip(axes, names.items(), strict=True):
        for index, space in enumerate(dict.fromkeys(row["clustering"] for row in rows)):
            line = [row for row in rows if row["clustering"] == space]
            bars = [row[f"{value}_interval"] or 0.0 for row in line]
            drawn[f"clustering {space}"] = axis.errorbar(
                [row["refinements"] for row in line], [row[value] for row in line], bars, color=COLOURS[index],
                marker=MARKERS[index], markersize=4, linewidth=1.5, capsize=2,
            )  # fmt: skip
        axis.set(xlabel="refinements with the unlabelled images", ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
    add_legend(axes[0], [(artist, name) for name, artist in drawn.items()], fontsize=8)
    return figure


def in_the_plane(points: NDArray[Any], seed: int) -> NDArray[Any]:
    """t-SNE: points (n, D) -> (n, 2), so that neighbours stay neighbours."""
    from sklearn.manifold import TSNE  # takes a second, and other figures need nothing of it
    from threadpoolctl import threadpool_limits

    embedding = TSNE(init="pca", perplexity=min(30, (len(points) - 1) / 3), random_state=seed)
    # A few points are done before threads have met; on a busy machine these wait for one another for minutes.
    with threadpool_limits(1 if len(points) < FEW_POINTS else None):
        return np.asarray(embedding.fit_transform(points))


def tsne(rows: Sequence[Row]) -> Figure:
    """Each space: rightly clustered points in their class's colour with the count beside, wrong ones grey."""
    titles = list(dict.fromkeys(row["space"] for row in rows))
    names = list(dict.fromkeys(row["class"] for row in rows))
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    across = min(3, len(titles))
    down = -(-len(titles) // across)
    figure = Figure(figsize=(4.2 * across, 4.2 * down + 0.3), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis in axes[len(titles) :]:
        axis.set_axis_off()
    for axis, title in zip(axes, titles, strict=False):
        _tsne_panel(axis, title, [row for row in rows if row["space"] == title], colours)
    styles = {**colours, "in the wrong cluster": GREY}
    entries = [(axes[0].scatter([], [], s=25, color=colour), name) for name, colour in styles.items()]
    add_legend(figure, entries, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _tsne_panel(axis: Axes, title: str, rows: list[Row], colours: dict[str, str]) -> None:
    flat = np.array([(row["x"], row["y"]) for row in rows])
    truth = np.array([row["class"] for row in rows])
    right = truth == np.array([row["cluster"] for row in rows])
    axis.scatter(flat[~right, 0], flat[~right, 1], s=14, color=GREY, linewidths=0)
    for name, colour in colours.items():
        mine = right & (truth == name)
        axis.scatter(flat[mine, 0], flat[mine, 1], s=14, color=colour, linewidths=0)
        if mine.any():
            axis.annotate(str(mine.sum()), np.median(flat[mine], axis=0), fontsize=13, fontweight="bold", ha="center",
                          bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1})  # fmt: skip
    axis.set(title=f"{title}: {right.sum()} of {len(right)} right", xticks=[], yticks=[])
