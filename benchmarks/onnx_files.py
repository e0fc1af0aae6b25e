"""ONNX files that strangers published: how far their decisions are proven to hold, beside what attacks find.

    python benchmarks/onnx_files.py [--samples 92] [--intervals 3] [--eps 0.01] [--method planes] [--threads 2]

The output interval of the aircraft network at `--eps` around random inputs (`--intervals` of them), beside the extremes an attack
attains in onnxruntime; one step of the speech network, with its state given; the certified and attacked radii of both
classifiers in p = inf and p = 2: one on as many random inputs, the other on its own test data (`--samples` of them). Writes
`benchmarks/results/onnx_files.json`.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import public
import torch
from torch import Tensor

import popqorn
from popqorn.readers.onnx import OnnxNetwork, read_onnx

RESULTS = Path(__file__).parent / "results"
FOLDER = public.DATA / "models_public"
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
STEPS, RESTARTS = 60, 4  # of the attack on outputs
BANDS = [0, 32, 64, 96, 128, 160, 192, 224, 256]
TOLERANCE = 0.02  # relative width to which radii are searched


def loaded(name: str, **options: Any) -> OnnxNetwork:
    started = time.perf_counter()
    network = read_onnx(FOLDER / name, **options)
    print(f"{name}: read and compared with onnxruntime in {time.perf_counter() - started:.1f} s", flush=True)
    return network


def distribution(radius: Tensor) -> str:
    return "  ".join(f"{float(value):.5f}" for value in radius.quantile(torch.tensor(SHARES, dtype=radius.dtype)))


def pose_data(samples: int) -> tuple[Tensor, Tensor]:
    """Sequences of body points, and what the body does."""
    with np.load(FOLDER / "pose_test.npz") as file:
        return torch.from_numpy(file["x"])[:samples], torch.from_numpy(file["y"])[:samples]


def radii(network: OnnxNetwork, inputs: Tensor, labels: Tensor, norm: float, method: str) -> dict[str, Any]:
    """Radii that are proven, and radii at which an attack succeeds, of the inputs that are decided right."""
    right = network(inputs).argmax(-1) == labels
    print(f"p = {norm:g}: {len(inputs)} sequences, {float(right.double().mean()):.1%} right; radii of those, quantiles {SHARES}")
    asked: dict[str, Any] = {"labels": labels[right], "norm": norm}
    certified = popqorn.certify(network, inputs[right], method=method, tolerance=TOLERANCE, **asked)
    print(f"  certified  {distribution(certified.radius)}  ({certified.seconds:.0f} s)", flush=True)
    attacked = popqorn.attack(network, inputs[right], **asked)
    ratio = certified.radius / attacked.radius
    print(f"  attacked   {distribution(attacked.radius)}  ({attacked.seconds:.0f} s)")
    print(f"  certified / attacked: median {float(ratio.median()):.3f}, most {float(ratio.max()):.3f}", flush=True)
    return {"certified": certified.radius.tolist(), "attacked": attacked.radius.tolist(), "seconds": certified.seconds}


def attained(network: OnnxNetwork, inputs: Tensor, eps: float, outputs: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The least and greatest of some outputs found within `eps`, each for itself, as onnxruntime computes them."""
    (group,) = network.sequences(inputs, None, torch.float64)
    tape, own = (reading := network.reading(group, decides=False)).tape, reading.own
    generator = torch.Generator().manual_seed(0)
    low = high = own(group.values).double()
    for output in outputs:
        for sign in (-1.0, 1.0):
            for _ in range(RESTARTS):
                moved = eps * (2 * torch.rand(group.values.shape, generator=generator, dtype=torch.float64) - 1)
                for step in range(STEPS):
                    moved.requires_grad_(True)
                    (slope,) = torch.autograd.grad(sign * tape(group.values + moved)[:, output].sum(), moved)
                    moved = (moved.detach() + eps * 2 / (2 + step) * slope.sign()).clamp(-eps, eps)
                reached = own(group.values + moved).double()
                low, high = torch.minimum(low, reached), torch.maximum(high, reached)
    return low[:, outputs], high[:, outputs]


def intervals(network: OnnxNetwork, inputs: Tensor, eps: float, method: str) -> dict[str, Any]:
    """Proven bounds of the outputs beside what is attained."""
    started = time.perf_counter()
    found = popqorn.bounds(network, inputs, eps=eps, method=method)
    seconds = time.perf_counter() - started
    lower, upper = found.lower.flatten(1), found.upper.flatten(1)
    low, high = attained(network, inputs, eps, range(lower.shape[1]))
    print(f"eps {eps:g}, method {method}: {seconds:.0f} s for {len(inputs)} inputs")
    for sample in range(len(inputs)):
        for output in range(lower.shape[1]):
            row = [float(each[sample, output]) for each in (lower, low, high, upper)]
            print(f"  input {sample} output {output}: proven {row[0]:.5g} .. {row[3]:.5g}, attained {row[1]:.5g} .. {row[2]:.5g}")
    share = (high - low) / (upper - lower)
    print(f"  attained / proven width: mean {float(share.mean()):.3f}, least {float(share.min()):.3f}", flush=True)
    return {"eps": eps, "proven": [lower.tolist(), upper.tolist()], "attained": [low.tolist(), high.tolist()]}


def speech(eps: float, method: str) -> dict[str, Any]:
    """One step of the speech network from the state of silence: how far some of the 257 bands of its mask move."""
    network = loaded("dtln_1.onnx", inputs={"input_3": np.zeros((1, 2, 128, 2), np.float32)})
    inputs = torch.rand(1, 1, 257, generator=torch.Generator().manual_seed(0))
    started = time.perf_counter()
    found = popqorn.bounds(network, inputs, eps=eps, method=method)
    seconds = time.perf_counter() - started
    proven = (found.upper - found.lower).flatten()[BANDS]
    low, high = attained(network, inputs, eps, BANDS)
    reached = (high - low).flatten()
    print(f"eps {eps:g}, method {method}: {seconds:.1f} s; width of the mask, mean over the bands {BANDS}")
    print(f"  proven {float(proven.mean()):.4f}, attained {float(reached.mean()):.4f}", flush=True)
    return {"eps": eps, "proven": proven.tolist(), "attained": reached.tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=92)
    parser.add_argument("--intervals", type=int, default=3)
    parser.add_argument("--eps", type=float, default=0.01)
    parser.add_argument("--method", default="planes")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    found: dict[str, Any] = dict(vars(options))
    earth, pose = torch.rand(options.intervals, 18, 1), pose_data(options.samples)
    some = torch.rand(options.intervals, 30, 17)
    found["aircraft"] = intervals(loaded("aircraft_lstm.onnx"), some, options.eps, options.method)
    found["speech"] = speech(options.eps, options.method)
    networks = {name: loaded(f"{name}.onnx") for name in ("earth_lstm", "pose_gru")}
    data = {"earth_lstm": (earth, networks["earth_lstm"](earth).argmax(-1)), "pose_gru": pose}
    for name, network in networks.items():
        for norm in (math.inf, 2.0):
            print(name, end=", ")
            found[f"{name}, p = {norm:g}"] = radii(network, *data[name], norm, options.method)
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / "onnx_files.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
