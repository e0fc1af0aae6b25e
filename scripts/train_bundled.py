"""Train the networks the package bundles (RNN, LSTM, GRU; 4 frames x 32 hidden) and store 100 test digits beside them.

    python scripts/train_bundled.py --mnist path/to/mnist.npz [--kinds robust_lstm]

`mnist.npz` holds `x_train`, `y_train`, `x_test`, `y_test` (uint8 images of 28 x 28). One minute per network on two cores.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from popqorn.bundled import FOLDER, FRAMES, HIDDEN, KINDS, blank_model
from popqorn.experiments.training import Recipe, accuracy, train
from popqorn.experiments.ways import CertifiableRecipe
from popqorn.training.loss import STRENGTH

EPOCHS = 12
ROBUST = CertifiableRecipe(14, batch=256, way="certified", eps=0.02, strength=STRENGTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    options = parser.parse_args()
    data = np.load(options.mnist)
    torch.set_num_threads(2)

    def split(name: str) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(data[f"x_{name}"]).reshape(len(data[f"x_{name}"]), FRAMES, -1) / 255
        return images, torch.from_numpy(data[f"y_{name}"]).long()

    images, labels = split("train")
    test_images, test_labels = split("test")
    for kind in options.kinds:
        torch.manual_seed(0)
        recipe = ROBUST if kind == "robust_lstm" else Recipe(EPOCHS)
        model = train(blank_model(kind), images, labels, recipe)
        share = accuracy(model, test_images, test_labels)
        print(f"{kind} {FRAMES} frames x {HIDDEN} hidden: test accuracy {100 * share:.2f} %")
        metadata = {"test_accuracy": f"{share:.4f}", "data": "MNIST", "epochs": str(recipe.epochs)}
        save_file(model.state_dict(), FOLDER / f"{kind}.safetensors", metadata)
    np.savez_compressed(FOLDER / "digits.npz", images=data["x_test"][:100], labels=data["y_test"][:100])


if __name__ == "__main__":
    main()
