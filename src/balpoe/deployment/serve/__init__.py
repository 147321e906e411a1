"""A server for a trained model: requests, batches, limits, drift and a page."""
