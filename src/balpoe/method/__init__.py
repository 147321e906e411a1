"""The paper: priors, losses, the product of experts, mixing, calibration, label shift."""
