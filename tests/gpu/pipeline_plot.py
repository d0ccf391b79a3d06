# SPDX-License-Identifier: Apache-2.0
"""Draws what pipeline.py found: samples a second by size of batch, and below how much more the channel gives than the other ways.

    pipeline_plot.py PIPELINE.JSON PLOT.SVG TITLE"""

import json
import sys

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker  # noqa: E402

# On paper of its own, so that it is as legible on a dark page as on a light one.
INK, PALE, PAPER = "#1f2328", "#d0d7de", "#ffffff"
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "pipeline", "font.family": "sans-serif", "font.size": 11, "text.color": INK,
         "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "figure.facecolor": PAPER,
         "axes.facecolor": PAPER, "axes.grid": True, "grid.color": PALE, "grid.linewidth": 0.8, "axes.axisbelow": True,
         "axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 2, "lines.markersize": 6}
WAYS = (("channel", "a gpuipc channel", "#0969da", "o", "-"), ("torch", "torch.multiprocessing", "#bc4c00", "s", "-"),
        ("ring", "… by hand: tensors and events sent once", "#bf8700", "D", "-"),
        ("pinned", "pinned host memory and a queue", "#1a7f37", "^", "-"))
BOUNDS = (("one", "both in one process, nothing handed over", INK, "", "--"), ("alone-consumer", "the training alone", "#57606a", "", ":"),
          ("alone-producer", "the preprocessing alone", "#8250df", "", ":"))
STEPS = {"light": "A light step", "resnet": "A step of a ResNet-18"}


def plain(value, _=None):
    return f"{value / 1000:g} k" if value >= 1000 else f"{value:g}"


def draw(found, title):
    steps = list(dict.fromkeys(case["step"] for case in found["cases"]))
    figure, axes = pyplot.subplots(2, len(steps), figsize=(5.2 * len(steps), 7.4), squeeze=False, sharex=True, sharey="row",
                                   gridspec_kw={"height_ratios": (5, 3)})
    for column, step in enumerate(steps):
        cases = sorted((case for case in found["cases"] if case["step"] == step), key=lambda case: case["batch"])
        sizes = [case["batch"] for case in cases]
        upper, lower = axes[0][column], axes[1][column]
        for way, label, color, marker, line in BOUNDS + WAYS:
            upper.plot(sizes, [case["batch"] * case["batches_per_s"][way] for case in cases], line, label=label, color=color, marker=marker,
                       linewidth=2 if marker else 1.5)
        for way, label, color, marker, _ in WAYS[1:]:
            lower.plot(sizes, [case["channel_over"][way] for case in cases], label=f"… as by {label}", color=color, marker=marker)
        lower.axhline(1, color=INK, linewidth=1)
        upper.set(title=STEPS.get(step, step), yscale="log")
        upper.yaxis.set_major_formatter(ticker.FuncFormatter(plain))
        lower.set_xscale("log", base=2)
        lower.set_xticks(sizes, [str(size) for size in sizes])
        lower.xaxis.set_minor_locator(ticker.NullLocator())
        lower.set_xlabel("batch size (samples, log₂)")
        lower.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g} ×"))
    axes[0][0].set_ylabel("throughput (samples/s)")
    axes[1][0].set_ylabel("by the channel, as many\ntimes as by the other way")
    axes[1][0].set_ylim(bottom=0)
    handles, labels = axes[0][0].get_legend_handles_labels()
    order = [*range(len(BOUNDS), len(handles)), *range(len(BOUNDS))]
    figure.legend([handles[i] for i in order], [labels[i] for i in order], loc="lower center", ncols=2, frameon=False)
    figure.suptitle(title, fontsize=12)
    figure.tight_layout(rect=(0, 0.11, 1, 1))
    return figure


def main():
    source, target, title = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        found = json.load(file)
    with matplotlib.rc_context(STYLE):
        draw(found, title).savefig(target, format="svg", metadata={"Date": None})
    with open(target, encoding="utf-8") as file:
        head, _, rest = file.read().partition("\n")
    with open(target, "w", encoding="utf-8") as file:
        file.write(f"{head}\n<!-- SPDX-License-Identifier: Apache-2.0 -->\n{rest}")


if __name__ == "__main__":
    main()
