"""The report of run folders: tables, a page, a picture. It reads folders, never learners."""

from .write import picture, report

__all__ = ["picture", "report"]
