#!/usr/bin/env python3
"""Turns what train.py measured into a summary, a picture of three bars, and a verdict.

`summary` prints the result of run.sh and writes summary.json and train.png; `crash` prints what
each survivor of run_crash.sh said, and exits non-zero unless all of them name the dead rank.
"""

import argparse
import json
import math
import os
import pathlib
import re
import statistics
import sys

# The first steps pay for connections, memory and caches.
WARM_UP_STEPS = 3
# How soon a survivor must name the rank that died.
NAMED_WITHIN_S = 2.0
MEBI = 1 << 20
LINK_TEXT = {
    "lab": "two network namespaces, joined by a link of 500 Mbit/s",
    "loopback": "the loopback interface, not shaped",
}
NECK_TEXT = {
    "lab": "Over the neck: what both nodes sent, headers included.",
    "loopback": "Over the loopback: all that this machine's programs sent to one another, "
                "within a node too.",
}


def load(path):
    return json.loads(path.read_text())


def series(record, key):
    """Per step, the mean over the ranks; the warm-up steps left out."""
    columns = zip(*(rank[key] for rank in record["ranks"]))
    means = [statistics.fmean(column) for column in columns]
    return means[WARM_UP_STEPS:] or means


def measure(record, shape):
    """The numbers of one run: medians over the steps, bytes as the mean over all steps."""
    step = statistics.median(series(record, "step_seconds"))
    exposed = statistics.median(series(record, "exposed_seconds"))
    # One rank of each node reads its node's counter; on the loopback both read the same one.
    nodes = {rank["node"]: rank for rank in record["ranks"]}
    sent = [rank["sent_bytes"] for rank in nodes.values()]
    loopback = record["ranks"][0]["interface"] == "lo"
    return {
        "backend": record["backend"], "layout": record["layout"], "steps": record["steps"],
        "step_seconds": step, "exposed_seconds": exposed, "compute_seconds": step - exposed,
        "tokens_per_second": shape["batch"] * shape["length"] / step,
        "neck_bytes_per_step": (max(sent) if loopback else sum(sent)) / record["steps"],
        "loss_first": record["losses"][0], "loss_last": record["losses"][-1],
        "difference_max": max(record["differences"]),
        "difference_max_to_6": max(record["differences"][:6]),
        "difference_max_to_20": max(record["differences"][:20]),
    }


def neck_name(summary):
    return "neck" if summary["link"] == "lab" else "loopback"


def title(run):
    name = {"isthmus": "isthmus", "gloo": "Gloo"}.get(run["backend"], run["backend"])
    return f"{name} {'HSDP 2 x 2' if run['layout'] == 'hsdp' else 'FSDP2 flat'}"


def collect(work, link):
    """Everything that run.sh's jobs left in their folder, as one dictionary."""
    reference = load(work / "reference.json")
    main = load(work / "main.json")
    shape = reference["shape"]
    runs = [measure(load(work / f"{name}.json"), shape)
            for name in ("main", "gloo_flat", "gloo_hsdp") if (work / f"{name}.json").exists()]
    single = statistics.median(reference["step_seconds"][WARM_UP_STEPS:]
                               or reference["step_seconds"])
    phases = {}
    if (work / "phases").exists():
        lines = (work / "phases").read_text().splitlines()
        phases = {name: int(seconds) for name, seconds in (line.split("\t") for line in lines)}
    return {
        "backend": main["backend"], "link": link, "interface": main["ranks"][0]["interface"],
        "cores": len(os.sched_getaffinity(0)), "threads_per_rank": main["threads"],
        "parameters": reference["parameters"], "shape": shape, "corpus": reference["corpus"],
        "single_process": {"step_seconds": single, "threads": reference["threads"],
                           "tokens_per_second": shape["batch"] * shape["length"] / single,
                           "loss_last": reference["losses"][-1]},
        "runs": runs, "bits_per_byte": main["bits_per_byte"],
        "gzip_bits_per_byte": reference["gzip_bits_per_byte"],
        "generated": main["generated"], "phase_seconds": phases,
        "losses": main["losses"], "reference_losses": reference["losses"],
    }


def print_summary(summary):
    shape, corpus, single = summary["shape"], summary["corpus"], summary["single_process"]
    print(f"""
GPT of {summary["parameters"] / 1e6:.2f} million parameters, {shape["batch"]} x {shape["length"]} \
bytes a step, 4 ranks as 2 nodes of 2 on {summary["cores"]} cores
corpus   {corpus["bytes"]:,} bytes in {corpus["files"]:,} files of Python's standard library
         SHA-256 {corpus["sha256"]}
link     {LINK_TEXT[summary["link"]]}

{"":20}{"steps":>6}{"step":>10}{"compute":>10}{"exposed":>10}{"tokens/s":>10}\
{"over the " + neck_name(summary):>19}{"loss":>9}{"largest":>12}
{"":26}{"ms":>10}{"ms":>10}{"ms":>10}{"":>10}{"MiB/step":>19}{"":>9}{"difference":>12}""")
    for run in summary["runs"]:
        print(f"{title(run):20}{run['steps']:6}{run['step_seconds'] * 1e3:10.0f}"
              f"{run['compute_seconds'] * 1e3:10.0f}{run['exposed_seconds'] * 1e3:10.0f}"
              f"{run['tokens_per_second']:10.0f}{run['neck_bytes_per_step'] / MEBI:19.1f}"
              f"{run['loss_last']:9.4f}{run['difference_max']:12.1e}")
    print(f"{'single process':20}{len(summary['reference_losses']):6}"
          f"{single['step_seconds'] * 1e3:10.0f}{'':20}{single['tokens_per_second']:10.0f}{'':19}"
          f"{single['loss_last']:9.4f}")
    print(f"""
Times are medians. Exposed is the time a rank spends inside collectives, waiting for the others
included; compute is the rest.
{NECK_TEXT[summary["link"]]}

{corpus["held_out_bytes"]:,} held-out bytes: {summary["bits_per_byte"]:.3f} bits/byte by the \
model, {summary["gzip_bits_per_byte"]:.3f} by gzip -9

200 characters that the model wrote:
{printable(summary["generated"])}""")
    if summary["phase_seconds"]:
        phases = summary["phase_seconds"]
        print("\n" + ", ".join(f"{name} {seconds} s" for name, seconds in phases.items())
              + f": {sum(phases.values())} s in all")


