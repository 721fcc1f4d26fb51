"""The metrics of the service, for Prometheus."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LEARN_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # seconds


class Metrics(Collector):
    """Counters and latencies of the HTTP process, and what `state` gives: the status, and the notices by kind."""

    def __init__(self, state: Callable[[], tuple[Mapping[str, Any], Mapping[str, int]]]) -> None:
        self.state = state
        self.registry = registry = CollectorRegistry()
        registry.register(self)
        self.requests = Counter("dualnet_requests", "Responses by HTTP status.", ["status"], registry=registry)
        self.predictions = Counter("dualnet_predictions", "Images classified.", registry=registry)
        self.predict_seconds = Histogram(
            "dualnet_predict_seconds", "To predict the images of a request.", registry=registry
        )
        text = "From a write to the journal until predictions include it."
        self.learn_seconds = Histogram("dualnet_learn_seconds", text, buckets=LEARN_BUCKETS, registry=registry)

    def on_predicted(self, count: int, seconds: float) -> None:
        """After the images of a request were predicted."""
        self.predictions.inc(count)
        self.predict_seconds.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        status, notices = self.state()
        gauges = {
            "examples": ("Examples in the journal.", status["examples"]),
            "examples_unlabelled": ("Examples without a label.", status["unlabelled"]),
            "journal_waiting": ("Journal entries not learned yet.", status["waiting"]),
            "classes": ("Classes of the model.", len(status["classes"])),
            "learner_up": ("Whether the learner process is running.", status["learner"] == "running"),
            "held_out_accuracy": ("Mean over classes, in percent.", status["held_out_accuracy"]),
        }
        counters = {
            "background_steps": ("Background training steps.", status["background"]["steps"]),
            "learner_restarts": ("Unexpected learner exits.", notices["learner_ended"]),
            "rolled_back": ("Updates that were rolled back.", notices["rolled_back"]),
        }
        for kind, metrics in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (text, value) in metrics.items():
                if value is not None:
                    yield kind(f"dualnet_{name}", text, value)
