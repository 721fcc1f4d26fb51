"""The report of run folders: tables, a page, a picture. It reads folders, never learners."""

from .write import picture, picture_kind, report

__all__ = ["picture", "picture_kind", "report"]
