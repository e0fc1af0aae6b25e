"""ONNX files that strangers published: how far their decisions are proven to hold, beside what attacks find.

    python benchmarks/onnx_files.py [--samples 92] [--intervals 3] [--eps 0.01] [--method planes]

Four parts: the certified and attacked radii of the pose classifier on its own test data (`--samples` of them), in p = inf and
p = 2; the output interval of the aircraft network and the probabilities of the other classifier at `--eps` around random inputs
(`--intervals` of them), beside the extremes an attack attains in onnxruntime; one step of the speech network, with its state
given. Writes `benchmarks/results/onnx_files.json`.
"""

import argparse
import json
import math
import time
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


def loaded(name: str, **options: Any) -> OnnxNetwork:
    started = time.perf_counter()
    network = read_onnx(FOLDER / name, **options)
    print(f"{name}: read and compared with onnxruntime in {time.perf_counter() - started:.1f} s", flush=True)
    return network


def distribution(radius: Tensor) -> str:
    return "  ".join(f"{float(value):.5f}" for value in radius.quantile(torch.tensor(SHARES, dtype=radius.dtype)))


def pose(samples: int, method: str) -> list[dict[str, Any]]:
    """The pose classifier on its own data: radii proven, radii at which an attack succeeds."""
    network = loaded("pose_gru.onnx")
    with np.load(FOLDER / "pose_test.npz") as file:
        inputs, labels = torch.from_numpy(file["x"])[:samples], torch.from_numpy(file["y"])[:samples]
    right = network(inputs).argmax(-1) == labels
    print(f"{len(inputs)} sequences, {float(right.double().mean()):.1%} right; the radii of those, at the quantiles {SHARES}")
    found = []
    for norm in (math.inf, 2.0):
        asked = {"labels": labels[right], "norm": norm}
        certified = popqorn.certify(network, inputs[right], method=method, tolerance=1e-2, **asked)
        print(f"p = {norm:g}  certified  {distribution(certified.radius)}  ({certified.seconds:.0f} s)", flush=True)
        attacked = popqorn.attack(network, inputs[right], **asked)
        ratio = certified.radius / attacked.radius
        print(f"p = {norm:g}  attacked   {distribution(attacked.radius)}  ({attacked.seconds:.0f} s)")
        print(
            f"p = {norm:g}  certified / attacked: median {float(ratio.median()):.3f}, most {float(ratio.max()):.3f}", flush=True
        )
        found.append({"norm": str(norm), "certified": certified.radius.tolist(), "attacked": attacked.radius.tolist()})
    return found


def attained(network: OnnxNetwork, inputs: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The least and greatest outputs found within `eps`, each output for itself, as onnxruntime computes them."""
    (group,) = network.sequences(inputs, None, torch.float64)
    tape, own = (reading := network.reading(group, decides=False)).tape, reading.own
    generator = torch.Generator().manual_seed(0)
    low = high = own(group.values).double()
    for output in range(tape.outputs):
        for sign in (-1.0, 1.0):
            for _ in range(RESTARTS):
                moved = eps * (2 * torch.rand(group.values.shape, generator=generator, dtype=torch.float64) - 1)
                for step in range(STEPS):
                    moved.requires_grad_(True)
                    (slope,) = torch.autograd.grad(sign * tape(group.values + moved)[:, output].sum(), moved)
                    moved = (moved.detach() + eps * 2 / (2 + step) * slope.sign()).clamp(-eps, eps)
                reached = own(group.values + moved).double()
                low, high = torch.minimum(low, reached), torch.maximum(high, reached)
    return low, high


def intervals(name: str, network: OnnxNetwork, inputs: Tensor, eps: float, method: str) -> dict[str, Any]:
    """Proven bounds of the outputs beside what is attained."""
    started = time.perf_counter()
    found = popqorn.bounds(network, inputs, eps=eps, method=method)
    seconds = time.perf_counter() - started
    lower, upper = found.lower.flatten(1), found.upper.flatten(1)
    low, high = attained(network, inputs, eps)
    print(f"{name}, eps {eps:g}, method {method}: {seconds:.0f} s for {len(inputs)} inputs")
    for sample in range(len(inputs)):
        for output in range(lower.shape[1]):
            row = [float(each[sample, output]) for each in (lower, low, high, upper)]
            print(f"  input {sample} output {output}: proven {row[0]:.5g} .. {row[3]:.5g}, attained {row[1]:.5g} .. {row[2]:.5g}")
    share = (high - low) / (upper - lower)
    print(f"  attained / proven width: mean {float(share.mean()):.3f}, least {float(share.min()):.3f}", flush=True)
    return {
        "name": name,
        "eps": eps,
        "lower": lower.tolist(),
        "upper": upper.tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
    }


def speech(eps: float, method: str) -> dict[str, Any]:
    """One step of the speech network from the state of silence: how far its mask moves, over 257 bands."""
    network = loaded("dtln_1.onnx", inputs={"input_3": np.zeros((1, 2, 128, 2), np.float32)})
    inputs = torch.rand(1, 1, 257, generator=torch.Generator().manual_seed(0))
    started = time.perf_counter()
    found = popqorn.bounds(network, inputs, eps=eps, method=method)
    seconds = time.perf_counter() - started
    width = (found.upper - found.lower).flatten()
    corners = torch.stack([inputs[0] + eps * (torch.rand(1, 257) * 2 - 1).sign() for _ in range(200)])
    reached = network(corners).flatten(1).double()
    assert (reached >= found.lower.flatten() - 1e-5).all()
    assert (reached <= found.upper.flatten() + 1e-5).all()
    tried = reached.amax(0) - reached.amin(0)
    print(f"speech, eps {eps:g}, method {method}, {seconds:.0f} s: width of the mask's bounds, mean over 257 bands")
    print(f"  proven {float(width.mean()):.5f}, of 200 corners tried {float(tried.mean()):.5f}", flush=True)
    return {"eps": eps, "proven": width.tolist(), "tried": tried.tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=92)
    parser.add_argument("--intervals", type=int, default=3)
    parser.add_argument("--eps", type=float, default=0.01)
    parser.add_argument("--method", default="planes")
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    found: dict[str, Any] = {"samples": options.samples, "method": options.method}
    found["aircraft"] = intervals(
        "aircraft", loaded("aircraft_lstm.onnx"), torch.rand(options.intervals, 30, 17), options.eps, options.method
    )
    found["earth"] = intervals("earth", loaded("earth_lstm.onnx"), torch.rand(1, 18, 1), options.eps, options.method)
    found["speech"] = speech(options.eps, options.method)
    found["pose"] = pose(options.samples, options.method)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "onnx_files.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
