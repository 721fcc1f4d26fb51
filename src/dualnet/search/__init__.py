"""Grid search: options are chosen on the validation tasks alone."""

from dualnet.search.plan import SearchPlan, read_plan
from dualnet.search.search import NothingChosenError, Search

__all__ = ["NothingChosenError", "Search", "SearchPlan", "read_plan"]
