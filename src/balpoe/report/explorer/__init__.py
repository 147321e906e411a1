"""The interactive part of a report."""
