"""The first block of a network, conv 3x3 on images, BatchNorm, ReLU and max-pool, in Triton, for CUDA under autocast.

The convolution's output, the largest map of the network, is never written: see stem_kernels.py for the formulas. The
sides of its maps are compile-time constants, because the kernels divide by them in every iteration.
"""

from typing import Any

import torch
import triton
from torch import Tensor, nn

from dualnet.kernels import Norm
from dualnet.kernels import stem_kernels as kernels
from dualnet.kernels.launch import LaunchGrid, LaunchShape, match_layout
from dualnet.kernels.pool import Geometry

CHANNELS = 64  # per program
FEW_CHANNELS = 16  # per program of the kernels that only multiply by a matrix of taps
PADDED_TAPS = kernels.PADDED_TAPS.value
PATCHING = LaunchShape(128, 4, 1056)  # rows are pixels
POOLING = LaunchShape(64, 4, 2112, stages=3)
SUMMING = LaunchShape(64, 4, 1056)


class FusedStem(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, kernel: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor,
        norm: Norm, geometry: Geometry,
    ):  # fmt: skip
        """`kernel` and `shift` are the convolution's weight and bias."""
        parts, channels, has_shift = geometry.parts, geometry.channels, shift is not None
        patches, patch_sums = patches_of(images, kernel.dtype, geometry)
        mean, rstd = torch.empty(2, parts, channels, device=images.device).unbind()
        kernels.stem_statistics[(triton.cdiv(channels, FEW_CHANNELS),)](
            patch_sums, kernel, shift if has_shift else kernel, norm.running_mean, norm.running_var, mean, rstd,
            geometry.rows, channels, norm.momentum, norm.eps, PARTS=parts, HAS_SHIFT=has_shift, BC=FEW_CHANNELS,
        )  # fmt: skip
        y, chosen = pooled_conv(patches, kernel, weight, bias, mean, rstd, geometry)
        ctx.geometry, ctx.has_shift = geometry, has_shift
        ctx.save_for_backward(patches, patch_sums, kernel, weight, mean, rstd, chosen)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        patches, patch_sums, kernel, weight, mean, rstd, chosen = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        dy = match_layout(grads[0], chosen, kernel.dtype)  # the pooled map's layout is that of `chosen`
        launch = LaunchGrid(SUMMING, geometry.parts, geometry.out_rows, geometry.channels, CHANNELS)
        products = torch.empty(geometry.parts, launch.splits, PADDED_TAPS, geometry.channels, device=dy.device)
        kernels.gradient_products[launch.grid](
            patches, dy, chosen, products, geometry.out_rows, geometry.channels, launch.chunk,
            **geometry.constants, **launch.options,
        )  # fmt: skip
        dkernel = torch.empty_like(kernel)
        dweight, dbias, dshift = torch.empty(3, geometry.channels, device=dy.device).unbind()
        kernels.stem_gradients[(triton.cdiv(geometry.channels, FEW_CHANNELS),)](
            patch_sums, products.sum(dim=1), kernel, weight, mean, rstd, dkernel, dshift, dweight, dbias,
            geometry.rows, geometry.channels, PARTS=geometry.parts, HAS_SHIFT=ctx.has_shift, BC=FEW_CHANNELS,
        )  # fmt: skip
        return None, dkernel, dshift if ctx.has_shift else None, dweight, dbias, None, None


def pooled_conv(
    patches: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """The block's output, and which pixels were chosen."""
    y = geometry.empty_pooled(kernel)
    chosen = torch.empty_like(y, dtype=torch.uint8)
    launch = LaunchGrid(POOLING, geometry.parts, geometry.out_rows, geometry.channels, CHANNELS)
    kernels.stem_pool[launch.grid](
        patches, kernel, weight, bias, mean, rstd, y, chosen,
        geometry.out_rows, geometry.channels, launch.chunk, **geometry.constants, **launch.options,
    )  # fmt: skip
    return y, chosen


def patches_of(images: Tensor, dtype: torch.dtype, geometry: Geometry, with_sums: bool = True) -> tuple[Tensor, Tensor]:
    """[pixel, PADDED_TAPS], and of each part the sum of p p^T, float32 [parts, PADDED_TAPS, PADDED_TAPS], if asked."""
    taps, num_pixels = PADDED_TAPS, geometry.parts * geometry.rows
    assert num_pixels * taps < 2**31, "too many images for 32-bit offsets"
    patches = torch.empty(num_pixels, taps, dtype=dtype, device=images.device)
    launch = LaunchGrid(PATCHING, geometry.parts, geometry.rows, 1)
    products = torch.empty(geometry.parts, launch.splits if with_sums else 1, taps, taps, device=images.device)
    kernels.make_patches[launch.grid[:2]](
        images, patches, products, *images.stride(), geometry.rows, launch.chunk,
        HEIGHT=geometry.sides[0], WIDTH=geometry.sides[1], SUMS=with_sums,
        BM=PATCHING.rows, num_warps=PATCHING.warps, num_stages=PATCHING.stages,
    )  # fmt: skip
    return patches, products.sum(dim=1) if with_sums else products


def fused_stem(
    images: Tensor, kernel: Tensor, shift: Tensor | None, norm: Norm, pool: nn.MaxPool2d, parts: int
) -> Tensor:
    """`images` float [B, 3, H, W] of any layout, without a gradient; the result has the type of `kernel`."""
    kernel = kernel.contiguous(memory_format=torch.channels_last)  # [channel, row, column, image channel] in memory
    geometry = Geometry((len(images), len(kernel), *images.shape[2:]), pool, parts if norm.training else 1)
    if norm.training:
        return FusedStem.apply(images, kernel, shift, norm.weight, norm.bias, norm, geometry)  # pyright: ignore[reportReturnType]
    patches, _ = patches_of(images, kernel.dtype, geometry, with_sums=False)
    mean, rstd = norm.running_mean, (norm.running_var + norm.eps).rsqrt()
    mean = mean if shift is None else mean - shift
    return pooled_conv(patches, kernel, norm.weight, norm.bias, mean, rstd, geometry)[0]
