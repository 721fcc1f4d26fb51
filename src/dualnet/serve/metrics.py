"""Metrics of the service in Prometheus text format."""

from dualnet.serve.service import Service


def metrics(service: Service) -> str:
    status, counters = service.status(), service.counters
    lines = [
        *metric("examples", "gauge", "Examples in the journal.", status["examples"]),
        *metric("examples_unlabelled", "gauge", "Examples without a label.", status["unlabelled"]),
        *metric("journal_waiting", "gauge", "Journal entries not learned yet.", status["waiting"]),
        *metric("classes", "gauge", "Classes of the model.", len(status["classes"])),
        *metric("background_steps_total", "counter", "Background training steps.", status["background"]["steps"]),
        *metric("learner_up", "gauge", "Whether the learner process is running.", int(service.alive)),
        *metric("learner_restarts_total", "counter", "Unexpected learner exits.", counters["learner_ended"]),
        *metric("rolled_back_total", "counter", "Updates that were rolled back.", counters["rolled_back"]),
        *metric("predictions_total", "counter", "Images classified.", counters["predictions"]),
        *metric("predict_seconds_total", "counter", "Time spent predicting.", counters["predict_microseconds"] / 1e6),
    ]
    if status["held_out_accuracy"] is not None:
        lines += metric("held_out_accuracy", "gauge", "Mean over classes, in percent.", status["held_out_accuracy"])
    lines += ["# HELP dualnet_requests_total Responses by HTTP status.", "# TYPE dualnet_requests_total counter"]
    for name, count in sorted(counters.items()):
        if name.startswith("status_"):
            lines.append(f'dualnet_requests_total{{status="{name.removeprefix("status_")}"}} {count}')
    return "\n".join(lines) + "\n"


def metric(name: str, kind: str, text: str, value: float) -> list[str]:
    return [f"# HELP dualnet_{name} {text}", f"# TYPE dualnet_{name} {kind}", f"dualnet_{name} {value}"]
