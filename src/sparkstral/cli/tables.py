"""How measurements look on a terminal: one table a kind of document, numbers to the right, verdicts in colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_COLOURS = {
    "ok": "green", "aim": "green", "must": "green", "faster": "green", "failed": "bold red", "missed": "bold red",
    "slower": "bold red", "skipped": "yellow", "incomplete": "yellow", "undecided": "yellow",
}  # fmt: skip

Row = Mapping[str, Any]


def coloured(verdict: str | None) -> str:
    if verdict is None:
        return ""
    return f"[{_COLOURS[verdict]}]{verdict}[/]" if verdict in _COLOURS else verdict


def _short(head: Row) -> str:
    return str(head["commit"])[:12]


def draw(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], num_texts: int = 2) -> None:
    """The first `num_texts` columns are words, the others numbers; the last is a verdict."""
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns[num_texts:-1]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def describe(document: Row) -> None:
    """The machine and the versions that a document is of."""
    versions = ", ".join(f"{name} {value}" for name, value in document["versions"].items() if value)
    speeds = ""
    if bandwidth := document.get("bandwidth"):
        read, copy = (bandwidth[f"{way}_bytes_per_s"] / 1e9 for way in ("read", "copy"))
        speeds = f"; reads {read:,.0f} GB/s, copies {copy:,.0f}"
    print(f"{document['device']}: {versions}{speeds}")


def print_kernels(document: Row) -> None:
    """Times; errors too where results were checked."""
    describe(document)
    columns = ("kernel", "work", "us", "range", "GB/s", "of bandwidth", "launches", "error / plain", "")
    draw("kernels", columns, [_kernel_row(row) for row in document["rows"]])
    print_faults(document["rows"])


def _kernel_row(row: Row) -> list[str]:
    name = row["name"] if row["variant"] == "shipped" else f"{row['name']} ({row['variant']})"
    timed = ["", "", "", ""]
    if "us" in row:
        timed = [
            f"{row['us']:,.2f}", f"{row['us_low']:,.2f} - {row['us_high']:,.2f}", f"{row['gb_per_s']:,.0f}",
            f"{row['bandwidth_share']:.0%}",
        ]  # fmt: skip
    error = f"{float(row['error_ratio']):.2f}" if "error_ratio" in row else ""
    return [row["operation"], name, *timed, str(row.get("launches", "")), error, coloured(row["verdict"])]


def print_faults(rows: Iterable[Row]) -> None:
    """What is wrong with each row that is not good, and its worst elements."""
    for row in rows:
        if row.get("faults"):
            name = ": ".join(row[key] for key in ("operation", "name") if key in row)
            print(f"{name}: {'; '.join(row['faults'])}")
            for worst in row.get("worst", ()):
                print(f"    at {worst['index']}: got {worst['got']!r}, expected {worst['expected']!r}")


def print_verify(document: Row) -> None:
    if document["rows"]:
        print_kernels(document)
    else:
        describe(document)
    loss = document.get("loss")
    if loss is not None:
        print(f"{loss['checkpoint']}: {loss['sentence']}")
    for reason in document["reasons"]:
        if loss is None or reason != loss["sentence"]:
            print(reason)
    Console().print(f"verdict: {coloured(document['verdict'])}")


def print_build(document: Row) -> None:
    columns = ("kernel", "variant", "registers", "shared bytes", "spilled bytes", "instruction", "")
    draw(
        f"{document['target']}, Triton {document['triton']}, {document['seconds']:.0f} s",
        columns,
        [
            [
                row["operation"], row["name"], str(row["registers"]), f"{row['shared_bytes']:,}",
                str(row["spill_bytes"]), ", ".join(row["needs"]), coloured("failed" if row["faults"] else "ok"),
            ]
            for row in document["rows"]
        ],
    )  # fmt: skip
    print_faults(document["rows"])
    if document["pack"]:
        print(f"pack: {document['pack']}")


def print_engine(document: Row) -> None:
    describe(document)
    rows = []
    for row in document["rows"]:
        share = f"{row['bandwidth_share']:.0%}" if "bandwidth_share" in row else ""
        work = f"{row['bytes'] / 1e9:,.2f} GB" if "bytes" in row else ""
        if "tflop_per_s" in row:
            work = f"{row['tflop_per_s']:,.1f} TFLOP/s"
        targets = [f"{row[name]:,g}" if row.get(name) is not None else "" for name in ("peer", "must", "aim")]
        value = f"{row['value']:,.4g} {row['unit']}" if "value" in row else ""
        spread = f"{row['low']:,.4g} - {row['high']:,.4g}" if "value" in row else ""
        rows.append([row["name"], value, spread, work, share, *targets, coloured(row.get("met", row["verdict"]))])
    draw("engine", ("row", "median", "range", "work", "of bandwidth", "vLLM 0.23.0", "must", "aim", ""), rows, 1)
    print_faults(document["rows"])
    if memory := document.get("memory"):
        draw("memory at ready", ("part", "planned GiB", "found GiB", "difference", ""), map(_memory_row, memory), 1)


def _memory_row(row: Row) -> list[str]:
    sizes = ["-" if row[key] is None else f"{row[key] / 2**30:,.3f}" for key in ("planned_bytes", "actual_bytes")]
    return [row["name"], *sizes, "-" if row["difference"] is None else f"{row['difference']:+.2%}", ""]


def print_project(document: Row) -> None:
    print(
        f"From {document['from']['device']}, commit {_short(document['from'])}. GB10 figures are {document['label']}."
    )
    draw(
        "kernels",
        ("kernel", "work", "measured us", "bound there", "bytes", "launches", "projected us on GB10", "bound on GB10"),
        [
            [
                row["operation"], row["name"], f"{row['measured_us']:,.2f}", row["bound"], f"{row['bytes']:,.0f}",
                str(row["launches"]), f"{row['projected_us']:,.1f}", row["projected_bound"],
            ]
            for row in document["rows"]
        ],
    )  # fmt: skip
    draw(
        "the model, as the sum of its kernels",
        ("step", "measured ms", "projected ms on GB10", "projected tok/s on GB10", ""),
        [
            [
                step["name"],
                *(
                    "" if step[name] is None else f"{step[name]:,.2f}"
                    for name in ("measured_ms", "projected_ms", "projected_tok_s")
                ),
                f"{len(step['missing'])} kernels not measured" if step["missing"] else "",
            ]
            for step in document["steps"]
        ],
        num_texts=1,
    )


def print_compare(document: Row) -> None:
    if not document["same_device"]:
        print(f"Different devices: A {document['a']['device']}, B {document['b']['device']}.")
    draw(
        f"A {_short(document['a'])}, B {_short(document['b'])}",
        ("figure", "A", "B", "unit", "change", "noise", ""),
        [
            [
                row["name"],
                *("" if row[name] is None else f"{row[name]:,.4g}" for name in ("a", "b")),
                row["unit"],
                *("" if row[name] is None else f"{row[name]:+.1%}" for name in ("change", "noise")),
                coloured(row["verdict"]),
            ]
            for row in document["rows"]
        ],
        num_texts=1,
    )
    for failure in document["newly_failed"]:
        print(f"failed only in B: {failure}")


def print_tune(document: Row) -> None:
    describe(document)
    draw(
        f"{document['seconds']:.0f} s",
        ("kernel", "axis", "shipped us", "best us", ""),
        [
            [
                row["operation"], row["axis"],
                *(f"{row[name]:,.1f}" if name in row else "" for name in ("shipped_us", "us")), row["verdict"],
            ]
            for row in document["rows"]
        ],
    )  # fmt: skip
    print(f"choices: {document['output']}")


def print_precision(document: Row) -> None:
    """Each setting beside the one that it is compared with, for each text, and what it loses of the questions."""
    describe(document)
    columns = ("setting", "text", "positions", "loss", "before", "KL mean", "99 %", "max", "top-1 agrees", "")
    rows = [
        _precision_row(setting, part.get("text", "all"), part, verdict)
        for row in document["rows"]
        for setting, verdict, part in (
            (row["setting"], row["verdict"], row), *(("", None, part) for part in row["texts"])
        )
    ]
    draw(f"{document['checkpoint']}, compared with {document['compared_with']}", columns, rows)
    if skills := document.get("skills"):
        names = list(skills)
        stored = skills[document["compared_with"]]
        shares = [
            [row["skill"], row["label"], f"{row['bar']:.0%}"]
            + [f"{skills[name][at]['num_right']}/{row['num_items']}" for name in names] + [""]
            for at, row in enumerate(stored)
        ]  # fmt: skip
        draw("questions answered right", ("skill", "", "bar", *names, ""), shares)
    for name, why in document["left_out"].items():
        print(f"{name} is left out: {why}.")
    for row in document["rows"]:
        if row["faults"]:
            print(f"{row['setting']}: {'; '.join(row['faults'])}")


def _precision_row(setting: str, text: str, part: Row, verdict: str | None) -> list[str]:
    figures = [part["loss"], part["loss_first"], part["kl_mean"], part["kl_quantiles"]["0.99"], part["kl_max"]]
    return [
        setting, text, f"{part['num_positions']:,}", *(f"{figure:.3g}" for figure in figures),
        f"{part['top1_agreement']:.2%}", coloured(verdict),
    ]  # fmt: skip


def print_worst(document: Row) -> None:
    """The comparison, then where the two differ most."""
    print_precision(document)
    for row in document["rows"]:
        columns = ("text", "at", "KL", "after", "stands", f"{document['compared_with']} says", f"{row['setting']} says")
        worst = [
            [each["text"], f"{each['position']:,}", f"{each['kl']:.3g}"]
            + [repr(each[name]) for name in ("before", "token", "likeliest_first", "likeliest")]
            for each in row["worst"]
        ]
        draw("worst positions", columns, worst, num_texts=7)
