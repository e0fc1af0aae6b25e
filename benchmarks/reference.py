"""Our radii beside those of other programs on public models: one ratio per row, at least 1 everywhere.

python benchmarks/reference.py [--class plain]
"""

import argparse
import statistics
from collections import defaultdict

import public
import torch

import popqorn

TOLERANCE = 1e-3


def our_radii(rows: list[public.Row], method: str = "planes", tolerance: float = TOLERANCE) -> list[float]:
    """The certified radius for every row's model, norm, digit and target; rows that share a model and norm go in one batch."""
    groups: dict[tuple[str, float], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row.model, row.norm].append(number)
    radii = [0.0] * len(rows)
    for (name, norm), numbers in groups.items():
        inputs, _ = public.digits(public.frames_of(name), 1 + max(rows[number].index for number in numbers))
        wanted = sorted({(rows[number].index, rows[number].label, rows[number].target) for number in numbers})
        index, labels, targets = (torch.tensor(column) for column in zip(*wanted, strict=True))
        certificate = popqorn.certify(
            public.load_model(name), inputs[index], labels=labels, targets=targets, norm=norm, method=method, tolerance=tolerance
        )
        found = dict(zip(wanted, certificate.radius.tolist(), strict=True))
        for number in numbers:
            row = rows[number]
            radii[number] = found[row.index, row.label, row.target]
    return radii


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--class", dest="kind", default="plain", choices=["plain", "optimised", "weak"])
    kind = parser.parse_args().kind
    torch.set_num_threads(2)
    programs = ("POPQORN", "auto_LiRPA", "PROVER") if kind == "plain" else None
    rows = public.rows(kind, programs)
    radii = our_radii(rows)
    ratios: dict[tuple[str, float, str, str], list[float]] = defaultdict(list)
    for row, radius in zip(rows, radii, strict=True):
        ratios[row.model, row.norm, row.program, row.method].append(radius / row.eps)
    print(
        f"{'model':20} {'norm':>5} {'program':12} {'method':20} {'rows':>4} {'least':>7} {'mean':>7} {'most':>7}   ours / theirs"
    )
    for (model, norm, program, method), values in sorted(ratios.items(), key=str):
        least, mean, most = min(values), statistics.mean(values), max(values)
        print(f"{model:20} {norm:5g} {program:12} {method:20} {len(values):4} {least:7.4f} {mean:7.4f} {most:7.4f}")
    everything = [value for values in ratios.values() for value in values]
    print(f"{len(everything)} rows, least ratio {min(everything):.4f}, mean {statistics.mean(everything):.4f}")


if __name__ == "__main__":
    main()
