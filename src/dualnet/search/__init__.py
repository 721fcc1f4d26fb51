"""Grid search: options are chosen on the validation tasks alone."""

from dualnet.search.search import NothingChosenError, Search
from dualnet.search.search_file import SearchPlan, read_plan

__all__ = ["NothingChosenError", "Search", "SearchPlan", "read_plan"]
