"""What `grade("30", my_backward)` asks of two gradients, and `grade("30b", my_epilogue)` of an epilogue.

`my_backward` isn't a kernel, so it's called directly, with tensors of different shapes, layouts and types.
The `matmul` that it gets is the judge's own: it takes only row-major matrices, as the course's kernels do,
and it counts its calls. In a second run it returns twice as much, and both gradients have to be twice as
large. That shows that they are what `matmul` returned.
"""
import numpy as np
from ..exercise import Case, Exercise, Goal, Mutant
from ..judge import Verdict
from .e10 import NO_FENCES


class NotRowMajor(ValueError): "An operand that a kernel of the course would not take."

def shape_text(tensor): return "×".join(map(str, tensor.shape))

def row_major_matmul(calls, times=1):
    "A function that records its calls and returns `times` the product, as exact as its type allows."
    def matmul(x, y):
        import torch
        for name, z in ("first", x), ("second", y):
            if not isinstance(z, torch.Tensor) or z.dtype not in (torch.float32, torch.bfloat16):
                raise TypeError(f"matmul: the {name} operand is {getattr(z, 'dtype', type(z).__name__)}; "
                                "expected a tensor of float32 or bfloat16")
            if z.dim() != 2:
                raise ValueError(f"matmul: the {name} operand has {z.dim()} dimensions; expected two")
            if not z.is_contiguous():
                raise NotRowMajor(
                    f"the {name} operand of a matmul, {shape_text(z)}, has strides {z.stride()}")
        if x.dtype != y.dtype: raise TypeError(f"matmul got {x.dtype} and {y.dtype}")
        if x.shape[1] != y.shape[0]:
            raise ValueError(f"matmul got {shape_text(x)} and {shape_text(y)}, which don't fit together")
        calls.append((x.shape, y.shape))
        return (times * (x.double() @ y.double())).to(x.dtype)
    return matmul


def cases():
    "Name, dC, A, B, and which gradients are needed."
    import torch
    def rand(*shape, dtype=torch.float32): return torch.randn(*shape).to(dtype)
    def turned(x): return x.t().contiguous().t()
    both = True, True
    yield "5×4×3", rand(5, 4), rand(5, 3), rand(3, 4), both
    yield "square", rand(4, 4), rand(4, 4), rand(4, 4), both
    yield "one row", rand(1, 4), rand(1, 3), rand(3, 4), both
    yield "only A's", rand(5, 4), rand(5, 3), rand(3, 4), (True, False)
    yield "only B's", rand(5, 4), rand(5, 3), rand(3, 4), (False, True)
    yield "dC of a sum, one number repeated", rand(1, 1).expand(5, 4), rand(5, 3), rand(3, 4), both
    yield "dC transposed", turned(rand(5, 4)), rand(5, 3), rand(3, 4), both
    yield "A and B transposed", rand(5, 4), turned(rand(5, 3)), turned(rand(3, 4)), both
    yield "bfloat16", *(rand(*shape, dtype=torch.bfloat16) for shape in ((5, 4), (5, 3), (3, 4))), both

ALPHA = -1.5

