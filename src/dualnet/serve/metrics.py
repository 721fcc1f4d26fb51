"""The figures of the service as Prometheus reads them."""

from dualnet.serve.service import Service


def metrics(service: Service) -> str:
    status, counters = service.status(), service.counters
    lines = [
        *figure("examples", "gauge", "Examples in the journal.", status["examples"]),
        *figure("examples_unlabelled", "gauge", "Those without a label.", status["unlabelled"]),
        *figure("journal_waiting", "gauge", "Journal entries that are not learned yet.", status["waiting"]),
        *figure("classes", "gauge", "Classes of the model.", len(status["classes"])),
        *figure("background_steps_total", "counter", "Steps of the background.", status["background"]["steps"]),
        *figure("learner_up", "gauge", "Whether the learner's process runs.", int(service.alive)),
        *figure("learner_restarts_total", "counter", "Times that it ended by itself.", counters["learner_restarts"]),
        *figure("rolled_back_total", "counter", "Updates that were undone.", counters["rolled_back"]),
        *figure("predictions_total", "counter", "Images that were predicted.", counters["predictions"]),
        *figure("predict_seconds_total", "counter", "Time for it.", counters["predict_microseconds"] / 1e6),
    ]
    if status["held_out_accuracy"] is not None:
        lines += figure("held_out_accuracy", "gauge", "Mean over the classes, percent.", status["held_out_accuracy"])
    lines += ["# HELP dualnet_requests_total Requests by status.", "# TYPE dualnet_requests_total counter"]
    for name, count in sorted(counters.items()):
        if name.startswith("status_"):
            lines.append(f'dualnet_requests_total{{status="{name.removeprefix("status_")}"}} {count}')
    return "\n".join(lines) + "\n"


def figure(name: str, kind: str, text: str, value: float) -> list[str]:
    return [f"# HELP dualnet_{name} {text}", f"# TYPE dualnet_{name} {kind}", f"dualnet_{name} {value}"]
