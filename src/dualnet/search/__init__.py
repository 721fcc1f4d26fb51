"""Grid search: options are chosen on the validation tasks alone."""

from .plan import SearchPlan, read_plan
from .search import NothingChosenError, search

__all__ = ["NothingChosenError", "SearchPlan", "read_plan", "search"]