def first_mistake(backward, dc, a, b, needs):
    "Verdict and text of what's wrong in one case, or None."
    import torch
    calls, before = [], [x.clone() for x in (dc, a, b)]
    try: found = backward(dc, a, b, ALPHA, needs, row_major_matmul(calls))
    except NotRowMajor as e: return "row-major", str(e)
    except Exception as e: return "runs", f"{type(e).__name__}: {e}"
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        return "runs", f"it returned {type(found).__name__}, not two gradients"
    for name, x, needed in zip("AB", found, needs):
        if needed and not isinstance(x, torch.Tensor):
            return "what is needed", f"the gradient of {name} is {x!r}"
        if not needed and x is not None:
            return "what is needed", f"the gradient of {name} isn't needed, and isn't None"
    if len(calls) != sum(needs):
        gradients = f"{sum(needs)} gradient{'s' * (sum(needs) != 1)}"
        return "products", f"calls of matmul: {len(calls)}, for {gradients}"
    c, left, right = (x.double() for x in before)
    exact = ALPHA * c @ right.t(), ALPHA * left.t() @ c
    for name, x, right, operand in zip("AB", found, exact, (a, b)):
        if x is None: continue
        if x.shape != operand.shape:
            return "shapes", f"{name} is {shape_text(operand)}, and its gradient {shape_text(x)}"
        if x.dtype != operand.dtype: return "types", f"{name} is {operand.dtype}, and its gradient {x.dtype}"
        bound = (1e-5 if x.dtype == torch.float32 else 2e-2) * (1 + right.abs().max())
        wrong = ~((x.double() - right).abs() <= bound)  # NaN, too
        if wrong.any():
            i, j = wrong.nonzero()[0].tolist()
            return f"gradient of {name}", (f"{int(wrong.sum())} of {wrong.numel()} elements are wrong: "
                                           f"first [{i}, {j}] = {x[i, j]:.5g}, expected {right[i, j]:.5g}")
    for name, old, new in zip(("dC", "A", "B"), before, (dc, a, b)):
        if not torch.equal(old, new):
            return "inputs unchanged", f"{name} was changed, and others may still need it"
    # a matmul that returns twice as much has to show in what comes back
    for name, x, twice in zip("AB", found, backward(dc, a, b, ALPHA, needs, row_major_matmul([], 2))):
        if x is not None and not torch.equal(2 * x, twice):
            return "products", f"the gradient of {name} isn't what matmul returned, times alpha"


def judge(exercise, backward):
    "The verdicts on `my_backward`."
    names = []
    for name, *case in cases():
        if mistake := first_mistake(backward, *case):
            verdict, text = mistake
            yield Verdict(verdict, False, f"{name}: {text}")
        names.append(name)
    yield Verdict("runs", True, "; ".join(names))
    yield Verdict("row-major", True, "every operand of a product")
    yield Verdict("products", True, "one for each gradient that is needed")
    yield Verdict("gradient of A", True, "against float64, random data")
    yield Verdict("gradient of B", True)
    yield Verdict("inputs unchanged", True)


REFERENCE = """def my_backward(dc, a, b, alpha, needs, matmul):
    da = db = None
    if needs[0]: da = alpha * matmul(dc.contiguous(), b.t().contiguous())
    if needs[1]: db = alpha * matmul(a.t().contiguous(), dc.contiguous())
    return da, db
"""
SOLUTIONS = {"reference": REFERENCE,
             "transposed products, dC copied once": """def my_backward(dc, a, b, alpha, needs, matmul):
    columns = dc.t().contiguous()
    da = matmul(b.contiguous(), columns).t() * alpha if needs[0] else None
    db = matmul(columns, a.contiguous()).t() * alpha if needs[1] else None
    return da, db
""", "by a loop over both": """def my_backward(dc, a, b, alpha, needs, matmul):
    pairs = (dc, b.t()), (a.t(), dc)
    return tuple(alpha * matmul(x.contiguous(), y.contiguous()) if need else None
                 for need, (x, y) in zip(needs, pairs))
""", "copies by clone, transposed by mT": """def my_backward(dc, a, b, alpha, needs, matmul):
    da, db, rows = None, None, dc.clone(memory_format=torch.contiguous_format)
    if needs[0] is True:
        da = matmul(rows, b.mT.clone(memory_format=torch.contiguous_format))
        da *= alpha
    if needs[1]:
        db = torch.mul(matmul(torch.transpose(a, 0, 1).contiguous(), rows), alpha)
    return [da, db]
""", "alpha first": """def my_backward(dc, a, b, alpha, needs, matmul):
    scaled, found = (alpha * dc).contiguous(), [None, None]
    if needs[0]:
        found[0] = matmul(scaled, b.t().contiguous())
    if needs[1]:
        found[1] = matmul(a.t().contiguous(), scaled)
    return found
""", "the smaller copy": """def my_backward(dc, a, b, alpha, needs, matmul):
    def product(x, y):
        def copied(*both): return sum(z.numel() for z in both if not z.is_contiguous())
        if copied(y.t(), x.t()) < copied(x, y):
            return matmul(y.t().contiguous(), x.t().contiguous()).t()
        return matmul(x.contiguous(), y.contiguous())
    return (product(dc, b.t()).mul(alpha) if needs[0] else None,
            product(a.t(), dc).mul(alpha) if needs[1] else None)
"""}


