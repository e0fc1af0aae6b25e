"""Write `tests/golden.json`: radii of the bundled networks, searched to 1e-9, that later versions must reproduce to 1e-6.

    python scripts/write_golden.py

Run it only when a change is *meant* to move the radii, and say so in the commit.
"""

import json
from pathlib import Path

import torch

import popqorn
from popqorn import bundled

SAMPLES = 4
NORMS = (1.0, 2.0, float("inf"))


def radii(kind: str, norm: float, method: str) -> list[float]:
    """Targeted radii of the first bundled digits."""
    inputs, _ = bundled.load_digits(SAMPLES)
    model = bundled.load_model(kind)
    with torch.no_grad():
        labels = model.double()(inputs).argmax(-1)
    found = popqorn.certify(model, inputs, labels=labels, targets=(labels + 3) % 10, norm=norm, method=method, tolerance=1e-9)
    return found.radius.tolist()


def main() -> None:
    rows = [
        {"kind": kind, "norm": str(norm), "method": method, "radius": radii(kind, norm, method)}
        for kind in bundled.KINDS
        for norm, method in [*((norm, "planes") for norm in NORMS), (2.0, "lines"), (2.0, "constants")]
    ]
    path = Path(__file__).resolve().parents[1] / "tests" / "golden.json"
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
