"""The command line: `popqorn demo`."""

import math
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import popqorn
from popqorn import bundled
from popqorn.report.figures import frame_sensitivity

app = typer.Typer(
    help="POPQORN proves how far each frame of a sequence may move before a recurrent network changes its decision.",
    no_args_is_help=True,
    add_completion=False,
)
NORMS = (math.inf, 2.0, 1.0)


def main() -> None:
    """The `popqorn` command."""
    app()


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(popqorn.__version__)
        raise typer.Exit


@app.command()
def demo(
    model: Annotated[str, typer.Option(help="Which bundled network: rnn, lstm or gru.")] = "lstm",
    samples: Annotated[int, typer.Option(min=1, max=100, help="How many of the bundled digits.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("popqorn-demo"),
) -> None:
    """Certify a bundled network on bundled MNIST digits: a table of radii, and a picture of each frame's sensitivity."""
    if model not in bundled.KINDS:
        raise typer.BadParameter(f"{model!r} is not bundled; pass one of {', '.join(bundled.KINDS)}", param_hint="--model")
    console = Console()
    network = bundled.load_model(model)
    inputs, labels = bundled.load_digits(samples)
    accuracy = 100 * bundled.test_accuracy(model)
    console.print(
        f"{model.upper()}, {bundled.FRAMES} frames x {bundled.HIDDEN} hidden, {accuracy:.2f} % on the MNIST test set. "
        "No perturbation that moves every frame by less than the radius can change the decision:"
    )
    radii = torch.zeros(samples, len(NORMS), dtype=torch.float64)
    seconds = [0.0] * samples
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("certifying", total=samples * (len(NORMS) + 1))
        for column, norm in enumerate(NORMS):
            for index in torch.arange(samples).split(10):
                found = popqorn.certify(network, inputs[index], labels=labels[index], norm=norm)
                radii[index, column] = found.radius
                for sample in index.tolist():
                    seconds[sample] += found.seconds / len(index)
                progress.advance(task, len(index))
        started = time.perf_counter()
        shown = inputs[:10]
        frames = popqorn.sensitivity(network, shown, labels=labels[:10], norm=2)
        progress.advance(task, samples)
        for sample in range(len(shown)):
            seconds[sample] += (time.perf_counter() - started) / len(shown)
    decisions = network.double()(inputs).argmax(-1).tolist()
    console.print(_table(labels.tolist(), decisions, radii, seconds))
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "sensitivity.png"
    pairs = zip(labels.tolist(), decisions, strict=True)
    titles = [f"{label} read as {decision}" + (" (wrong)" if label != decision else "") for label, decision in pairs]
    frame_sensitivity(shown.reshape(-1, 28, 28).numpy(), frames.numpy(), titles, picture)
    console.print(f"Which slices decide (red: least radius when it alone moves, p = 2): [bold]{picture}[/bold]")


def _table(labels: list[int], decisions: list[int], radii: torch.Tensor, seconds: list[float]) -> Table:
    table = Table()
    for heading in ("sample", "label", "decision", "p = inf", "p = 2", "p = 1", "seconds"):
        table.add_column(heading, justify="right")
    for sample, (label, decision) in enumerate(zip(labels, decisions, strict=True)):
        wrong = label != decision
        numbers = ["-" if wrong else f"{radius:.4f}" for radius in radii[sample].tolist()]
        shown = f"{decision} (wrong)" if wrong else str(decision)
        table.add_row(str(sample), str(label), shown, *numbers, f"{seconds[sample]:.2f}")
    return table
