"""The method in a Hugging Face Trainer: a model that returns its loss and expert logits; the Trainer stays as it is.

    pip install transformers accelerate
    python examples/hugging_face_trainer.py

The backbone is tiny and its weights are random; `ViTModel.from_pretrained(NAME)` is a real one.
"""

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTModel

import balpoe

CLASS_COUNTS = torch.tensor([200, 60, 20, 6])
LAMBDAS = torch.tensor([1, 0, -1])


class ExpertClassifier(nn.Module):
    """Any backbone with a head of experts and the loss."""

    def __init__(self, backbone: Any, class_counts: Tensor, lambdas: Tensor) -> None:
        super().__init__()
        self.backbone, self.loss = backbone, balpoe.BalPoELoss(class_counts, lambdas)
        self.head = balpoe.ExpertHead(backbone.config.hidden_size, len(class_counts), len(lambdas))

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return expert logits, which `Trainer.predict` collects, and with labels the loss; mixes while training."""
        mixed = balpoe.mixup(pixel_values, alpha=0.4 if self.training else 0)
        expert_logits = self.head(self.backbone(mixed.images).last_hidden_state[:, 0])
        if labels is None:
            return {"logits": expert_logits}
        return {"loss": balpoe.mixed_loss(self.loss, expert_logits, labels, mixed), "logits": expert_logits}


def made_images(class_counts: Tensor) -> Any:
    """Return noise in the colour of its class, more or less: classes overlap, so that their numbers matter."""
    targets = torch.repeat_interleave(torch.arange(len(class_counts)), class_counts)
    colours = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])[targets]
    shades = colours + 0.8 * torch.randn(len(targets), 3)
    images = shades[:, :, None, None] + torch.randn(len(targets), 3, 16, 16)
    return [{"pixel_values": image, "labels": target} for image, target in zip(images, targets, strict=True)]


def main() -> None:
    """Train on few images of the last class, and measure on as many of each."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=8
    )
    network = ExpertClassifier(ViTModel(config, add_pooling_layer=False), CLASS_COUNTS, LAMBDAS)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=8, learning_rate=2e-3, per_device_train_batch_size=32, save_strategy="no",
            report_to="none",
        )  # fmt: skip
        trainer = Trainer(network, arguments, train_dataset=made_images(CLASS_COUNTS))
        trainer.train()
        answers = trainer.predict(made_images(torch.full((4,), 100)))
    expert_logits, targets = map(torch.as_tensor, (answers.predictions, answers.label_ids))
    evaluation = balpoe.evaluate(balpoe.Predictions(expert_logits, targets, CLASS_COUNTS, LAMBDAS))
    print(f"balanced accuracy {evaluation.balanced_accuracy:.3f}, few-shot {evaluation.few:.3f}")


if __name__ == "__main__":
    main()
