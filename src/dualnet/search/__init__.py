"""Grid search: options are chosen on the validation tasks alone."""

from .plan import SearchPlan, read_plan, shipped_searches
from .search import NothingChosenError, search

__all__ = ["NothingChosenError", "SearchPlan", "read_plan", "search", "shipped_searches"]
