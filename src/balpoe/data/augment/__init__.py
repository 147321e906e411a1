"""How training images are varied."""
