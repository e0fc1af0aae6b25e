"""`popqorn certify MODEL DATA` and its sisters: one command from a model file and a data file to rows that can be handed on."""

import math
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from popqorn.given import read_given_model
from popqorn.readers.models import read_model
from popqorn.runs.data import Fault, read_data, together
from popqorn.runs.engines import read_engine
from popqorn.runs.export import check_suffix
from popqorn.runs.plan import Plan
from popqorn.runs.run import FILE, FOLDER, prepare, proven_to
from popqorn.runs.store import FAILED, Row
from popqorn.runs.worker import described
from popqorn.working import INTERRUPTED, NOT_MET, PICTURES, say, show_curve, show_rows, told, worked

ModelFile = Annotated[str, typer.Argument(help="A .onnx, .safetensors or .pt2 file, or package.module:factory.")]
DataFile = Annotated[Path, typer.Argument(help="An .npz or .npy file (x, y, lengths), a .csv or .parquet table, .txt sentences.")]
Given = typer.Option

COMMANDS = {
    "certify": "How far every sample may be perturbed before the decision can change: proven radii.",
    "verify": "Whether the decision of every sample is proven to stay at one size, --eps.",
    "attack": "The smallest perturbation of every sample found that changes the decision.",
    "bracket": "What is proven and what an attack reaches, for every sample.",
    "sensitivity": "How far every frame alone may move: proven, and reached by attacks.",
    "curve": "Certified accuracy over sizes, with the accuracy under attack beside it.",
}
ASKS = {"curve": "bracket"}  # what a command asks of every sample, where it is not its own name


def add_commands(app: typer.Typer) -> None:
    for name, summary in COMMANDS.items():
        _add(app, name, summary)
    app.command()(info)


def _add(app: typer.Typer, name: str, summary: str) -> None:
    size = " --eps 0.01" if name == "verify" else ""
    asks = ASKS.get(name, name)

    def command(
        context: typer.Context,
        model: ModelFile,
        data: DataFile,
        config: Annotated[
            Path | None, Given(help="A .toml file of settings, as every run writes it; options given here win.")
        ] = None,
        norm: Annotated[float, Given(help="The norm of the ball: 1, 2, inf or any number from 1 on.")] = math.inf,
        clip: Annotated[tuple[float, float] | None, Given(help="The range that inputs never leave, such as 0 1.")] = None,
        total: Annotated[bool, Given("--total", help="One budget for all frames, not each its own.")] = False,
        frame: Annotated[list[int] | None, Given(help="Only this frame moves (may be given again).")] = None,
        scale: Annotated[str | None, Given(help="Shares of the size: `std` of each feature in the data, or 0.5,2,1.")] = None,
        synonyms: Annotated[Path | None, Given(help="A .json file: words, and what may stand for them.")] = None,
        most: Annotated[int | None, Given(min=1, help="At most so many words at once.")] = None,
        eps: Annotated[float | None, Given(help="The size, for `verify`.")] = None,
        within: Annotated[float | None, Given(help="Outputs must stay this close, instead of the decision.")] = None,
        inequalities: Annotated[Path | None, Given(help="An .npz file: rows @ output + offset > 0 must hold.")] = None,
        method: Annotated[str, Given(help="planes, tight, split, lines, constants or interval.")] = "planes",
        effort: Annotated[int | None, Given(help="1 to 3, for tight.")] = None,
        seconds: Annotated[float | None, Given(help="Time for each sample, for split and effort 3.")] = None,
        tolerance: Annotated[float, Given(help="Relative width to which radii are searched.")] = 1e-3,
        dtype: Annotated[str, Given(help="float64 or float32.")] = "float64",
        device: Annotated[str, Given(help="Where to compute: cpu, cuda, cuda:1.")] = "cpu",
        seed: Annotated[int, Given(help="Of attacks.")] = 0,
        batch: Annotated[int, Given(help="How many samples at once.")] = 16,
        samples: Annotated[int | None, Given(min=1, help="Only the first so many samples.")] = None,
        store: Annotated[Path, Given(help="The file that keeps every row as it is known.")] = FOLDER / FILE,
        out: Annotated[Path | None, Given(help="Write the rows to this .csv, .jsonl or .parquet file as well.")] = None,
        engine: Annotated[str, Given(help="local, processes, or ray.")] = "local",
        workers: Annotated[int | None, Given("-n", "--workers", min=1, help="How many processes or actors.")] = None,
        address: Annotated[str | None, Given(help="Of a Ray cluster, such as auto; else Ray runs here.")] = None,
        require: Annotated[float | None, Given(help="Exit with 0 only if every sample is proven to this size.")] = None,
    ) -> None:
        console = Console()
        with told(console):
            plan = Plan.of({**_settings(context), "command": asks, **_configured(context, config, asks)})
            _check_require(require, plan)
            if out is not None:
                check_suffix(out, PICTURES if name == "curve" else ())
            prepared = prepare(model, data, plan, store=store, samples=samples)
            prepared.worker.plan.write(store.with_name(f"{prepared.run.name}.toml"))
            finished = worked(console, prepared, read_engine(engine, workers, address, plan.device))
            (show_curve if name == "curve" else show_rows)(console, prepared.run, out)
            if require is not None:
                met = sum(proven_to(row, require) for row in prepared.run.rows)
                say(console, f"Proven to {require:g}: {met} of {prepared.run.about['samples']}.")
            if finished and all(row["status"] == FAILED for row in prepared.run.rows):
                raise ValueError("every sample failed; what is said of the first holds for the call as a whole")
        if not finished:
            raise typer.Exit(INTERRUPTED)
        if require is not None and not prepared.run.meets(require):
            raise typer.Exit(NOT_MET)

    app.command(name, help=f"{summary}\n\nExample: popqorn {name} model.onnx data.npz{size} --norm inf --out rows.csv")(command)


