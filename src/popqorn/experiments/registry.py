"""All experiments by name."""

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import popqorn
from popqorn.experiments import certifiable, mnist, relaxations, signals, strokes, words
from popqorn.experiments.results import Results
from popqorn.experiments.setup import Setup


@dataclass(frozen=True)
class Experiment:
    """What to run, how many samples make the full protocol and a quick run, and the training that decides its numbers."""

    run: Callable[[Results, Setup], None]
    samples: int
    quick_samples: int
    recipe: Any
    summary: str

    def about(self, name: str, quick: bool) -> dict[str, Any]:
        """What decides the numbers."""
        training = {key: value for key, value in asdict(self.recipe).items() if isinstance(value, int | float)}
        return {
            "experiment": name,
            "quick": quick,
            "popqorn": popqorn.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "method": "planes, unless a table says otherwise",
            "dtype": "float64",
            "training": ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in training.items()),
            "seed": 0,
        }

    def open(self, name: str, folder: Path, *, quick: bool, fresh: bool) -> Results:
        """The results of this experiment: begun, gone on with, or (`fresh`) begun anew."""
        if fresh:
            Results.forget(folder)
        return Results.open(folder, self.about(name, quick))


EXPERIMENTS = {
    "mnist": Experiment(
        mnist.run, mnist.SAMPLES, mnist.QUICK_SAMPLES, mnist.RECIPE, "Experiment I: 17 networks on MNIST, three norms"
    ),
    "relaxations": Experiment(
        relaxations.run,
        relaxations.SAMPLES,
        relaxations.QUICK_SAMPLES,
        mnist.RECIPE,
        "Appendix B.1: planes, lines, constants, intervals",
    ),
    "strokes": Experiment(
        strokes.run, strokes.SAMPLES, strokes.QUICK_SAMPLES, strokes.RECIPE, "Experiment II: pen strokes of digits"
    ),
    "questions": Experiment(
        words.run_questions, words.SAMPLES, words.QUICK_SAMPLES, words.QUESTIONS.recipe, "Experiment III: words of questions"
    ),
    "news": Experiment(
        words.run_news, words.SAMPLES, words.QUICK_SAMPLES, words.NEWS.recipe, "the appendix: words of news titles"
    ),
    "speech": Experiment(
        signals.run_speech, signals.SAMPLES, signals.QUICK_SAMPLES, signals.SPEECH_RECIPE, "moments of spoken digits"
    ),
    "training": Experiment(
        certifiable.run,
        certifiable.SAMPLES,
        certifiable.QUICK_SAMPLES,
        certifiable.RECIPE,
        "networks trained to be certified, beside plain, adversarial and interval training",
    ),
    "ecg": Experiment(signals.run_ecg, signals.SAMPLES, signals.QUICK_SAMPLES, signals.ECG_RECIPE, "moments of heart beats"),
}
