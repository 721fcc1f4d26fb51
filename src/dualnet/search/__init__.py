"""Grid search: options are chosen on the validation tasks alone."""

from .plan import Plan, read_plan, shipped_searches
from .search import NothingChosenError, search

__all__ = ["NothingChosenError", "Plan", "read_plan", "search", "shipped_searches"]