def _check_require(require: float | None, plan: Plan) -> None:
    """A requirement that no outcome could meet is a wrong call."""
    if require is None:
        return
    if not 0 <= require < math.inf:
        raise ValueError(f"require is {require}; pass a finite size, not negative")
    if plan.command in ("attack", "sensitivity"):
        why = "attacks prove nothing" if plan.command == "attack" else "frames that move one at a time prove nothing of all"
        raise ValueError(f"require is {require:g}, but {why}; ask `popqorn certify` or `bracket`")
    if plan.eps is not None and not plan.eps >= require:
        raise ValueError(f"require is {require:g}, but eps is {plan.eps:g}; prove at that size: --eps {require:g}")


def _settings(context: typer.Context) -> Row:
    """The options, as a plan has them."""
    given = {key: str(value) if isinstance(value, Path) else value for key, value in context.params.items()}
    settings = {key: value for key, value in given.items() if key in Plan.__dataclass_fields__}
    if settings["scale"] not in (None, "std"):
        try:
            settings["scale"] = [float(share) for share in settings["scale"].split(",")]
        except ValueError:
            raise ValueError(f"scale is {settings['scale']!r}; pass std, or numbers such as 0.5,2,1") from None
    return {**settings, "frames": given["frame"] or None}


def _configured(context: typer.Context, config: Path | None, asks: str) -> Row:
    """The settings of the file, but for those that the command line names itself."""
    if config is None:
        return {}
    found = Plan.read(config)
    asked = found.pop("command", asks)
    if asked != asks:
        raise ValueError(f"config: {config.name} is of `popqorn {asked}`; call that, or leave the command out of it")
    names = {"frames": "frame"}
    given = {key for key in found if context.get_parameter_source(names.get(key, key)).name == "COMMANDLINE"}  # type: ignore[union-attr]
    return {key: value for key, value in found.items() if key not in given}


def info(model: ModelFile, data: Annotated[Path | None, typer.Argument(help="A file of data.")] = None) -> None:
    """What a model computes, as popqorn reads it, and what a file of data holds.

    Example: popqorn info model.onnx data.npz
    """
    console = Console()
    with told(console):
        given = read_given_model(model)
        network = read_model(given)
        say(console, f"{model}: {described(given)}.")
        if data is not None:
            read = read_data(data)
            shapes = sorted({tuple(one.shape) for one in read.inputs if isinstance(one, torch.Tensor)})
            shown = ", ".join(map(str, shapes[:5])) + (", ..." if len(shapes) > 5 else "") if shapes else "sentences"
            labels = "no labels" if read.said is None else f"{len(set(map(str, read.said)))} labels"
            say(console, f"{data}: {len(read)} samples of {shown}; {labels}.")
            first = next((one for one in read.inputs if not isinstance(one, Fault)), None)
            if first is None:
                raise ValueError(f"data: {data.name} holds no sample that can be read")
            group = network.sequences(together([first]), None, torch.float64)[0]
            tape = network.reading(group, decides=True).tape
            say(console, f"Read for the first of them: {len(tape.nodes)} operations, outputs {tuple(tape.shape)}.")
