"""What every benchmark ends with: a Markdown table for people and `target/bench/NAME.json` for programs."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass
class Row:
    """One figure; `bar` is what it has to reach, in words, and `holds` whether it does (both None: only shown)."""

    case: str
    metric: str
    value: float
    unit: str
    bar: str | None = None
    holds: bool | None = None


def machine() -> str:
    """Names what the figures were measured on."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    model = models[0] if models else platform.machine()
    return f"{os.cpu_count()} x {model}, {memory_kb >> 20} GiB, Linux {platform.release()}"


def write(name: str, rows: list[Row]) -> Path:
    """Writes `target/bench/NAME.json`; its path."""
    path = ROOT / "target" / "bench" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": name, "machine": machine(), "rows": [asdict(row) for row in rows]}, indent=1))
    return path


def markdown(header: list[str], body: list[list[str]]) -> str:
    """A table whose columns line up; the first is text, the others are figures."""
    widths = [max(len(line[column]) for line in [header, *body]) for column in range(len(header))]

    def line(cells):
        padded = [cells[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0]] + ["-" * (width - 1) + ":" for width in widths[1:]]
    return "\n".join([line(header), line(rule), *map(line, body)])


def summary(rows: list[Row]) -> str:
    """How many bars hold."""
    barred = [row for row in rows if row.holds is not None]
    missed = [f"{row.case}: {row.metric} is {row.value:.2f} {row.unit}, not {row.bar}" for row in barred if not row.holds]
    return "\n".join([f"{len(barred) - len(missed)} of {len(barred)} bars hold on {machine()}.", *missed])
