"""`/v1/predict`, as the service and its replicas answer it: decoding, prediction, and the form of errors."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from fastapi import FastAPI, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from torch import Tensor

from dualnet import __version__
from dualnet.models.predictions import Prediction
from dualnet.serve import schema
from dualnet.serve.decoder import Decoders
from dualnet.serve.errors import DISK_ERRORS, RequestError, disk_message, validation_message
from dualnet.serve.options import Options
from dualnet.serve.serving_model import ServingModel

PATH = "/v1/predict"
HANDLED = (RequestError, RequestValidationError, HTTPException, *DISK_ERRORS, Exception)


class Predictor(Protocol):
    options: Options
    decoders: Decoders

    @property
    def image_size(self) -> int: ...

    def predict(self, images: Tensor, top: int) -> tuple[str, list[schema.Prediction]]:
        """The version of the model, and the most probable classes of each image."""
        ...


def new_app(title: str, options: Options) -> FastAPI:
    MultiPartParser.spool_max_size = options.most_bytes  # no temporary files: the guard has the body in memory
    return FastAPI(
        title=title,
        version=__version__,
        responses=schema.RESPONSES,
        redirect_slashes=False,
        docs_url=None,  # these pages load scripts from a CDN
        redoc_url=None,
        exception_handlers=dict.fromkeys(HANDLED, handle_error),
    )


def add_prediction(app: FastAPI, predictor: Predictor) -> None:
    @app.post(PATH)
    def predict(image: schema.Images, top: schema.Top = 5) -> schema.Predictions:
        """The most probable classes of one or several images."""
        version, predictions = predictor.predict(decode_all(predictor, image), top)
        return schema.Predictions(version=version, predictions=predictions)


def check_number(images: Sequence[Any], options: Options) -> None:
    if len(images) > options.most_images:
        raise RequestError(413, f"{len(images)} images; at most {options.most_images} are allowed (--most-images)")


def decode_all(predictor: Predictor, images: Sequence[UploadFile]) -> Tensor:
    """uint8 [B, 3, size, size]."""
    check_number(images, predictor.options)
    decode, size = predictor.decoders.decode, predictor.image_size
    pixels = [decode(file.file.read(), size, f"image {number}") for number, file in enumerate(images)]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()


def predict_named(
    model: ServingModel, images: Tensor, top: int, names_of: Callable[[Mapping[str, Any]], Mapping[int, str]]
) -> tuple[str, list[schema.Prediction]]:
    """The version of the model, and the most probable classes, with the names that go with its status.

    A class that was just removed has no name and is left out.
    """
    status, predictions = model.predict(images, top)
    names = names_of(status)

    def named(answer: Prediction) -> schema.Prediction:
        rows = zip(map(int, answer.classes), answer.probabilities, strict=True)
        classes = [schema.Class(name=names[number], probability=p) for number, p in rows if number in names]
        return schema.Prediction(classes=classes, unknown=answer.unknown)

    return status["version"], [named(answer) for answer in predictions]


async def handle_error(_: Request, error: Exception) -> JSONResponse:
    """All error responses have the same body."""
    match error:
        case RequestError():
            response = error
        case RequestValidationError():
            response = RequestError(422, validation_message(error.errors()[0]))
        case HTTPException():  # raised by FastAPI itself
            response = RequestError(error.status_code, error.detail, **error.headers or {})
        case OSError() | sqlite3.DatabaseError():
            response = RequestError(507, disk_message(error))
        case _:
            response = RequestError(500, f"internal error ({type(error).__name__}); see the log of the service")
    return JSONResponse(response.body, response.status, response.headers)
