"""Every kernel is correct on all of its paths, and these are all of its paths: launches are observed, and
each condition in a device function has been seen both ways."""
import ast
import importlib
import importlib.abc
import importlib.util
import linecache
import math
import pathlib
import sys
from itertools import product

import numpy as np
import pytest
from conftest import ROOT
from forked import in_fork

from numba_matmul.arrays import cdiv
from numba_matmul.registry import KERNELS

# Conditions that no path decides the other way, and why.
ONE_WAY = {
    ("kernels.k03_smem_blocking", "before_use"): "lesson 3 leaves the barrier out, to show the race",
    ("kernels.k03_smem_blocking", "after_use"): "the same",
    ("kernels.k06_vectorized", "b_width == 4"): "kernel 8 pads rows of B's tile",
    ("kernels.k14_stream_k", "guarded"): "kernel 19 launches it so",
    ("kernels.k14_stream_k", "guarded and wanted[0] == 0"): "the same",
    ("kernels.k14_stream_k", "wanted[0] == 0"): "the same",
    ("kernels.k14_stream_k", "parts > 2"): "always so where it is compiled in; it changes the registers",
    ("gemm.rows", "guarded"): "kernel 19 launches it so",
    ("gemm.rows", "guarded and wanted[0] == 0"): "the same",
    ("gemm.rows", "wanted[0] == 0"): "the same",
    ("gemm.schedule", "in_cluster"): "parts of kernel 19's sums are work tiles of their own",
    ("gemm.schedule", "not in_cluster"): "the same",
    ("gemm.schedule", "is_split and (not in_cluster)"): "the same",
    ("kernels.k17_warp_specialized", "is_arriving"): "lesson 32 launches it so, on several GPUs",
    ("kernels.k16_tma_wgmma", "k_major_b"): "a product with a transposed B, of test_torch_ops_layers.py",
    ("kernels.k16_tma_wgmma", "not m_major_a"): "clusters whose A isn't transposed are kernel 20's",
    ("kernels.k16_tma_wgmma", "cluster > 1 and (not m_major_a)"): "the same",
    ("kernels.k16_tma_wgmma", "m_major_a"): "a product with a transposed A, of test_torch_ops_layers.py",
}
# Not taken by any path: a lesson's kernel for sizes that fit, the layers of test_torch_ops_layers.py, and the
# functions that test_split.py and test_fp8.py cover.
ELSEWHERE = ("short_", "start_", "ldmatrix_x4", "place", "gelu", "relu", "identity", "pair_finisher",
             "finished_pairs", "fused_epilogue", "nobody_looked_kernel", "block_", "with_factors",
             "next_scales")
# bfloat16 kernels share more than the others
BF16 = [number for number, kernel in KERNELS.items() if kernel.dtype == "bfloat16"]
GROUPS = [[number] for number in KERNELS if number not in BF16] + [BF16]


def is_device(node):
    "Is this function decorated with cuda.jit?"
    return any(ast.unparse(decorator).startswith("cuda.jit") for decorator in node.decorator_list)