COLUMNS, FIRST = "transposed products, dC copied once", "alpha first"
MUTANTS = (
    Mutant("not written", "return da, db", "...", "written"),
    Mutant("B is not transposed", "b.t().contiguous()", "b.contiguous()", "runs"),
    Mutant("A is not transposed", "a.t().contiguous()", "a.contiguous()", "runs"),
    Mutant("the operands of dA swapped", "matmul(dc.contiguous(), b.t().contiguous())",
           "matmul(b.t().contiguous(), dc.contiguous())", "runs"),
    Mutant("the operands of dB swapped", "matmul(a.t().contiguous(), dc.contiguous())",
           "matmul(dc.contiguous(), a.t().contiguous())", "runs"),
    Mutant("right for square matrices only", "matmul(dc.contiguous(), b.t().contiguous())",
           "matmul(b.contiguous(), dc.t().contiguous()).t() if a.shape == b.shape else "
           "matmul(dc.contiguous(), b.contiguous())", "runs"),
    Mutant("reshaped, not transposed: B", "b.t().contiguous()", "b.reshape(b.shape[::-1])", "gradient of A"),
    Mutant("reshaped, not transposed: A", "a.t().contiguous()", "a.reshape(a.shape[::-1])", "gradient of B"),
    Mutant("a transposed view: B", "b.t().contiguous()", "b.t()", "row-major"),
    Mutant("a transposed view: A", "a.t().contiguous()", "a.t()", "row-major"),
    Mutant("copied before it is transposed", "b.t().contiguous()", "b.contiguous().t()", "row-major"),
    Mutant("by autograd", "    return da, db",
           "    x, y = (z.detach().clone().requires_grad_() for z in (a, b))\n"
           "    (alpha * (x @ y)).backward(dc)\n"
           "    return x.grad if needs[0] else None, y.grad if needs[1] else None", "products"),
    Mutant("dC as it comes, for A", "dc.contiguous(), b", "dc, b", "row-major"),
    Mutant("dC as it comes, for B", "contiguous(), dc.contiguous()", "contiguous(), dc", "row-major"),
    Mutant("B is taken to be row-major", "matmul(b.contiguous(), columns)", "matmul(b, columns)", "row-major",
           COLUMNS),
    Mutant("the result stays transposed: A", "matmul(b.contiguous(), columns).t()",
           "matmul(b.contiguous(), columns)", "shapes", COLUMNS),
    Mutant("the result stays transposed: B", "matmul(columns, a.contiguous()).t()",
           "matmul(columns, a.contiguous())", "shapes", COLUMNS),
    Mutant("alpha forgotten for A", "da = alpha * ", "da = ", "gradient of A"),
    Mutant("alpha forgotten for B", "db = alpha * ", "db = ", "gradient of B"),
    Mutant("alpha twice", "da = alpha * ", "da = alpha * alpha * ", "gradient of A"),
    Mutant("divided by alpha", "db = alpha * ", "db = 1 / alpha * ", "gradient of B"),
    Mutant("the sign of descent", "da = alpha * ", "da = -alpha * ", "gradient of A"),
    Mutant("the mean over the rows", "db = alpha * ", "db = alpha / dc.shape[0] * ", "gradient of B"),
    Mutant("dC taken for ones", "dc.contiguous(), b", "torch.ones_like(dc).contiguous(), b", "gradient of A"),
    Mutant("in the wrong order", "return da, db", "return db, da", "shapes"),
    Mutant("None for B", "return da, db", "return da, None", "what is needed"),
    Mutant("only one", "return da, db", "return da", "runs"),
    Mutant("returns nothing", "return da, db", "da, db", "runs"),
    Mutant("A's, needed or not", "if needs[0]", "if True", "what is needed"),
    Mutant("both or none", "if needs[1]", "if all(needs)", "what is needed"),
    Mutant("asks for the other one", "if needs[0]", "if needs[1]", "what is needed"),
    Mutant("zeros where none is needed", "da = db = None",
           "da, db = torch.zeros_like(a), torch.zeros_like(b)", "what is needed"),
    Mutant("computed, and thrown away", "return da, db",
           "matmul(dc.contiguous(), b.t().contiguous())\n    return da, db", "products"),
    Mutant("by PyTorch's own product", "matmul(dc.contiguous(), b.t().contiguous())", "(dc @ b.t())",
           "products"),
    Mutant("matmul called, PyTorch's product returned", "    return da, db",
           "    if needs[0]: da = alpha * (dc @ b.t())\n    return da, db", "products"),
    Mutant("matmul called, numpy's product returned",
           "db = alpha * matmul(a.t().contiguous(), dc.contiguous())",
           "db = (matmul(a.t().contiguous(), dc.contiguous()), alpha * (a.double().t() @ "
           "dc.double()).to(b.dtype))[1]", "products"),
    Mutant("matmul's result times zero", "    return da, db",
           "    if needs[0]: da = 0 * da + alpha * (dc.double() @ b.double().t()).to(a.dtype)\n"
           "    return da, db", "products"),
    Mutant("dC scaled where it lies", "(alpha * dc).contiguous()", "dc.contiguous().mul_(alpha)",
           "inputs unchanged", FIRST),
    Mutant("A scaled where it lies", "matmul(a.t().contiguous(), scaled)",
           "matmul(a.mul_(2).t().contiguous(), scaled) / 2", "inputs unchanged", FIRST),
    Mutant("the result in float64", "db = alpha * ",
           "db = alpha * 1.0 * torch.ones((), dtype=torch.float64)[None, None] * ", "types"),
    Mutant("the product in float64", "matmul(dc.contiguous(), b.t().contiguous())",
           "matmul(dc.double().contiguous(), b.double().t().contiguous())", "runs"),
    Mutant("bfloat16 becomes float32", "matmul(dc.contiguous(), b.t().contiguous())",
           "matmul(dc.float().contiguous(), b.float().t().contiguous())", "types"))


