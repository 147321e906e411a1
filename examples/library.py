"""The method as a library: train on long-tailed digits, predict, evaluate, move to another prior."""

import torch

import balpoe
from balpoe.training.schedules import Cosine


def main() -> None:
    """Train three experts for a few seconds and print what they can do."""
    train, test = balpoe.load_data("digits-lt", imbalance_ratio=50)
    torch.manual_seed(0)
    network = balpoe.expert_network("mlp", num_classes=10, num_experts=3, num_features=64)
    loss = balpoe.BalPoELoss(train.class_counts, lambdas=(1, 0, -1))
    balpoe.fit(network, loss, train, epochs=30, batch_size=32, lr=0.02, schedule=Cosine(), mixup_alpha=0.4, seed=0)

    predictions = balpoe.predict(network, test, class_counts=train.class_counts, lambdas=(1, 0, -1))
    evaluation = balpoe.evaluate(predictions, shot_groups=(10, 50))
    print(
        f"balanced accuracy {evaluation.balanced_accuracy:.3f}, few-shot {evaluation.few:.3f}, ECE {evaluation.ece:.3f}"
    )

    # The same model where the rare digits are the frequent ones: no retraining.
    field_prior = balpoe.tempered_prior(balpoe.class_prior(train.class_counts), -1)
    logits = balpoe.shift_prior(predictions.logits, field_prior, predictions.source_prior)
    print(f"probabilities for that place: {logits.softmax(dim=1)[0].max():.3f}")
    print(f"accuracy there: {balpoe.evaluate(predictions, field_prior).accuracy:.3f}")


if __name__ == "__main__":
    main()
