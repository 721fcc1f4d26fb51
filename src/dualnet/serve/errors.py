"""Error responses, which all have the same JSON body. Imports no FastAPI: the learner process raises them too."""

import sqlite3
from collections.abc import Mapping
from typing import Any

ERRORS = {  # by status: the code in the body, and its meaning
    400: ("bad_request", "the request cannot be parsed"),
    401: ("token", "the token is missing or wrong"),
    403: ("origin", "the host or origin is not allowed"),
    404: ("not_found", "no such resource"),
    405: ("method", "the path does not support this method"),
    408: ("too_slow", "the body arrived too slowly"),
    409: ("conflict", "the request conflicts with the current state"),
    410: ("deleted", "the example was deleted"),
    413: ("too_large", "the request exceeds a limit"),
    422: ("invalid", "a value is invalid"),
    429: ("busy", "too many concurrent requests"),
    500: ("internal", "internal error"),
    503: ("busy", "the learner is not running, or did not respond in time"),
    507: ("disk", "the disk cannot be written, such as a full one, or is damaged; nothing was stored"),
}
DISK_ERRORS = (OSError, sqlite3.DatabaseError)


class RequestError(Exception):
    """An error response. Header names are keyword arguments with underscores: `retry_after="5"`."""

    def __init__(self, status: int, message: str, code: str = "", **headers: str) -> None:
        super().__init__(message)
        self.status = status
        code = code or ERRORS.get(status, (str(status), ""))[0]
        self.body: dict[str, Any] = {"error": {"code": code, "message": message}}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def disk_message(error: OSError | sqlite3.DatabaseError) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return f"the disk cannot be written, or is damaged ({reason}); nothing was stored"


def validation_message(problem: Mapping[str, Any]) -> str:
    """Field and reason of an error of Pydantic, whose locations also contain the names of validators."""
    place, reason = problem["loc"][1:], problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "json_invalid":
        return f"the body is not valid JSON ({problem['ctx']['error']}, at character {place[0]})"
    if not place:
        return "the body must be a JSON object, sent with Content-Type: application/json"
    if "UploadFile" in reason:
        reason = "send it as a file"
    fields = [str(part) for part in place if str(part).isidentifier() or isinstance(part, int)]
    return ": ".join([*filter(None, [".".join(fields)]), reason])