# The epilogue is a kernel. Its sums are arranged as a warp holds them after `mma` or `wgmma`: each lane
# has four per eight columns, two neighbors in one row and two eight rows below. In the first case bias
# and residual are 0 and all sums are positive, so only the place of a sum can be wrong. The other cases
# have the whole formula.

def epilogue_case(m, n, formula=True):
    "A launch (sums, bias, residual, y), one warp per 16 rows. Without the formula only a sum's place counts."
    def make(random):
        shapes = (m, n), (n,), (m, n)
        c, bias, residual = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
        if not formula: c, bias, residual = abs(c), 0 * bias, 0 * residual
        parts = c.reshape(m // 16, 2, 8, n // 8, 4, 2)  # warps, halves, rows, groups, pairs, neighbors
        sums = np.ascontiguousarray(parts.transpose(0, 2, 4, 3, 1, 5)).reshape(2 * m, n // 2)
        return ((sums, bias, residual, np.full_like(c, np.nan)),
                {3: np.maximum(c.astype(np.float64) + bias, 0) + residual})
    return Case(f"{m}×{n}" + ", positive sums alone" * (not formula), (32,), (m // 16,), make)

EPILOGUES = {"reference": """@cuda.jit
def my_epilogue(sums, bias, residual, y):
    lane, warp = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
    for i in range(sums.shape[1]):
        row = 16 * warp + lane // 4 + i % 4 // 2 * 8
        col = i // 4 * 8 + lane % 4 * 2 + i % 2
        x = sums[32 * warp + lane, i] + bias[col]
        if x < 0: x = float32(0)
        y[row, col] = x + residual[row, col]
""", "group by group": """@cuda.jit
def my_epilogue(sums, bias, residual, y):
    lane = uint32(cuda.threadIdx.x)
    top, left = cuda.blockIdx.x * 16 + lane // 4, lane % 4 * 2
    for group in range(sums.shape[1] // 4):
        for below in range(2):
            for right in range(2):
                row, col = top + 8 * below, 8 * group + left + right
                x = sums[cuda.grid(1), 4 * group + 2 * below + right]
                y[row, col] = max(x + bias[col], float32(0)) + residual[row, col]
""", "halves in a function": """@cuda.jit(device=True)
def finished(total, bias, residual):
    total += bias
    if total <= float32(0): total = float32(0)
    return total + residual

@cuda.jit
def my_epilogue(sums, bias, residual, y):
    lane, warp = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
    i = 0
    while i < sums.shape[1]:
        row, col = 16 * warp + (lane >> 2) + 4 * (i & 2), (i >> 2) * 8 + (lane & 3) * 2
        for q in range(2):
            total = sums[32 * warp + lane, i + q]
            y[row, col + q] = finished(total, bias[col + q], residual[row, col + q])
        i += 2
""", "by row and column": """@cuda.jit
def my_epilogue(sums, bias, residual, y):
    lane, first = cuda.threadIdx.x, 16 * cuda.blockIdx.x
    for half in range(2):
        row = first + 8 * half + lane // 4
        for pair in range(y.shape[1] // 8):
            for col in range(8 * pair + 2 * (lane % 4), 8 * pair + 2 * (lane % 4) + 2):
                at = 4 * pair + 2 * half + col % 2
                total = bias[col] + sums[32 * cuda.blockIdx.x + lane, at]
                y[row, col] = residual[row, col] + (total if total > 0 else float32(0))
"""}


WRONG_EPILOGUES = (
    Mutant("not written", "y[row, col] = x + residual[row, col]", "...", "written"),
    Mutant("bias of the row", "bias[col]", "bias[row]", "in bounds"),
    Mutant("bias of the sum's number", "bias[col]", "bias[i]", "correct"),
    Mutant("no bias", " + bias[col]", "", "correct"),
    Mutant("bias after relu", "x = sums[32 * warp + lane, i] + bias[col]\n        if x < 0: x = float32(0)",
           "x = sums[32 * warp + lane, i]\n        if x < 0: x = float32(0)\n        x += bias[col]",
           "correct"),
    Mutant("residual before relu", "+ bias[col]\n", "+ bias[col] + residual[row, col]\n", "correct"),
    Mutant("no residual", "x + residual[row, col]", "x", "correct"),
    Mutant("residual transposed", "residual[row, col]", "residual[col, row]", "in bounds"),
    Mutant("no relu", "        if x < 0: x = float32(0)\n", "", "correct"),
    Mutant("the other half", "if x < 0", "if x > 0", "correct"),
    Mutant("the distance from zero", "x = float32(0)", "x = -x", "correct"),
    Mutant("relu of all", "y[row, col] = x + residual[row, col]",
           "y[row, col] = max(x + residual[row, col], float32(0))", "correct"),
    Mutant("four rows below", "// 2 * 8", "// 2 * 4", "no races"),
    Mutant("nothing below", " + i % 4 // 2 * 8", "", "correct"),
    Mutant("rows and columns of a lane swapped", "lane // 4", "lane % 8", "no races"),
    Mutant("neighbors far apart", "lane % 4 * 2 + i % 2", "lane % 4 + i % 2 * 4", "correct"),
    Mutant("neighbors below each other", "i % 4 // 2 * 8\n        col = i // 4 * 8 + lane % 4 * 2 + i % 2",
           "i % 2 * 8\n        col = i // 4 * 8 + lane % 4 * 2 + i % 4 // 2", "correct"),
    Mutant("groups of four columns", "i // 4 * 8", "i // 4 * 4", "no races"),
    Mutant("the first warp's rows", "row = 16 * warp + ", "row = ", "no races"),
    Mutant("the first warp's sums", "32 * warp + lane", "lane", "correct"),
    Mutant("y stored before the residual is added", "        y[row, col] = x + residual[row, col]\n",
           "        y[row, col] = x\n        y[row, col] = x + residual[row, col]\n", "one store each"),
    Mutant("one barrier per sum", "        y[row, col] =",
           "        cuda.syncthreads()\n        y[row, col] =", "barriers"),
    Mutant("a fence for each sum", "        y[row, col] =",
           "        cuda.threadfence()\n        y[row, col] =", "fences"),
    Mutant("32 columns for all", "range(sums.shape[1])", "range(16)", "in bounds"),
    Mutant("half of the sums", "range(sums.shape[1])", "range(sums.shape[1] // 2)", "correct"),
    Mutant("more than there are", "range(sums.shape[1])", "range(2 * sums.shape[1])", "in bounds"))


PLACE = ("bias and residual are 0 here, so only the place of a sum counts. A warp's sums begin at sums[32 * "
         "warp]; of a lane's four for eight columns, 0 and 1 are neighbors in a row, and 2 and 3 are eight "
         "rows below")
EXERCISES = (Exercise(
    "30", "my_backward", judge=judge,
    hints={
        "runs: fit together": (
            "write down the shapes of dC, A and B: which two multiply to the shape of A, and which to that "
            "of B?"),
        "runs: expected a tensor": (
            "the course's matmul takes float32 and bfloat16 as they come: leave the type alone"),
        "runs: not two gradients": "return a pair, da and db",
        "runs": (
            "dC is m×n, A m×k, B k×n, needs holds two bools, and matmul takes two tensors: which of your "
            "lines fails, and with which operands?"),
        "row-major": (
            "a transposed view, or a dC from autograd, can have its numbers in a different order: "
            ".contiguous() copies it"),
        "products": (
            "call the given matmul once for each gradient that's needed, and return what it returns, times "
            "alpha: no other product"),
        "what is needed": (
            "needs says whether A's gradient is needed, and whether B's is; return None for one that isn't"),
        "shapes": "a gradient has the same shape as its matrix, and A's comes first",
        "types": "a gradient has the same type as its matrix",
        "gradient of A": (
            "C[i, j] = alpha · Σ A[i, p]·B[p, j]: what does A[i, p] add to, and with which factors, alpha "
            "among them? And .reshape doesn't transpose"),
        "gradient of B": (
            "C[i, j] = alpha · Σ A[i, p]·B[p, j]: what does B[p, j] add to, and with which factors, alpha "
            "among them? And .reshape doesn't transpose"),
        "inputs unchanged": (
            "an operation whose name ends in _ writes into the tensor itself, and so does *=")},
    preamble="import torch\n", solutions=SOLUTIONS, mutants=MUTANTS),
    Exercise(
    "30b", "my_epilogue", cases=(epilogue_case(32, 24, False), epilogue_case(32, 24), epilogue_case(16, 8)),
    goals=(Goal("barriers", lambda counts: counts.barriers, most=0, counted="launches",
                hint="a thread works on elements that no other one touches, so there's nothing to wait for"),
           NO_FENCES),
    hints={
        "in bounds": "the bias belongs to a column, the residual to a row and a column",
        "in bounds: sums: index": "a lane has sums.shape[1] sums, four per eight columns of y",
        "no races: with no flag": (
            "two blocks write one element: a block is a warp, and its rows begin at 16 * warp"),
        "no races: and is written by": (
            "two lanes write one element: which rows and columns does a lane have? Draw lanes 0, 1 and 4"),
        "correct: in the wrong places": PLACE,
        "correct: never written": PLACE,
        "correct: positive sums alone": (
            "bias and residual are 0 here, and no sum is negative: y has the sums as they are, each in its "
            "place"),
        "correct": (
            "each sum is in its place, so it's the formula: add the bias of its column, replace a negative "
            "number by 0 (ReLU), and then add the residual of its row and column"),
        "one store each": "finish a sum in a variable, and store it once",
        "fences": "a thread works on elements that no other one touches, so there is nothing to order"},
    solutions=EPILOGUES, mutants=WRONG_EPILOGUES))
