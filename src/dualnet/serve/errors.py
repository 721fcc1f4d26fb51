"""What a client is told of a request that is not done: one shape for all errors. Without FastAPI, for the learner."""

from typing import Any

ERRORS = {  # by status: the code, and what it means
    400: ("bad_request", "what is sent cannot be read"),
    401: ("token", "the token is missing or wrong"),
    403: ("origin", "another host or origin"),
    404: ("not_found", "it is not there"),
    405: ("method", "the path has other methods"),
    408: ("too_slow", "the body came too slowly"),
    409: ("conflict", "it does not fit what is there"),
    413: ("too_large", "more than a limit"),
    422: ("invalid", "a value is not valid"),
    429: ("busy", "too many requests at a time"),
    500: ("internal", "a fault of the service"),
    503: ("busy", "the learner did not answer in time"),
    507: ("disk", "the journal cannot be written"),
}


class RequestError(Exception):
    def __init__(self, status: int, message: str, code: str = "", **headers: str) -> None:
        super().__init__(message)
        self.status = status
        code = code or ERRORS.get(status, (str(status), ""))[0]
        self.body: dict[str, Any] = {"error": {"code": code, "message": message}}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class MissingError(RequestError):
    """What the request names is not there."""

    def __init__(self, what: str) -> None:
        super().__init__(404, f"{what} is not there")


class ConflictError(RequestError):
    """What the request asks does not fit what is there."""

    def __init__(self, message: str) -> None:
        super().__init__(409, message)


class BusyError(RequestError):
    """The learner did not answer in time."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, retry_after="5")
