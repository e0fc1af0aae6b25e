"""The paper's ordering, sample by sample: certified < CLEVER-RNN and certified < C&W-Ada.

python benchmarks/ordering.py [--samples 20]
"""

import argparse
import math

import networks
import paper_speed
import public
import torch

import popqorn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(
        f"{'network':11} {'norm':>4} {'digits':>6} {'certified':>10} {'CLEVER':>10} {'C&W-Ada':>10} {'ordered':>7} {'misfit':>6}"
    )
    for task in paper_speed.TASKS:
        model = networks.network(task.kind, task.frames, task.hidden)
        inputs, labels = public.digits(task.frames, options.samples)
        for norm in (math.inf, 2):
            words = {"labels": labels, "targets": paper_speed.random_targets(labels), "norm": norm}
            certified = popqorn.certify(model, inputs, **words).radius
            estimated = popqorn.clever(model, inputs, **words)
            attacked = popqorn.attack(model, inputs, method="cw", **words).radius
            right = certified > 0
            ordered = (certified < estimated.score) & (certified < attacked)
            means = [float(column[right].mean()) for column in (certified, estimated.score, attacked)]
            print(
                f"{task.name:11} {norm:4g} {int(right.sum()):6} {means[0]:10.5f} {means[1]:10.5f} {means[2]:10.5f} "
                f"{int(ordered[right].sum()):7} {float((estimated.fit[right] < 0.05).double().mean()):6.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
