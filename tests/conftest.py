"""Configuration of pytest. Shared fixtures are in the plugins learner_fixtures.py and run_fixtures.py."""

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure. CI draws the same examples every time: a commit that passed once passes again.
settings.register_profile(
    "dualnet",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],  # that serve for all examples
    derandomize="CI" in os.environ,
)
settings.load_profile("dualnet")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Tests have no doctests, whose collector would skip a file that cannot be imported instead of failing."""
    return [collector for collector in (yield) if type(collector).__name__ != "DoctestModule"]


def pytest_collection_finish() -> None:
    """Start the garbage collector, without the imported modules: scanning them takes 0.2 s at every full collection."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures, except in the main process of xdist: its workers would wait while it imports PyTorch."""
    os.fsync = lambda _: None  # tests kill processes, but the machine stays on; tests/test_atomic.py checks the calls
    if not config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        gc.disable()  # until all modules are imported, since none of their objects is garbage
        for plugin in ("learner_fixtures", "run_fixtures"):
            config.pluginmanager.import_plugin(plugin)


def pytest_unconfigure() -> None:
    """Nanobind reports objects that are never collected as leaks."""
    gc.unfreeze()
