"""Every Triton kernel compiles for a GPU that is not here: the interpreter takes Python that the compiler refuses."""

CHECKS = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dualnet.kernels import norm, norm_kernels, pool, stem_kernels, views

MAPS = {"x", "y", "dy", "dy_2", "dx", "residual", "dresidual", "patches"}  # bfloat16
BYTES = {"chosen", "images", "blur"}
NUMBERS = {"rows", "out_rows", "channels", "splits", "chunk", "height", "width", "out_height", "out_width"}
NUMBERS |= {"num_pixels", "num_images", "num_greys", "step_image", "step_channel", "step_row", "step_column"}
CONSTANTS = {"PARTS": 2, "RELU": True, "RESIDUAL": True, "SIZE": 3, "PADDING": 1, "HAS_SHIFT": True, "BM": 64, "BC": 32}
CONSTANTS |= {"TWO": True, "GIVEN": False, "BLOCK": 512, "CHUNKS": 4, "GREYS": 4}
CONSTANTS |= {"HEIGHT": 84, "WIDTH": 84, "OUT_HEIGHT": 42, "OUT_WIDTH": 42}


def kind(name, own):
    if name in own:
        return own[name]
    if name in CONSTANTS:
        return "constexpr"
    if name in MAPS or name in BYTES:
        return "*bf16" if name in MAPS else "*u8"
    if name in NUMBERS or name in ("momentum", "eps"):
        return "i32" if name in NUMBERS else "fp32"
    return "*fp32"


def check(kernel, flags={}, warps=4, /, **own):
    signature = {name: kind(name, own) for name in kernel.arg_names}
    constants = {name: (CONSTANTS | flags)[name] for name, of in signature.items() if of == "constexpr"}
    source, target = ASTSource(kernel, signature=signature, constexprs=constants), GPUTarget("cuda", 90, 32)
    made = compile(source, target=target, options={"num_warps": warps})
    assert made.metadata.shared < 100_000, f"{kernel.__name__}: {made.metadata.shared} bytes leave room for one program"


LARGEST = {"BM": norm.SMALL_ROWS, "BC": norm.SMALL_CHANNELS}
WARPS = norm.small_launch(norm.SMALL_ROWS, 64)[1]["num_warps"]
for name in ("forward_sums", "normalise", "backward_sums", "normalise_backward"):
    check(getattr(norm_kernels, name))
PLAIN = {"RESIDUAL": False, "TWO": False}
for flags in ({"RELU": False}, PLAIN):  # of grad_before_relu, which both call
    check(norm_kernels.backward_sums, flags)
check(norm_kernels.normalise_small_backward, PLAIN | LARGEST, WARPS)
check(norm_kernels.normalise_small, LARGEST, WARPS)
check(norm_kernels.normalise_small_backward, LARGEST, WARPS)
check(norm_kernels.normalise, {"GIVEN": True, "PARTS": 1})
for name in ("normalise_and_pool", "pool_sums", "pool_backward"):  # with many warps there is less code to compile
    check(getattr(pool, name), {}, 16)
check(pool.normalise_and_pool, {"GIVEN": True, "PARTS": 1, "BM": 8, "BC": 8})
for name in ("make_patches", "stem_statistics", "stem_pool", "gradient_products", "stem_gradients"):
    check(getattr(stem_kernels, name), images="*fp32", kernel="*bf16", dkernel="*bf16")
for name in ("crop_kernel", "colour_kernel"):
    check(getattr(views, name), images="*u8")
"""


def test_every_kernel_compiles(run_code, tmp_path):
    run_code(CHECKS, TRITON_CACHE_DIR=str(tmp_path))
