"""Schemas of requests and responses, with the limits of their values."""

from typing import Annotated, Any

from fastapi import File, Form, Path, Query, UploadFile
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dualnet.serve.errors import ERRORS, RequestError


def check_name(name: str) -> str:
    if not name.isprintable() or name != name.strip():
        raise ValueError("use printable characters, without spaces at the start or end")
    return name


Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(check_name)]
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")]
Ids = Annotated[list[Id], Query(alias="id", min_length=1, description="one for each example")]
Images = Annotated[
    list[UploadFile],
    File(min_length=1, description="JPEG, PNG, BMP, GIF, TIFF, WEBP, or HEIC with dualnet[heic]; one field per image"),
]
Top = Annotated[int, Query(ge=1, le=1000, description="the number of classes")]
Number = Annotated[int, Path(ge=1, le=10**9)]
LABELS = "one for all images, or one per image; empty: unknown"
NewClass = Annotated[bool, Form(description="create the class if it does not exist")]


class Class(BaseModel):
    name: str
    probability: float


class Prediction(BaseModel):
    classes: list[Class] = Field(description="the most probable first; empty before two classes have learned images")
    unknown: bool = Field(default=False, description="the image is unlike all classes")


class Predictions(BaseModel):
    version: str = Field(description="version of the model that predicted")
    predictions: list[Prediction]


class Acknowledged(BaseModel):
    id: str
    duplicate: bool = Field(description="the example existed already and was not stored again")
    prediction: Prediction | None = None


class Body(BaseModel):
    """The body of a JSON request."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Label(Body):
    label: Name
    new_class: bool = False


class Classes(Body):
    classes: list[Name] = Field(min_length=1, max_length=1000, json_schema_extra={"uniqueItems": True})


class NewName(Body):
    name: Name


class Title(Body):
    title: Annotated[str, Field(max_length=100)] = ""


class Pause(Body):
    paused: bool


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"example": RequestError(status, text).body}}}
    for status, (_, text) in ERRORS.items()
}
