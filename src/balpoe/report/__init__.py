"""Runs, or anybody's saved predictions, as a page that explains itself."""

from balpoe.report.writer import report_parts, write_report

__all__ = ["report_parts", "write_report"]
