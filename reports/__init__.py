"""A finished or running study as one self-contained HTML file."""

from reports.page import build_report

__all__ = ["build_report"]
