"""Own images, as a library: a folder with a subfolder for each class, and any backbone of timm, fine-tuned.

    python examples/own_pictures.py FOLDER
    python examples/own_pictures.py FOLDER --backbone vit_small_patch16_224 --weights FILE

`balpoe train FOLDER` does as much, keeps what it did, and goes on where it was interrupted.
"""

import argparse
import sys

import torch

import balpoe
from balpoe.data.augment.operations import Flip
from balpoe.data.loading.decode import ResizedCrop
from balpoe.data.user.load import load_user_data
from balpoe.networks import backbone_preprocessing
from balpoe.training.schedules import Cosine

LAMBDAS = (1, 0, -1)


def train_and_evaluate(folder: str, backbone: str, weights: str) -> None:
    """Train an expert for each lambda and say how well each class is recognised."""
    own = load_user_data(folder, balpoe.Preprocessing(*backbone_preprocessing(backbone)))
    for note in own.notes:
        print(note)
    class_counts, class_names = own.train.class_counts, own.train.class_names

    torch.manual_seed(0)
    network = balpoe.expert_network(backbone, num_classes=len(class_names), num_experts=len(LAMBDAS), weights=weights)
    loss = balpoe.BalPoELoss(class_counts, LAMBDAS)
    augmentation = (ResizedCrop(), Flip())
    balpoe.fit(
        network, loss, own.train, epochs=10, batch_size=32, lr=0.01, schedule=Cosine(), augmentation=augmentation
    )

    evaluation = balpoe.evaluate(balpoe.predict(network, own.test, class_counts=class_counts, lambdas=LAMBDAS))
    print(f"balanced accuracy {evaluation.balanced_accuracy:.3f}, ECE {evaluation.ece:.3f}")
    for name, count, accuracy in zip(class_names, class_counts.tolist(), evaluation.per_class, strict=True):
        print(f"{name} ({count} for training): {'nothing to test on' if accuracy is None else f'{accuracy:.3f}'}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--backbone", default="resnet18", help="a model of timm")
    parser.add_argument("--weights", default="pretrained", help='timm\'s, from the hub; or a file; or "": random ones')
    try:
        train_and_evaluate(**vars(parser.parse_args()))
    except balpoe.UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