def printable(text):
    """The text with what a terminal must not get in place of control characters."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}"
                   for c in text)


def draw(summary, path):
    """Three panels, a bar per run: step time, exposed communication, bytes over the neck."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = summary["runs"]
    names = [title(run).replace(" ", "\n", 1) for run in runs]
    colours = ["#1b7f79" if index == 0 else "#b9c0c7" for index in range(len(runs))]
    panels = (("Step time", "ms", 1e3, "step_seconds", "{:.0f}"),
              ("Exposed communication", "ms per step", 1e3, "exposed_seconds", "{:.0f}"),
              (f"Bytes over the {neck_name(summary)}", "MiB per step", 1 / MEBI,
               "neck_bytes_per_step", "{:.1f}"))
    with pyplot.rc_context({"font.size": 11, "axes.spines.top": False,
                            "axes.spines.right": False, "axes.spines.left": False}):
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 4.6))
        for axis, (heading, unit, scale, key, form) in zip(axes, panels):
            values = [run[key] * scale for run in runs]
            bars = axis.bar(range(len(runs)), values, width=0.62, color=colours)
            axis.bar_label(bars, [form.format(value) for value in values], padding=3,
                           fontweight="bold")
            axis.set_title(f"{heading} ({unit})", fontsize=12, pad=14)
            axis.set_xticks(range(len(runs)), names)
            axis.tick_params(length=0)
            axis.set_yticks([])
            axis.set_ylim(0, max(max(values), 1e-9) * 1.12)
        rows, length = summary["shape"]["batch"], summary["shape"]["length"]
        where = ("500 Mbit/s between the nodes" if summary["link"] == "lab"
                 else "loopback without shaping")
        figure.suptitle(f"A GPT of {summary['parameters'] / 1e6:.1f} M parameters on 2 nodes of 2 "
                        f"ranks, {rows} x {length} bytes a step, {where}",
                        fontsize=13, fontweight="bold")
        figure.text(0.5, 0.015, "Lower is better. Medians of the steps after the third, all on "
                    f"{summary['cores']} cores of one machine.", ha="center", fontsize=9,
                    color="#555555")
        figure.tight_layout(rect=(0, 0.05, 1, 0.98), w_pad=3)
        figure.savefig(path, dpi=150)
        pyplot.close(figure)


def replace_with(path, write):
    """Writes beside `path`, then moves it there: two runs at once leave one whole file."""
    new = path.with_name(f".{os.getpid()}.{path.name}")
    write(new)
    new.replace(path)


def summarize(options):
    summary = collect(options.work, options.link)
    if not all(math.isfinite(loss) for loss in summary["losses"]):
        raise SystemExit("a loss is not finite")
    options.out.mkdir(parents=True, exist_ok=True)
    replace_with(options.out / "summary.json",
                 lambda path: path.write_text(json.dumps(summary, indent=1) + "\n"))
    replace_with(options.out / "train.png", lambda path: draw(summary, path))
    print_summary(summary)
    print(f"\nwritten: {options.out}/train.png and summary.json")


def sentence(text):
    """The line of an exception's text that says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\brank \d", line)),
                lines[0] if lines else "(no text)")


def names_rank(text, rank):
    return re.search(rf"\brank {rank}\b", text) is not None


def crash(options):
    """One line per survivor; returns the exit status."""
    killed = load(options.work / "killed.json")["at"]
    good = 0
    survivors = [rank for rank in range(4) if rank != options.victim]
    for rank in survivors:
        path = options.work / f"survivor-{rank}.json"
        if not path.exists():
            print(f"rank {rank} said nothing before it ended.")
            continue
        said = load(path)
        late = said["at"] - killed
        text = sentence(said["text"])
        good += names_rank(text, options.victim) and late <= NAMED_WITHIN_S
        print(f"rank {rank}, {late:.1f} s after the kill: {text}")
    print(f"{good} of {len(survivors)} survivors named rank {options.victim} within "
          f"{NAMED_WITHIN_S:.0f} s.")
    return 0 if good == len(survivors) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("summary")
    one.add_argument("--work", type=pathlib.Path, required=True)
    one.add_argument("--out", type=pathlib.Path, required=True)
    one.add_argument("--link", choices=LINK_TEXT, required=True)
    two = commands.add_parser("crash")
    two.add_argument("--work", type=pathlib.Path, required=True)
    two.add_argument("--victim", type=int, required=True)
    options = parser.parse_args()
    sys.exit(summarize(options) if options.command == "summary" else crash(options))


if __name__ == "__main__":
    main()
