"""Somebody's own data: found, checked and split."""
