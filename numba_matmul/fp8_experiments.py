"""What lesson 20 measures on a GPU: speeds beside `torch._scaled_mm`, errors, casts, and a small network."""
import statistics
from functools import partial

from .fp8 import E4M3
from .gemm.fp8_cast import SCALES, fp8_cast


def alternating(
    fns: dict,      # name → function of one set of arrays
    sets: list,     # of arrays, used in turn
    reps: int = 8,  # calls in a CUDA graph
    rounds: int = 11,
) -> dict:          # name → seconds per call
    "Medians of CUDA graphs of several calls, replayed in turn, timed by events."
    import torch
    graphs, times = {}, {name: [] for name in fns}
    for name, fn in fns.items():
        for x in sets: fn(x)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for i in range(reps): fn(sets[i % len(sets)])
    names = list(fns)
    for number in range(rounds + 2):
        for name in names[number % len(names):] + names[:number % len(names)]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if number > 1: times[name].append(begin.elapsed_time(end) / reps / 1e3)
    return {name: statistics.median(found) for name, found in times.items()}

def operands(m, n, k, dtype_c="bfloat16"):
    "Random e4m3 matrices, B K-major, room for C, and scales of each kind."
    import torch
    def matrix(rows): return torch.randn(rows, k, device="cuda").to(getattr(torch, E4M3))
    def scales(*shape): return torch.rand(*shape, device="cuda") + 0.5
    blocks = scales(m, -(-k // 128)), scales(-(-k // 128), -(-n // 128))
    c = torch.empty(m, n, device="cuda", dtype=getattr(torch, dtype_c))
    return dict(a=matrix(m), b=matrix(n).t(), c=c,
                one=(scales(1), scales(1)), rows=(scales(m), scales(n)), blocks=blocks,
                outer=tuple(x.t().contiguous().t() for x in blocks))  # as cuBLAS takes them

def ours(x, scaling, fast=False, **options):
    "Kernel 20."
    from .kernels.k20_fp8 import fp8_gemm
    scale_a, scale_b = x[scaling]
    return fp8_gemm(x["a"], x["b"], x["c"], scale_a=scale_a, scale_b=scale_b, fast=fast, **options)

def cublas(x, scaling, fast=False):
    "`torch._scaled_mm`."
    import torch
    scale_a, scale_b = x["outer" if scaling == "blocks" else scaling]
    if scaling == "rows": scale_a, scale_b = scale_a[:, None], scale_b[None]
    return torch._scaled_mm(x["a"], x["b"], scale_a, scale_b, out_dtype=x["c"].dtype, use_fast_accum=fast)

CLASSES = {"fast": ("one", True), "fast, rows": ("rows", True), "promoted": ("one", False),
           "promoted, rows": ("rows", False), "blocks": ("blocks", False)}

SHAPES = (4096,) * 3, (8192,) * 3, (64, 8192, 8192), (128, 8192, 8192), (256, 8192, 8192)

def speeds(shapes=SHAPES) -> dict:
    "TFLOP/s: ours and torch._scaled_mm, for each class and shape."
    found = {}
    for m, n, k in shapes:
        sets = [operands(m, n, k) for _ in range(3 if m * n <= 2**24 else 2)]
        for name, (scaling, fast) in CLASSES.items():
            fns = {"kernel 20": partial(ours, scaling=scaling, fast=fast),
                   "torch._scaled_mm": partial(cublas, scaling=scaling, fast=fast)}
            for who, seconds in alternating(fns, sets).items():
                shape = str(m) if m == n else f"{m}×{n}×{k}"
                found[f"{shape}, {name}: {who}"] = 2 * m * n * k / seconds / 1e12
    return found

def error(found, exact) -> float:
    "Relative error in the Frobenius norm."
    return float((found.double() - exact).norm() / exact.norm())

def errors_of_sums(ks=(128, 512, 2048, 8192, 32768), size=256) -> dict:
    "Relative errors by the length of the sums, for normal and for positive numbers; C is float32."
    import torch
    found = {}
    for k in ks:
        for kind in ("normal", "positive"):
            x = operands(size, size, k, "float32")
            if kind == "positive":
                a, b = (y.float().abs().to(y.dtype) for y in (x["a"], x["b"].t()))
                x.update(a=a, b=b.t())
            x["one"] = torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
            exact = x["a"].double() @ x["b"].double()
            for name, fast in ("fast", True), ("promoted", False):
                for who, fn in ("kernel 20", partial(ours, split_k=1)), ("torch._scaled_mm", cublas):
                    found[f"{kind}, {k}, {name}: {who}"] = error(fn(x, "one", fast), exact)
    return found

def casts(size=8192) -> dict:
    "GB/s read and written by casts, and by copying a tensor."
    import torch
    found = {}
    for kind in ("float32", "bfloat16"):
        sets = [torch.randn(size, size, device="cuda").to(getattr(torch, kind)) for _ in range(3)]
        target = torch.empty_like(sets[0])
        fns = {scales: partial(fp8_cast, scales=scales) for scales in SCALES} | {"a copy": target.copy_}
        for name, seconds in alternating(fns, sets, 6).items():
            bytes_each = sets[0].itemsize * (2 if name == "a copy" else 1) + (name != "a copy")
            found[f"{kind}: {name}"] = size**2 * bytes_each / seconds / 1e9
    return found
