"""Errors of requests, in the one shape that all have."""

import sqlite3
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from dualnet.serve.guard import error_body
from dualnet.serve.journal import ConflictError
from dualnet.serve.service import BusyError

CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method",
    409: "conflict",
    413: "too_large",
    422: "invalid",
    429: "busy",
    500: "internal",
    503: "busy",
    507: "disk",
}


def add_errors(app: FastAPI) -> None:
    """Every error has the one shape."""

    def answer(status: int, message: str, headers: Any = None) -> JSONResponse:
        return JSONResponse(error_body(CODES.get(status, str(status)), message), status, headers)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return answer(422, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")

    async def http(request: Request, error: Any) -> JSONResponse:
        headers = {"Allow": ", ".join(methods_of(app, request))} if error.status_code == 405 else error.headers
        return answer(error.status_code, str(error.detail), headers)

    for kind in (400, 404, 405, HTTPException):  # the numbers: what FastAPI refuses by itself
        app.exception_handler(kind)(http)

    @app.exception_handler(ConflictError)
    def conflict(_: Request, error: ConflictError) -> JSONResponse:
        return answer(409, str(error))

    @app.exception_handler(ValueError)
    def wrong(_: Request, error: ValueError) -> JSONResponse:
        return answer(400, str(error))

    @app.exception_handler(BusyError)
    def busy(_: Request, error: BusyError) -> JSONResponse:
        return answer(503, str(error), {"Retry-After": "5"})

    @app.exception_handler(Exception)
    def internal(_: Request, error: Exception) -> JSONResponse:
        return answer(500, f"a fault of the service ({type(error).__name__}); its log tells more")

    @app.exception_handler(sqlite3.OperationalError)
    def disk(_: Request, error: sqlite3.OperationalError) -> JSONResponse:
        return answer(507, f"the journal cannot be written ({error}); nothing of this request was kept")


def methods_of(app: FastAPI, request: Request) -> list[str]:
    """Those of all routes with the path of the request; Starlette names those of the first one."""
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    return sorted(
        {method for route in routes if route.path_regex.match(request.url.path) for method in route.methods or ()}
    )
