"""The command line: `popqorn demo`, `popqorn certify MODEL DATA`, `popqorn experiment NAME`, `popqorn report RESULTS`."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

import popqorn
from popqorn import bundled
from popqorn.commands import add_commands
from popqorn.experiments.data import default_folder
from popqorn.experiments.registry import EXPERIMENTS
from popqorn.experiments.results import FILE as RESULTS_FILE
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup
from popqorn.experiments.tracking import Track
from popqorn.given import read_trainable
from popqorn.report import own
from popqorn.report.completing import completing, newest
from popqorn.report.evidence import Evidence
from popqorn.report.figures import frame_sensitivity
from popqorn.report.page import Report
from popqorn.report.registry import report_of
from popqorn.runs.data import read_data
from popqorn.runs.local import Local
from popqorn.runs.run import FILE as RUNS_FILE
from popqorn.runs.run import FOLDER
from popqorn.runs.store import Store
from popqorn.training.loss import STRENGTH
from popqorn.working import INTERRUPTED, NOT_MET, say, told, worked

app = typer.Typer(
    help="POPQORN proves how far the input of a sequence model may be perturbed before what you rely on stops being true.",
    no_args_is_help=True,
)
add_commands(app)
NORMS = (math.inf, 2.0, 1.0)
RESULTS = Path("popqorn-results")
SUMMARIES = "; ".join(f"{name} ({one.summary})" for name, one in EXPERIMENTS.items())


def main() -> None:
    """The `popqorn` command; as with `python -m`, modules of the current folder can be named."""
    sys.path.insert(0, str(Path.cwd()))
    app()


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(popqorn.__version__)
        raise typer.Exit


@app.command()
def demo(
    model: Annotated[str, typer.Option(help="Which bundled network: rnn, lstm, gru or robust_lstm.")] = "lstm",
    samples: Annotated[int, typer.Option(min=1, max=100, help="How many of the bundled digits.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("popqorn-demo"),
) -> None:
    """Certify a bundled network on bundled MNIST digits: a table of radii, and a picture of each frame's sensitivity.

    Example: popqorn demo --model gru --samples 2
    """
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
    started = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("certifying", total=samples * (len(NORMS) + 1))
        for column, norm in enumerate(NORMS):
            for index in torch.arange(samples).split(10):
                found = popqorn.certify(network, inputs[index], labels=labels[index], norm=norm)
                radii[index, column] = found.radius
                progress.advance(task, len(index))
        shown = inputs[:10]
        frames = popqorn.sensitivity(network, shown, labels=labels[:10], norm=2)
        progress.advance(task, samples)
    seconds = time.perf_counter() - started
    decisions = network.double()(inputs).argmax(-1).tolist()
    console.print(_table(labels.tolist(), decisions, radii))
    if model == "lstm":
        _compare(console, inputs, labels, radii[:, 0])
    console.print(f"{samples * len(NORMS)} radii, and those of every slice of {len(shown)} digits alone: {seconds:.1f} s.")
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "sensitivity.png"
    pairs = zip(labels.tolist(), decisions, strict=True)
    titles = [f"{label} read as {decision}" + (" (wrong)" if label != decision else "") for label, decision in pairs]
    frame_sensitivity(shown.reshape(-1, 28, 28).numpy(), frames.radius.numpy(), titles, picture)
    console.print(f"Which slices decide (red: least radius when it alone moves, p = 2): [bold]{picture}[/bold]")


def _compare(console: Console, inputs: torch.Tensor, labels: torch.Tensor, plain: torch.Tensor) -> None:
    """What the same network certifies if it is trained for that."""
    robust = popqorn.certify(bundled.load_model("robust_lstm"), inputs, labels=labels).radius.mean()
    console.print(
        f"Mean radius, p = inf: {float(plain.mean()):.4f}. Of the same network trained to be certified (popqorn.training; "
        f"--model robust_lstm, {100 * bundled.test_accuracy('robust_lstm'):.2f} % on the test set): "
        f"[bold]{float(robust):.4f}[/bold], {float(robust / plain.mean()):.1f} times as far."
    )


def _table(labels: list[int], decisions: list[int], radii: torch.Tensor) -> Table:
    table = Table()
    for heading in ("sample", "label", "decision", "p = inf", "p = 2", "p = 1"):
        table.add_column(heading, justify="right")
    for sample, (label, decision) in enumerate(zip(labels, decisions, strict=True)):
        wrong = label != decision
        numbers = ["-" if wrong else f"{radius:.4f}" for radius in radii[sample].tolist()]
        shown = f"{decision} (wrong)" if wrong else str(decision)
        table.add_row(str(sample), str(label), shown, *numbers)
    return table


# ---- one's own models ----------------------------------------------------------------------------------------------------------


@app.command()
def robustify(
    model: Annotated[str, typer.Argument(help="A .safetensors file of popqorn.save, or package.module:factory.")],
    data: Annotated[Path, typer.Argument(help="A file with labels: .npz (x, y), .csv, .parquet.")],
    eps: Annotated[float, typer.Option(help="How far inputs move.")],
    norm: Annotated[float, typer.Option(help="The norm of the ball: 1, 2, inf or any number from 1 on.")] = math.inf,
    strength: Annotated[float, typer.Option(help="Larger: longer radii, less accuracy.")] = STRENGTH,
    accuracy_loss: Annotated[
        float | None, typer.Option(help="The most accuracy to lose, 0.01 for one point; the strength then finds itself.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 5,
    batch: Annotated[int, typer.Option(min=1)] = 256,
    seed: Annotated[int, typer.Option()] = 0,
    out: Annotated[Path, typer.Option(help="Where the network goes; unfinished runs are kept beside it.")] = Path(
        "robust.safetensors"
    ),
) -> None:
    """Fine-tune a classifier until its decisions can be certified, and keep the best epoch (docs/training.md).

    Example: popqorn robustify model.safetensors data.npz --eps 0.02
    """
    console = Console()
    with told(console):
        network, (inputs, labels) = read_trainable(model), read_data(data).stacked()
        kept = out.with_suffix(".epochs")
        with _tracker(console)("training", 1.0) as at:
            found = popqorn.training.robustify(
                network,
                inputs,
                labels,
                eps,
                region=popqorn.Ball(norm),
                strength=strength,
                accuracy_loss=accuracy_loss,
                epochs=epochs,
                batch=batch,
                seed=seed,
                kept=kept,
                progress=lambda done, total: at(done / total),
            )
        say(console, str(found))
        if len(found.epochs) <= epochs:
            say(console, f"Stopped. What is done is kept in {kept}; the same command goes on from there.")
            raise typer.Exit(INTERRUPTED)
        popqorn.save(found.model, out)
        kept.unlink(missing_ok=True)
        say(console, f"Epoch {found.best} is in {out}.")


# ---- experiments -------------------------------------------------------------------------------------------------------------


@app.command(help=f"Run an experiment on real data: {SUMMARIES}.\n\nExample: popqorn experiment strokes --data DIR --quick")
def experiment(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets (default: $POPQORN_DATA, else the cache).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for results; trained networks are kept there, too.")] = RESULTS,
    samples: Annotated[int | None, typer.Option(min=1, help="How many samples (default: the full protocol's).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few minutes: fewer networks, few and short samples.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier results of it (networks are kept).")] = False,
) -> None:
    if name not in EXPERIMENTS:
        raise typer.BadParameter(f"{name!r} is no experiment; pass one of {', '.join(EXPERIMENTS)}", param_hint="NAME")
    console = Console()
    chosen = EXPERIMENTS[name]
    count = samples or (chosen.quick_samples if quick else chosen.samples)
    folder = out / (f"{name}-quick" if quick else name)
    with told(console):
        results = chosen.open(name, folder, quick=quick, fresh=fresh)
        started = time.perf_counter()
        try:
            chosen.run(results, Setup(data or default_folder(), out / "networks", count, quick, _tracker(console)))
        except KeyboardInterrupt:
            say(
                console,
                f"Stopped. What is done is kept in {folder}; the same command goes on from there, `popqorn report {folder}` "
                "shows what there is.",
            )
            raise typer.Exit(INTERRUPTED) from None
        console.print(f"Done in {time.perf_counter() - started:.0f} s.")
        _write(console, report_of(results), folder)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="A store, or a folder with one; or what `popqorn experiment` wrote.")] = FOLDER,
    run: Annotated[str | None, typer.Option(help="Which run of the store (default: the newest).")] = None,
    require: Annotated[float | None, typer.Option(help="The size to which every sample must be proven.")] = None,
    frames: Annotated[int, typer.Option(min=0, help="How many samples to ask frame by frame.")] = 5,
    as_is: Annotated[bool, typer.Option("--as-is", help="Attack nothing: write what the store holds.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the page (default: beside the store).")] = None,
) -> None:
    """The page of a run: what is required, proven and open, for a safety case; or of an experiment, finished or not.

    What such a page needs beside certified radii (attacks, sensitivities of some samples) is done first, unless --as-is is given.

    Example: popqorn report popqorn-runs --require 0.01
    """
    console = Console()
    with told(console):
        if (results / RESULTS_FILE).is_file():
            _write(console, report_of(Results.read(results)), results)
            return
        if results.is_dir() and not (results / RUNS_FILE).is_file():
            raise ValueError(f"results: {str(results)!r} holds neither {RUNS_FILE} nor {RESULTS_FILE}; pass one that does")
        store = Store.read(results / RUNS_FILE if results.is_dir() else results)
        name = run or newest(store)
        finished = as_is or all(worked(console, prepared, Local()) for prepared in completing(store, name, frames))
        page = own.report(Evidence.of(store, name), require)
        _write(console, page, out or store.path.with_name(f"report-{name}"))
    if not finished:
        raise typer.Exit(INTERRUPTED)
    if require is not None and not page.data["requirement"]["met"]:  # type: ignore[index]
        raise typer.Exit(NOT_MET)


def _write(console: Console, found: Report, folder: Path) -> None:
    say(console, found.lead)
    for value, meaning in found.facts:
        say(console, f"  {value} {meaning}")
    page, *others = found.write(folder, _tracker(console))
    say(console, f"Page: {page}, beside {len(others)} tables and pictures.")


def _tracker(console: Console) -> Track:
    """Progress bars with the time left, one at a time; lines where there is no terminal."""

    @contextmanager
    def track(description: str, total: float) -> Iterator[Callable[[float], None]]:
        if not console.is_terminal:  # a log file: a line for every tenth, at once
            shown = -1

            def tell(done: float) -> None:
                nonlocal shown
                tenth = int(10 * done / total) if total else 10
                if tenth > shown:
                    shown = tenth
                    console.print(f"{description}: {10 * tenth} %")
                    console.file.flush()

            yield tell
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("left"))
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(description, total=total)
            yield lambda done: progress.update(task, completed=done)

    return track
