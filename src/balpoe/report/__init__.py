"""Runs, or anybody's saved predictions, as a page that explains itself."""
