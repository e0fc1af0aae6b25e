"""Write what an experiment found as a page of the documentation: docs/results/<experiment>.md, and its figures.

python scripts/write_results.py popqorn-results/training
"""

import argparse
from pathlib import Path

from popqorn.experiments.results import Results
from popqorn.report.registry import report_of

DOCS = Path(__file__).parents[1] / "docs" / "results"


def write(results: Results, folder: Path) -> Path:
    """The page; figures are named after the experiment, so that pages share the folder."""
    report, name = report_of(results), results.about["experiment"]
    text = report.markdown()
    folder.mkdir(parents=True, exist_ok=True)
    for figure, draw in report.figures.items():
        draw(folder / f"{name}_{figure}")
        text = text.replace(f"]({figure})", f"]({name}_{figure})")
    page = folder / f"{name}.md"
    page.write_text(text, encoding="utf-8")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--folder", type=Path, default=DOCS)
    options = parser.parse_args()
    print(write(Results.read(options.results), options.folder))


if __name__ == "__main__":
    main()
