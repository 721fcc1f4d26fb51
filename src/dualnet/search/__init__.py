"""Grid search: options are chosen on the validation tasks alone."""

from .plan import SearchPlan, read_plan
from .search import NothingChosenError, Search

__all__ = ["NothingChosenError", "Search", "SearchPlan", "read_plan"]
