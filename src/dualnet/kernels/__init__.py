"""Whether the Triton kernels can run here. They come with PyTorch for CUDA; everything has an eager version too."""

from functools import cache
from importlib.util import find_spec


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None