class Watched(ast.NodeTransformer):
    "Puts `_seen(key, value)` around each condition of device functions, and at the start of each of them."
    def __init__(self, module, tree, keys):
        self.module, self.keys, self.inside = module, keys, False
        self.turns, self.changing = set(), set()  # variables of static loops; all others of the function
        self.texts = {node: ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.expr)}

    def seen(self, node, kind):
        self.keys.append((self.module, node.lineno, kind, self.texts[node] if kind == "if" else node.name))
        number = ast.Constant(len(self.keys) - 1)
        return ast.copy_location(ast.Call(ast.Name("_seen", ast.Load()), [number], []), node)

    def visit_FunctionDef(self, node):
        if node.name.startswith(ELSEWHERE): return node
        outer = self.inside, self.turns, self.changing
        self.inside = self.inside or is_device(node)
        self.turns = {loop.target.id for loop in ast.walk(node)
                      if isinstance(loop, ast.For) and ast.unparse(loop.iter).startswith("static(")}
        self.changing = {x.arg for x in node.args.args} | {
            x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        self.changing -= self.turns
        self.generic_visit(node)
        if is_device(node):
            node.body.insert(0, ast.copy_location(ast.Expr(self.seen(node, "start")), node))
        self.inside, self.turns, self.changing = outer
        return node

    def condition(self, node):
        if not self.inside: return node
        names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
        if names & self.turns and not names & self.changing: return node  # decided when the loop is unrolled
        call = self.seen(node, "if")
        call.args.append(node)
        return call

    def visit_If(self, node):
        self.generic_visit(node)
        node.test = self.condition(node.test)
        return node
    visit_IfExp = visit_If

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        node.values = [self.condition(value) for value in node.values]
        return node


class Watching(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    "Loads the kernels' modules so that they record what runs."
    def __init__(self): self.keys, self.seen = [], set()

    def find_spec(self, name, path=None, target=None):
        if name.startswith(("numba_matmul.kernels.k", "numba_matmul.gemm.")):
            found = pathlib.Path(ROOT, *name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_loader(name, self, origin=str(found))

    def exec_module(self, module):
        name = module.__spec__.origin
        tree = ast.parse(pathlib.Path(name).read_bytes())
        tree = Watched(module.__name__.removeprefix("numba_matmul."), tree, self.keys).visit(tree)
        module.__dict__.update(_seen=self.note, __file__=name)
        text = ast.unparse(tree)  # the simulator reads it too
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        exec(compile(text, name, "exec"), module.__dict__)

    def note(self, number, value=True):
        self.seen.add(number if value else -1 - number)
        return value
    # a kernel may call it, and it returns its argument
    note.instruction = "n-", lambda key, value=None: value


def observe(numbers):
    """In a child: take the paths of kernels. Returns (path, factory options, launches, moved, stores) for
    each; the conditions; and which were seen: the number of one that was true, -1 - number if it was false.
    Moved: the most numbers in one copy or, without any, load. Stores: all numbers that one store moves."""
    watching, found = Watching(), {}
    sys.meta_path.insert(0, watching)
    # the test module has loaded them
    for name in [name for name in sys.modules if name.startswith("numba_matmul.")]:
        parent, _, last = name.rpartition(".")
        if name.split(".")[1] in ("gemm", "bench", "kernels", "registry"):
            del sys.modules[name]
            vars(sys.modules.get(parent, sys)).pop(last, None)
    from numba_matmul.gemm import tiled
    options_of, made = tiled.launch_options, []
    def noted(factory, default_tile, g, tile, *args, **options):
        made.append(dict(tile=tile) | options_of(factory, default_tile, g, tile, *args, **options))
        return {name: value for name, value in made[-1].items() if name != "tile"}
    tiled.launch_options = noted  # before a kernel imports it
    from numba_matmul.bench.verify import check_path
    from numba_matmul.registry import KERNELS
    from numba_matmul.sim import async_copy, memory
    from numba_matmul.sim.kernel import StrictKernel
    launches, call = [], StrictKernel.__call__
    def note(launch, *args):
        if launch.grid_dim is not None: launches.append((launch.__name__, launch.grid_dim))
        return call(launch, *args)
    StrictKernel.__call__ = note
    loads, copies = set(), set()  # how many numbers each moves at once
    load, copy = memory.GlobalArray.load, async_copy.cp_async
    def noted_load(array, index, count, frame):
        loads.add(count)
        return load(array, index, count, frame)
    def noted_copy(target, target_index, source, source_index, count, *rest):
        copies.add(count)
        return copy(target, target_index, source, source_index, count, *rest)
    memory.GlobalArray.load = noted_load
    async_copy.cp_async = noted_copy
    for number in numbers:
        kernel = KERNELS[number]
        found[number] = []
        for path in kernel.paths:
            for notes in launches, made, loads, copies: notes.clear()
            check_path(kernel, path)
            moved = max(copies or loads or {1})
            found[number].append((path, made[0] if made else {}, list(launches), moved))
    return found, watching.keys, watching.seen


@pytest.mark.first(1)
@pytest.mark.parametrize("numbers", GROUPS, ids=lambda numbers: "-".join(KERNELS[n].name for n in numbers))
def test_paths(numbers):
    found, keys, seen = in_fork(observe, numbers, timeout=300)
    assert len(keys) > 20
    for number, paths in found.items(): what_was_launched(KERNELS[number], paths)
    own = {KERNELS[number].fn.__module__.removeprefix("numba_matmul.") for number in numbers}
    if 14 in numbers: own |= {"gemm.ring", "gemm.rows", "gemm.shared_sums", "gemm.unaligned"}
    if 18 in numbers: own.add("gemm.grid_sums")
    if 19 in numbers: own.add("gemm.split")
    if 16 in numbers: own |= {"gemm.epilogue", "gemm.pipeline", "gemm.schedule"}
    missing = []
    for number, (module, line, kind, text) in enumerate(keys):
        if module not in own or (module, text) in ONE_WAY: continue
        if number not in seen: missing.append(f"{module}:{line} {kind} {text}: never")
        if kind == "if" and -1 - number not in seen: missing.append(f"{module}:{line} if {text}: always")
    assert not missing, "\n".join([*missing, "Add a call to the kernel's paths that takes the other way."])


def what_was_launched(kernel, paths):
    "Every claim is checked against the launches."
    wholes, counts, grids, facts, strips = set(), set(), set(), set(), set()
    for path, options, launches, moved in paths:
        m, n, k = path.shape
        tile = path.options.get("tile") or options.get("tile") or kernel.tiles and kernel.tiles.tile
        own = [grid for name, grid in launches if name == kernel.kernel_name]
        if kernel.number == 18:  # a cluster for each tile
            assert all(np.prod(grid) % path.options.get("split_k", 1) == 0 for grid in own), path
        if path.options.get("bs") or path.options.get("split_k"): tile = None
        if not own or tile is None or kernel.uses_tma: continue
        size = 2 if kernel.dtype == "bfloat16" else 4
        aligned = min(math.gcd(16, size * skip, size * cols) for skip, cols in zip(path.skips, (k, n, n)))
        whole = m % tile.bm == 0, n % tile.bn == 0, k % tile.bk == 0
        assert options["predicated"] == (not all(whole)), path
        if kernel.number == 14:  # A is copied one by one
            aligned = min(math.gcd(16, 4 * skip, 4 * n) for skip in path.skips[1:])
        width = aligned // size if size == 2 or kernel.number == 14 else 4 if aligned == 16 else 1
        assert options.get("width", width) == width, path
        assert options["read_c"] == (path.beta != 0), path
        if k and path.alpha:
            assert moved == options.get("width", 1), path
            wholes.add(whole)
            facts.add((options["predicated"], options.get("width"), options["read_c"]))
        ring, k_tiles = getattr(tile, "stages", 1), cdiv(k, tile.bk) if path.alpha else 0
        counts.add(k_tiles if k_tiles < 2 else "rings" if k_tiles > 2 * ring else "some")
        rows, cols = cdiv(m, tile.bm), cdiv(n, tile.bn)
        if "blocks" not in path.options and kernel.number < 14:
            assert sum(map(math.prod, own)) == rows * cols and {grid[0] for grid in own} == {cols}, path
            assert len(own) == cdiv(rows, path.constants.get("MAX_GRID_Y", rows)), path
        grids.add((rows > 1, cols > 1)), strips.add(len(own))
    for variant in kernel.tiles.variants if kernel.tiles else ():
        assert any(variant.items() <= path.options.items() for path, *_ in paths), (kernel.name, variant)
    if not kernel.tiles or kernel.uses_tma: return
    assert {0, 1} <= counts and {"rings"} <= counts, (kernel.name, counts)
    if kernel.number == 9: return  # its tiles take long, and its parts are shared with kernels 6 and 10
    assert wholes == set(product((True, False), repeat=3)), kernel.name
    widths = {width for _, width, _ in facts}
    assert facts == set(product((True, False), widths, (True, False))), (kernel.name, facts)
    different = {14: 3, 15: 4}.get(kernel.number, 1 if kernel.number < 6 else 2)
    assert len(widths) == different, (kernel.name, facts)
    assert {(False, False), (True, True)} <= grids, kernel.name
    assert kernel.number > 13 or max(strips) > 1, kernel.name
