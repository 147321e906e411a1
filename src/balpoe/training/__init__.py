"""A network, a loss and data become a trained network."""
