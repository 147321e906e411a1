"""What the paper measured on ImageNet-LT and iNaturalist: the commands, what they take, and the paper's numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["NOT_REPRODUCED", "NotReproduced"]


@dataclass(frozen=True)
class NotReproduced:
    """A row that needs images which nobody may pass on: not measured here."""

    title: str
    command: str
    paper: float
    images: int
    epochs: int
    images_per_second: int
    """Training rate of three experts on one H200, in bfloat16, with images of 224 x 224."""

    @property
    def hours(self) -> float:
        """GPU hours of one training, if the loading of images keeps up."""
        return self.images * self.epochs / self.images_per_second / 3600


# Images of ImageNet-LT; images a second in captured steps of 64 (results/large_step.json), with which loading keeps
# up, and in training from files by batches of 256, the nearest to iNaturalist's 512 (results/streamed_training.json).
_IMAGENET, _RESNET50, _RESNEXT50, _RESNET50_LARGE = 115_846, 2_476, 2_031, 2_888


def _column(
    title: str, preset: str, images: int, rate: int, epochs: int, standard: dict[str, float], long: float
) -> Iterator[NotReproduced]:
    """A column of Table 1: what the paper prints of the standard schedule, and of the long one."""
    rows = {
        "cross-entropy": " --lambdas 1 --mixup-alpha 0",
        "one logit-adjusted expert with mixup": " --lambdas 0",
        "uniform ensemble": " --lambdas 0,0,0",
        "BalPoE": "",
        "BalPoE, stronger augmentation": " --augmentation randaugment",
    }
    for name, flags in rows.items():
        if name in standard:
            yield NotReproduced(f"{title}: {name}", f"{preset}{flags}", standard[name], images, epochs, rate)
    yield NotReproduced(f"{title}: BalPoE, long schedule", f"{preset}-long", long, images, 400, rate)


NOT_REPRODUCED: dict[str, tuple[NotReproduced, ...]] = {
    "imagenet-lt": (
        *_column(
            "ImageNet-LT, ResNet-50", "imagenet-lt-resnet50", _IMAGENET, _RESNET50, 180,
            {"cross-entropy": 47.2, "BalPoE": 58.5, "BalPoE, stronger augmentation": 59.7}, 60.8,
        ),
        *_column(
            "ImageNet-LT, ResNeXt-50", "imagenet-lt-resnext50", _IMAGENET, _RESNEXT50, 180,
            {
                "cross-entropy": 48.0, "one logit-adjusted expert with mixup": 55.2, "uniform ensemble": 59.5,
                "BalPoE": 59.8, "BalPoE, stronger augmentation": 61.6,
            }, 62.0,
        ),
    ),
    "inaturalist": tuple(
        _column(
            "iNaturalist 2018, ResNet-50", "inaturalist-resnet50", 437_513, _RESNET50_LARGE, 100,
            {
                "cross-entropy": 65.2, "one logit-adjusted expert with mixup": 69.9, "uniform ensemble": 74.7,
                "BalPoE": 75.0, "BalPoE, stronger augmentation": 73.5,
            }, 76.9,
        )
    ),
}  # fmt: skip
"""Rows of the paper's Table 1 that need ImageNet or iNaturalist; `command` is a preset and what is changed of it."""
