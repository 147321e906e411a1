"""Recipes, and what a run leaves on disk. Importing it costs nothing: recipes are read without torch."""
