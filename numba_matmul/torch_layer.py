"""A layer, act(x·w + bias) + residual, in one launch of kernel 17: which tensors that takes, and its plan."""
from functools import cache

import numpy as np
import torch

from .arrays import cdiv, to_d, to_h
from .gemm.epilogue import fused_name
from .gemm.limits import capable, sm_count
from .gemm.plan import Launch, Plan, kept_plan, simulate_plan, stream_of
from .gemm.tensor_maps import TensorMapWords
from .gemm.tiles import BK
from .kernels import k17_warp_specialized as k17, k18_past_cublas_bf16 as k18
from numba import config, cuda

FEW_ROWS = 64  # up to here a transposed B is multiplied as (Bᵀ·Aᵀ)ᵀ
FEW_RESULTS = 2**19  # so few, of sums longer than this, leave most of the GPU idle: kernel 18 cuts the sums
LONG_SUM = 2048


def can_implement(
    a: torch.Tensor, b: torch.Tensor,  # matrices, either of them perhaps a transposed view
    others: list = (),                 # bias and residual
) -> bool:
    "Do types, layouts and shapes let kernel 17 multiply A by B by itself?"
    m, k = a.shape
    n = b.shape[1]
    if m * n <= FEW_RESULTS and k >= LONG_SUM: return False
    if any(z.dtype != torch.bfloat16 for z in (a, b, *others)): return False
    rows_a, rows_b = a.is_contiguous(), b.is_contiguous()
    layouts = (rows_a or a.t().is_contiguous()) and (rows_b or m > FEW_ROWS and b.t().is_contiguous())
    # the TMA needs rows that are multiples of 16 bytes
    aligned = (k if rows_a else m) % 8 == (n if rows_b else k) % 8 == n % 8 == 0
    return layouts and aligned and a.numel() > 0 and b.numel() > 0


@cache
def _capability(number): return torch.cuda.get_device_capability(number)


def has_wgmma(
    device: torch.device,
) -> bool:
    "Can the device run kernel 17?"
    if device.type == "cuda": return capable(_capability(device.index), (9, 0, "a"))
    return bool(config.ENABLE_CUDASIM)


def aligned_for_tma(*matrices) -> bool: return all(x.data_ptr() % 16 == 0 for x in matrices)


def array_of(x):
    "A row-major matrix on the device, as its bits."
    return to_d(x) if config.ENABLE_CUDASIM else cuda.as_cuda_array(x.detach().view(torch.uint16), sync=False)


def _words(x):
    "Pairs of bfloat16 as words, on the device."
    words = x.detach().contiguous().view(-1).view(torch.uint32)
    return to_d(words) if config.ENABLE_CUDASIM else cuda.as_cuda_array(words, sync=False)


def _layer_plan(operands, m_major, k_major, epilogue):
    "The plan of act(x·w + bias) + residual by kernel 17, and its operands as device arrays."
    x, w, y, *others = operands
    (m, k), n = x.shape, w.shape[1]
    # the tile that is fastest by kernel 18's estimate, on as few blocks as need no more waves
    tile = min(k18.CYCLES, key=lambda tile: k18.estimate(m, n, k, sm_count(), tile))
    work = cdiv(m, tile.bm) * cdiv(n, tile.bn)
    blocks = cdiv(work, cdiv(work, sm_count()))
    predicated = bool(m % tile.bm or n % tile.bn)
    tile = tile._replace(k_major_b=int(k_major), m_major_a=int(m_major))
    kernel = k17.bf16_gemm_warp_specialized_kernel(tile, epilogue, predicated, read_c=False, scaled=False)
    # a transposed view is passed as the matrix that it is a view of
    x, w, y = map(array_of, (x.t() if m_major else x, w.t() if k_major else w, y))
    words = tuple(map(_words, others))
    maps = TensorMapWords((x, BK if m_major else tile.bm), (w, tile.bn if k_major else BK), (y, 64))
    args = maps, words, np.int64(m), np.int64(n), np.int64(k), np.uint32(1), np.float32(1), np.float32(0)
    launch = Launch(kernel, blocks, k17.with_producer(tile), args, k17.shared_bytes(tile))
    return Plan([launch]), (x, w, y, *words)


def fused_layer(
    x: torch.Tensor, w: torch.Tensor,  # see `can_implement`
    bias: torch.Tensor = None,
    activation: str = None,            # a key of `gemm.epilogue.ACTIVATIONS`
    residual: torch.Tensor = None,
    y: torch.Tensor = None,            # for the result, row-major; a new one if None
) -> torch.Tensor:                     # `y`
    "act(x·w + bias) + residual by kernel 17. `x` and `w` may be transposed views."
    m_major, k_major = not x.is_contiguous(), not w.is_contiguous()
    if y is None: y = x.new_empty(x.shape[0], w.shape[1])
    bias, residual = (None if z is None else z.contiguous() for z in (bias, residual))
    operands = x, w, y, *(y if z is None else z for z in (bias, residual))  # a missing one isn't read
    epilogue = fused_name(bias is not None, activation, residual is not None)
    if config.ENABLE_CUDASIM:
        plan, arrays = _layer_plan(operands, m_major, k_major, epilogue)
        simulate_plan(plan)
        return y.copy_(torch.from_numpy(to_h(arrays[2])).view(torch.bfloat16))
    device = x.get_device()
    packed = kept_plan((_layer_plan, device, x.shape, w.shape, m_major, k_major, epilogue),
                       lambda: (*_layer_plan(operands, m_major, k_major, epilogue), range(len(operands))))
    packed([z.data_ptr() for z in operands], stream_of(device))
    return y
