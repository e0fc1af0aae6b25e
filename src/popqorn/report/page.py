"""A report: a summary, sections of tables and charts, and the one HTML page that shows them without outside resources."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Context, Decimal
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from popqorn.experiments.tracking import Track, silent
from popqorn.plot import SCALE, colours

Cell = str | int | float | None
LONGEST_IN_TEXT = 100


@runtime_checkable
class Part(Protocol):
    """Something a section shows."""

    def html(self) -> str: ...


@dataclass(frozen=True)
class Table:
    """A table to sort; also written as `<name>.csv` and `<name>.md`. None is an empty cell."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def html(self) -> str:
        numeric = [all(not isinstance(row[place], str) for row in self.rows) for place in range(len(self.columns))]
        kinds = ["number" if is_number else "text" for is_number in numeric]
        heads = "".join(
            f'<th scope="col" class="{kind}"><button type="button" data-sort="{place}">{escape(column)}</button></th>'
            for place, (column, kind) in enumerate(zip(self.columns, kinds, strict=True))
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td class="{kind}" data-value="{"" if cell is None else escape(str(cell))}">{escape(_shown(cell))}</td>'
                for cell, kind in zip(row, kinds, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        table = f'<table id="table-{self.name}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
        return f'<div class="scroll">{table}</div>{note}'

    def markdown(self) -> str:
        if len(self.rows) > LONGEST_IN_TEXT:
            return f"{len(self.rows)} rows, in `{self.name}.csv`.\n"
        lines = [" | ".join(self.columns), " | ".join("---" for _ in self.columns)]
        lines += [" | ".join(_shown(cell).replace("|", "\\|") for cell in row) for row in self.rows]
        return "\n".join(f"| {line} |" for line in lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.columns, *self.rows])
        return text.getvalue()


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def html(self) -> str:
        return f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Gallery:
    """Several small figures side by side."""

    figures: Sequence[Part]

    def html(self) -> str:
        return f'<div class="gallery">{"".join(figure.html() for figure in self.figures)}</div>'


@dataclass(frozen=True)
class Words:
    """A sentence, each word coloured by its radius; the most sensitive are underlined."""

    words: Sequence[str]
    radii: Sequence[float]
    underlined: Sequence[int]
    caption: str
    remarks: Sequence[str] = ()

    def html(self) -> str:
        spans = []
        for index, (word, radius, tint) in enumerate(zip(self.words, self.radii, colours(self.radii), strict=True)):
            remark = f". {self.remarks[index]}" if self.remarks and self.remarks[index] else ""
            about = tip(f"word {index + 1}, {word!r}: radius {number(radius)}{remark}")
            style = "word sensitive" if index in self.underlined else "word"
            spans.append(
                f'<span class="{style}" style="--tint:{tint}" {about}>{escape(word)}<small>{number(radius)}</small></span>'
            )
        return f'<figure class="sentence"><div>{" ".join(spans)}</div><figcaption>{escape(self.caption)}</figcaption></figure>'


@dataclass(frozen=True)
class Scale:
    """What the colours of sensitivity mean."""

    def html(self) -> str:
        least, greatest = (f"rgb{SCALE[end]}" for end in (0, -1))
        keys = {"most sensitive (least radius)": least, "least sensitive": greatest}
        told = "".join(f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in keys.items())
        return f'<p class="scale">{told}</p>'


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Report:
    """All there is to say of one experiment.

    - `lead`: what was found, in sentences anyone can read; `facts`: the few numbers behind them, with what they mean.
    - `settings`: what decides the numbers. `figures`: pictures for papers, name of the file and who draws it.
    - `data`: the same for programs, written as `report.json`. `met`: whether a requirement is, if there is one.
    """

    title: str
    lead: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    settings: Mapping[str, Any]
    figures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    data: Mapping[str, Any] | None = None
    met: bool | None = None

    @property
    def tables(self) -> list[Table]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Table)]

    def html(self) -> str:
        """The page: one file, no outside resources."""
        try:
            from jinja2 import Environment, PackageLoader
        except ImportError:
            raise ImportError("the page is written with jinja2; install it with: pip install 'popqorn[report]'") from None
        environment = Environment(
            loader=PackageLoader("popqorn.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        return environment.get_template("page.html.j2").render(report=self)

    def markdown(self) -> str:
        """The summary and all tables, for a repository or a paper's appendix."""
        lines = [f"# {self.title}", "", self.lead, ""]
        lines += [f"- **{value}** {meaning}" for value, meaning in self.facts]
        for section in self.sections:
            tables = [part for part in section.parts if isinstance(part, Table | Text)]
            if tables:
                lines += ["", f"## {section.title}", ""]
                lines += [part.markdown() if isinstance(part, Table) else part.text + "\n" for part in tables]
        if self.figures:
            lines += ["", "## Figures", ""]
            lines += [f"![{Path(name).stem.replace('_', ' ')}]({name})" for name in self.figures]
        lines += ["", "## Settings", ""]
        lines += [f"- {name}: {value}" for name, value in self.settings.items()]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path, track: Track = silent) -> list[Path]:
        """Page, tables and pictures in `folder`; returns what was written, the page first."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"index.html": self.html(), "report.md": self.markdown()}
        if self.data is not None:
            texts["report.json"] = json.dumps(self.data, indent=1, allow_nan=False) + "\n"
        texts |= {f"{table.name}.csv": table.csv() for table in self.tables}
        written = []
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
        with track("drawing pictures", len(self.figures)) as at:
            for number, (name, draw) in enumerate(self.figures.items(), start=1):
                draw(folder / name)
                written.append(folder / name)
                at(number)
        return written


class Proven(float):
    """A proven size: never shown larger than it is."""

    def down(self, digits: int = 3) -> float:
        """The next number of so many digits below."""
        return float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(Decimal(float(self)))) if isfinite(self) else self


def number(value: float) -> str:
    """A number for people: three digits; what is `Proven` is rounded down."""
    if value != value:
        return "-"
    value = value.down() if isinstance(value, Proven) else value
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.2e}"


def tip(text: str) -> str:
    """The attributes of what shows a text when pointed at."""
    return f'data-tip="{escape(text)}" tabindex="0"'


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    return number(cell) if isinstance(cell, float) else str(cell)
