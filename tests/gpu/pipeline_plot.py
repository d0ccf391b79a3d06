# SPDX-License-Identifier: Apache-2.0
"""Draws what runs of pipeline.py found, by size of batch: samples a second, how many times as many the channel gives as the other ways,
and what the processors spend.

    pipeline_plot.py TITLE PLOT.svg FILE..."""

import json
import re
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
STEPS = {"light": "light step", "resnet": "ResNet-18 step"}
PLACES = {"shared": "GPU time-sliced", "mps": "GPU shared by MPS", "two": "from GPU to GPU"}


def plain(value, _=None):
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1000:g} k" if value >= 1000 else f"{value:g}"


def draw_cases(axes, cases):
    """Throughput, ratios, processors' time, from above."""
    upper, middle, lower = axes
    sizes = [case["batch"] for case in cases]
    for way, label, color, marker, line in BOUNDS + WAYS[::-1]:
        if way in cases[0]["batches_per_s"]:
            upper.plot(sizes, [case["batch"] * case["batches_per_s"][way] for case in cases], line, label=label, color=color, marker=marker,
                       linewidth=2 if marker else 1.5)
    for way, _, color, marker, _ in WAYS[1:]:
        middle.plot(sizes, [case["channel_over"][way] for case in cases], color=color, marker=marker)
    middle.axhline(1, color=INK, linewidth=1)
    for way, _, color, marker, _ in WAYS[::-1]:
        lower.plot(sizes, [case["cpu_s_per_1000"][way] for case in cases], color=color, marker=marker)
    upper.set_title(f"{STEPS[cases[0]['step']]}\n{PLACES[cases[0]['place']]}", fontsize=11)
    for each in (upper, lower):
        each.set_yscale("log")
        each.yaxis.set_major_formatter(ticker.FuncFormatter(plain))
    lower.set_xscale("log", base=2)
    lower.set_xticks(sizes, [str(size) for size in sizes])
    for axis in (upper.yaxis, lower.yaxis, lower.xaxis):
        axis.set_minor_locator(ticker.NullLocator())
    lower.set_xlabel("batch size (samples, log₂)")
    middle.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g} ×"))


def draw(cases, title):
    """A column for each step in each place."""
    columns = [(step, place) for step in STEPS for place in PLACES if any((case["step"], case["place"]) == (step, place) for case in cases)]
    figure, axes = pyplot.subplots(3, len(columns), figsize=(1.6 + 3.4 * len(columns), 9.4), squeeze=False, sharex=True, sharey="row",
                                   gridspec_kw={"height_ratios": (5, 3, 3)})
    for column, (step, place) in enumerate(columns):
        mine = [case for case in cases if (case["step"], case["place"]) == (step, place)]
        draw_cases([row[column] for row in axes], sorted(mine, key=lambda case: case["batch"]))
    axes[0][0].set_ylabel("throughput (samples/s)")
    axes[1][0].set_ylabel("the channel's, over\nthe other way's")
    axes[1][0].set_ylim(bottom=0)
    axes[2][0].set_ylabel("processors' time\n(s for 1000 batches)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    n_bounds = len(handles) - len(WAYS)
    order = [*reversed(range(n_bounds, len(handles))), *range(n_bounds)]
    figure.legend([handles[i] for i in order], [labels[i] for i in order], loc="lower center", ncols=2, frameon=False)
    figure.suptitle(title, fontsize=12)
    figure.tight_layout(rect=(0, 0.115, 1, 1))
    return figure


def main():
    title, target, *sources = sys.argv[1:]
    cases = []
    for source in sources:
        with open(source, encoding="utf-8") as file:
            cases += json.load(file)["cases"]
    with matplotlib.rc_context(STYLE):
        draw(cases, title).savefig(target, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    with open(target, encoding="utf-8") as file:
        text = file.read()
    # A hundredth of a point will do; what nothing refers to, and what only tells of the text that follows, goes.
    for pattern, short in ((r"(\.\d\d)\d+", r"\1"), (r' id="[a-z0-9.]+_\d+"', ""), (r"<!--.*?-->", ""), (r"\n\s+", "\n"),
                           (r"<g>\n(<use [^>]*/>)\n</g>", r"\1"), (r"; stroke-linejoin: miter|; stroke-linecap: square", "")):
        text = re.sub(pattern, short, text)
    head, _, rest = text.partition("\n")
    with open(target, "w", encoding="utf-8") as file:
        file.write(f"{head}\n<!-- SPDX-License-Identifier: Apache-2.0 -->\n{rest}")


if __name__ == "__main__":
    main()
