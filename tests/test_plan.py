"""Plans of calls: without a GPU, with arrays that are only addresses, and a driver that only records what it
receives. (On a GPU `make gpu STAGE=check` runs the real thing: streams, threads, graphs, new addresses.)"""
import ast
import ctypes
import inspect
import sys
import textwrap
from itertools import product
from threading import Thread, local
from types import SimpleNamespace

import numpy as np
import pytest

from numba_matmul.gemm import plan as gemm_plan, tiled, watched
from numba_matmul.kernels import k18_past_cublas_bf16
from numba_matmul.process import in_child
from numba_matmul.registry import KERNELS

A, B, C, ROOM = 1 << 20, 2 << 20, 3 << 20, 4 << 20  # addresses


class Matrix:
    "The part of a device array that a plan reads."
    def __init__(self, address, *shape, dtype=np.float32):
        self.shape, self.dtype, self.size = shape, np.dtype(dtype), int(np.prod(shape))
        each = self.dtype.itemsize
        self.nbytes, self.device_ctypes_pointer = each * self.size, ctypes.c_void_p(address)
        self.strides = tuple(each * int(np.prod(shape[i + 1:])) for i in range(len(shape)))
    @property
    def address(self): return self.device_ctypes_pointer.value


class Tensor(Matrix):
    "The same for a tensor."
    __module__ = "torch"
    def __init__(self, *args):
        super().__init__(*args)
        self.whole, self.device = True, 0
    def data_ptr(self): return self.address
    def get_device(self): return self.device
    def is_contiguous(self): return self.whole


class Kernel:
    "The part of a kernel that a plan uses."
    def __init__(self, handle): self.handle = handle
    def typeof_pyval(self, x): return type(x)
    def compile(self, types):
        function = SimpleNamespace(handle=self.handle)
        return SimpleNamespace(_codelibrary=SimpleNamespace(get_cufunc=lambda: function))


def without_a_gpu(gemm_plan, note):
    "In a child: calls are checked and launches recorded, without a GPU."
    def checked(a, b, c, alpha, beta, dtype, others, dtype_c, k_major_b):
        if c is None: c = Matrix(C, a.shape[0], b.shape[1])
        (m, k), n, others = a.shape, b.shape[1], others or {}
        return SimpleNamespace(a=a, b=b, c=c, m=m, n=n, k=k, alpha=alpha, beta=beta, result=c, others=others,
                               spans=[gemm_plan.span(x) for x in (a, b, c)])

    gemm_plan._launch, gemm_plan.gemm_args = note, checked
    gemm_plan.current_gpu = lambda: SimpleNamespace(id=0)
    gemm_plan.allow_shared_memory = gemm_plan.need_shared_memory = lambda *_: None
    gemm_plan.array_like = lambda x, shape, dtype: Matrix(5 << 20, *shape)
    gemm_plan.workspace_of = lambda stream, size: SimpleNamespace(data_ptr=lambda: ROOM + (1 << 16))


def with_tensors():
    "In a child: `Tensor` is torch's."
    driver = SimpleNamespace(_cuda_getDevice=lambda: 0, _cuda_getCurrentRawStream=lambda device: 9)
    sys.modules["torch"] = SimpleNamespace(Tensor=Tensor, nn=SimpleNamespace(Parameter=Tensor), _C=driver)


def planned_calls():
    """In a child, with the compiler's side of Numba: calls of a host function, and what the driver received
    for each (grid, block, shared bytes, stream, number of attributes, the arguments' fields); and the calls
    that needed a new plan."""
    import numba_matmul.gemm.plan as gemm_plan
    launches, planned = [], []

    def note(config, function, pointers, _):
        config, count = ctypes.cast(config, ctypes.POINTER(ctypes.c_uint32)), 3 * 9 + 2 + 7 + 1
        stream = ctypes.cast(config, ctypes.POINTER(ctypes.c_uint64))[4]
        fields = ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        arguments = [fields[i][0] for i in range(count)]
        launches.append((tuple(config[:3]), tuple(config[3:6]), config[6], stream, config[12], arguments))
        return 0

    without_a_gpu(gemm_plan, note)

    def plan(g, tile=None):
        planned.append((g.m, g.n, g.k, g.alpha, g.beta, tile))
        room = Matrix(ROOM, 64)
        second_row = Matrix(g.a.address + g.a.strides[0], g.m - 1, g.k)  # a strip of A
        args = second_row, g.b, g.c, np.int64(-3), np.float32(g.alpha), room, gemm_plan.launch_number
        return gemm_plan.Plan([gemm_plan.Launch(Kernel(77), (2, 3), 64, args, 128, tile == "cooperative")],
                              [Matrix(9 << 20, 1), room])

    def fn(a, b, c=None, alpha=1.0, beta=0.0, **options):
        return gemm_plan.run(plan, a, b, c, alpha, beta, **options)

    a, b, c = Matrix(A, 4, 8), Matrix(B, 8, 2), Matrix(C, 4, 2)
    fn(a, b, c)
    fn(Matrix(A + 4096, 4, 8), Matrix(B + 4096, 8, 2), Matrix(C + 4096, 4, 2))
    fn(a, b, c)
    fn(a, b)
    new = fn(a, b)
    fn(a, b, c, 2)          # another alpha
    fn(a, b, c, 2.0)        # of a different type
    fn(Matrix(A + 4, 4, 8), b, c)  # another alignment
    fn(Matrix(A, 5, 8), b, Matrix(C, 5, 2))
    fn(a, b, c, tile="cooperative")
    fn(a, b, c, tile="cooperative")
    fn(a, b, c, tile=[])    # no key
    fn(a, b, c, tile=[])
    gemm_plan.forget_plans()
    fn(a, b, c)             # planned once more
    fn(Matrix(C - 128, 4, 8), Matrix(C - 64, 8, 2), c)  # C begins where they end
    refused = []
    for operands in (Matrix(C - 64, 4, 8), b), (a, Matrix(C - 32, 8, 2)):
        try: fn(*operands, c)
        except ValueError as error: refused.append(str(error).partition(",")[0])

    with_tensors()
    for _ in range(2): fn(Tensor(A, 4, 8), Tensor(B, 8, 2), Tensor(C, 4, 2))  # the first call caches its plan
    return launches, planned, new.address, refused


def calls_that_differ_a_little():
    "In a child: which matrices that differ from an earlier call's in one respect needed a plan of their own?"
    import numba_matmul.gemm.plan as gemm_plan
    without_a_gpu(gemm_plan, lambda *_: 0)
    with_tensors()
    planned, needed = [], []
    def plan(g):
        planned.append(g)
        return gemm_plan.Plan(delegate=lambda *_: None)
    def call(which=0, **changes):
        tensors = [Tensor(A, 4, 8), Tensor(B, 8, 2), Tensor(C, 4, 2)]
        vars(tensors[which]).update(changes)
        planned.clear()
        gemm_plan.run(plan, *tensors, 1.0, 0.0)
        return bool(planned)
    first, again = call(), call()
    for which, at in enumerate((A, B, C)):
        changes = dict(shape=(4, 4), dtype=np.dtype(np.float16), whole=False, device=1,
                       device_ctypes_pointer=ctypes.c_void_p(at + 4))  # less aligned
        for name, value in changes.items():
            if call(which, **{name: value}): needed.append((which, name))
    return first, again, needed


def delegated_calls():
    """In a child: what another host function receives from two calls, the second with a cached plan; and of
    which plans a call looked at the constants."""
    import numba_matmul.gemm.plan as gemm_plan
    without_a_gpu(gemm_plan, lambda *_: 0)
    received, looked = [], []
    gemm_plan.see_constants = lambda make_plan: looked.append(make_plan.__name__)
    def other(a, b, c, alpha, beta): received.append((a.address, b.address, c.address, alpha, beta))
    def plan(g): return gemm_plan.Plan(delegate=other)
    for at in (0, 4096):
        gemm_plan.run(plan, Matrix(A + at, 4, 8), Matrix(B + at, 8, 2), Matrix(C + at, 4, 2), 2.0, 3.0)
    return received, looked


@pytest.fixture(scope="module")
def found(): return in_child(planned_calls, simulator=False)


def test_a_call_like_an_earlier_one_has_a_plan(found):
    _, planned, new, refused = found
    same = (4, 2, 8, 1.0, 0.0, None)
    assert planned == [
        same, same, (4, 2, 8, 2, 0.0, None), (4, 2, 8, 2.0, 0.0, None), same, (5, 2, 8, 1.0, 0.0, None),
        (4, 2, 8, 1.0, 0.0, "cooperative"), (4, 2, 8, 1.0, 0.0, []), (4, 2, 8, 1.0, 0.0, []), same,
        same]
    assert new == 5 << 20 and refused == ["c overlaps a in memory", "c overlaps b in memory"]


def test_a_plan_is_only_for_matrices_that_are_alike():
    properties = "shape", "dtype", "whole", "device", "device_ctypes_pointer"
    assert in_child(calls_that_differ_a_little, simulator=False) == (
        True, False, list(product(range(3), properties)))


def test_a_call_is_passed_on_with_its_own_matrices():
    received, looked = in_child(delegated_calls, simulator=False)
    assert received == [(A + at, B + at, C + at, 2.0, 3.0) for at in (0, 4096)]
    assert looked == ["plan", "plan"]


def test_a_packed_launch_has_what_numba_packs_and_the_addresses_of_this_call(found):
    # numbers unique to a launch
    assert len(found[0]) == 17 and len({got[5][-1] for got in found[0]}) == 17
    assert [got[3] for got in found[0]] == 15 * [0] + 2 * [9]  # torch's stream
    launches = [found[0][i] for i in (1, 2, 4, 10)]  # from cached plans
    def fields(a, b, c):
        room = ROOM + (1 << 16) + 256  # after another one
        return [0, 0, 24, 4, a + 32, 3, 8, 32, 4, 0, 0, 16, 4, b, 8, 2, 8, 4, 0, 0, 8, 4, c, 4, 2, 8, 4,
                2**64 - 3, 0x3F800000, 0, 0, 64, 4, room, 64, 4]  # -3 and 1.0, then the room
    first, second, third, fourth = launches
    for got, a, b, c in ((first, A + 4096, B + 4096, C + 4096), (second, A, B, C), (third, A, B, 5 << 20),
                         (fourth, A, B, C)):
        assert got[:4] == ((2, 3, 1), (64, 1, 1), 128, 0)
        assert got[5][:-1] == fields(a, b, c)
    # attributes: only blocks that wait for each other have one
    assert [got[4] for got in launches] == [0, 0, 0, 1]


def calls_with_further_arrays():
    "In a child: the addresses that launches receive, which ones needed a new plan, and what is refused."
    import numba_matmul.gemm.plan as gemm_plan
    launches, planned, refused = [], [], []

    def note(config, function, pointers, _):
        fields = ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        launches.append([fields[9 * i + 4][0] for i in range(2)])
        return 0

    def plan(g):
        planned.append(dict(g.others))
        return gemm_plan.Plan([gemm_plan.Launch(Kernel(77), 1, 1, (g.a, g.others["x"]))])

    without_a_gpu(gemm_plan, note)
    a, b, c, X = Matrix(A, 4, 8), Matrix(B, 8, 2), Matrix(C, 4, 2), 7 << 20
    def call(x, c=c): gemm_plan.run(plan, a, b, c, 1.0, 0.0, others=dict(x=x))
    for at, rows in (X, 2), (X + 64, 2), (X + 4, 2), (X, 4), (X, 2): call(Matrix(at, rows, 2))
    for _ in range(2): call(Matrix(X, 2, 2), None)
    for at in A, B + 16, C:
        try: call(Matrix(at, 2, 2))
        except ValueError as error: refused.append(str(error))
    return launches, len(planned), refused


def test_further_arrays_of_a_call_are_operands_of_its_plan():
    launches, planned, refused = in_child(calls_with_further_arrays, simulator=False)
    X = 7 << 20
    # new: the first, another alignment, another shape, no C
    assert launches == [[A, x] for x in (X, X + 64, X + 4, X, X, X, X)] and planned == 4
    assert refused == [f"x overlaps {name} in memory: pass another array" for name in "abc"]


def allowed_shared_memory():
    "In a child: what a kernel may have, after launches that need more and less."
    from numba.cuda.cudadrv import driver as numba_driver
    from numba_matmul.gemm.limits import allow_shared_memory
    allowed = [0]
    numba_driver.driver = SimpleNamespace(
        cuKernelGetAttribute=lambda *_: allowed[-1],
        cuKernelSetAttribute=lambda attribute, size, *_: allowed.append(size))
    function = SimpleNamespace(handle=77, device=SimpleNamespace(id=0))
    compiled = SimpleNamespace(_codelibrary=SimpleNamespace(get_cufunc=lambda: function))
    for size in 210_064, 205_968, 214_160: allow_shared_memory(compiled, size)
    return allowed


def test_a_launch_does_not_take_shared_memory_from_another_one():
    assert in_child(allowed_shared_memory, simulator=False) == [0, 210_064, 214_160]


def maps_of_calls():
    """In a child: where the tensor maps of prepared launches are, what they contain, and the driver's calls
    for them. It refuses threads without a context, and the main thread starts without one. Then the
    same launch in separate threads; and the message for a different error."""
    from cuda.bindings import driver
    import numba_matmul.gemm.plan as gemm_plan
    import numba_matmul.gemm.tensor_maps as tensor_maps
    moved, launches, in_context, refused, made = [], [], local(), [], []

    def needs_context(call):
        def checked(*arguments):
            if hasattr(in_context, "gpu"): return call(*arguments)
            refused.append(call.__name__)
            return (driver.CUresult.CUDA_ERROR_INVALID_CONTEXT,) if call.__name__.startswith("cu") else 201
        checked.__name__ = call.__name__
        return checked

    def move(at, address):
        if not address: return 1
        moved.append((at % 64, address))
        ctypes.cast(at, ctypes.POINTER(ctypes.c_uint64))[0] = address
        return 0

    def note(config, function, pointers, _):
        fields = ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        launches.append([fields[i][0] for i in range(6 + 3 * 16 + 2 * 9 + 1)])
        return 0

    def cuTensorMapEncodeTiled(_, dimensions, address, sizes, strides, box, *others):
        made.append((address, [int(x) for x in (*sizes, *strides, *box)]))
        words = np.arange(16, dtype=np.uint64) + np.uint64(100 * int(box[1]))
        return driver.CUresult.CUDA_SUCCESS, SimpleNamespace(getPtr=lambda: words.ctypes.data)

    def cuKernelGetFunction(handle): return driver.CUresult.CUDA_SUCCESS, 78

    for call in cuTensorMapEncodeTiled, cuKernelGetFunction:
        setattr(driver, call.__name__, needs_context(call))
    gemm_plan._launch, gemm_plan._move_map = needs_context(note), needs_context(move)
    tensor_maps.current_gpu = lambda: SimpleNamespace(id=3)
    tensor_maps.cuda = SimpleNamespace(current_context=lambda number: setattr(in_context, "gpu", number))
    gemm_plan.need_shared_memory = lambda size: None
    a, b, c = (Matrix(*x, dtype=np.uint16) for x in ((A, 4, 8), (B, 8, 2), (C, 4, 2)))

    def prepare(pieces=None):
        maps = tensor_maps.TensorMapWords((a, 1), (b, 2), (c, 3))
        launch = gemm_plan.Launch(Kernel(driver.CUkernel(77)), 1, 1, (maps, (a, b), np.uint32(5)))
        return gemm_plan.PackedLaunch(launch, ((A, A + 4096), (B, B + 4096), (C, C + 4096)), pieces)
    def in_thread(fn, *arguments):
        thread = Thread(target=fn, args=arguments)
        thread.start(), thread.join()

    for pieces in None, (0, 1, 2, 0, 1):
        one = prepare(pieces)
        one((A, B, C), 0)
        one((A, B + 64, C), 0)
    told, calls = (moved[:], launches[:], made[:3]), len(launches)
    in_thread(prepare)
    in_thread(one, (A, B + 64, C), 0)   # nothing to update: the launch comes first
    in_thread(one, (A, B + 128, C), 0)  # a map comes first
    assert in_context.gpu == 3
    del in_context.gpu
    function = tensor_maps.ask_driver(driver.cuKernelGetFunction, driver.CUkernel(77))
    try: one((0, B, C), 0)
    except RuntimeError as e: error = str(e)
    return *told, len(launches) - calls, moved[len(told[0]):], function, refused, error


def test_tensor_maps_are_parameters_and_only_new_addresses_are_told():
    found = in_child(maps_of_calls, simulator=False)
    moved, launches, made, calls, in_threads, function, refused, error = found
    assert made == [(A, [8, 4, 16, 64, 1]), (B, [2, 8, 4, 64, 2]), (C, [2, 4, 4, 64, 3])]
    assert moved == 2 * [(0, A), (0, B), (0, C), (0, B + 64)]
    for got, b in zip(launches, 2 * (B, B + 64)):
        words = [[first, *range(100 * rows + 1, 100 * rows + 16)] for first, rows in ((A, 1), (b, 2), (C, 3))]
        assert got[:6] == 6 * [0] and got[6:54] == sum(words, [])
        assert got[54:] == [0, 0, 32, 2, A, 4, 8, 16, 2, 0, 0, 16, 2, b, 8, 2, 4, 2, 5]
    # A thread that hasn't used the GPU gets a context, whatever it calls first, and the call is repeated.
    assert (calls, in_threads, function) == (2, [(0, B + 128)], 78)
    made = 2 * ["cuTensorMapEncodeTiled"]
    assert refused == [*made, "note", "note", "move", "move", "cuKernelGetFunction"]
    assert error == "the CUDA driver refuses move: error 1"


def test_every_host_function_runs_a_plan():
    """Its body, or that of `tiled`, runs in every call: one line; four, if a call may have additional arrays
    and must refuse what the GPU finds; or six, if it must see how B is stored, and which type C has."""
    for kernel in KERNELS.values():
        body = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn))).body[0].body
        lines = [ast.unparse(line) for line in body if not isinstance(line, ast.Expr)]
        if kernel.number == 19: assert len(lines) == 4 and lines[1].startswith("c = run(plan")
        elif kernel.number == 20: assert len(lines) == 6 and lines[-1].startswith("return run(plan"), lines
        else: assert len(lines) == 1 and lines[0].startswith("return run(plan"), kernel.name


def name_of(module): return module.__name__


def kept_over(change, *args):
    "Does a plan survive a change?"
    gemm_plan._PLANS["a call"] = "its plan"
    change(*args)
    return bool(gemm_plan._PLANS)


def test_a_constant_that_changes_changes_the_plan():
    "A change in a module is noticed immediately; a notebook's constants are compared."
    for kernel in KERNELS.values(): assert watched.constants_of(kernel.plan) == [], kernel.name
    for module, name in (tiled, "MAX_GRID_Y"), (k18_past_cublas_bf16, "MIN_K_TILES"):
        assert not kept_over(setattr, module, name, getattr(module, name))
        assert in_child(name_of, module, simulator=True) == module.__name__  # it can be pickled
    notebook = dict(__name__="__main__", STEP=3, CYCLES={1: 2}, KERNEL=KERNELS[1], TABLE=np.zeros(3))
    exec("def plan(g):\n    def inner(): return STEP, CYCLES, KERNEL, TABLE\n    return inner()", notebook)
    watched.see_constants(notebook["plan"])
    assert kept_over(watched.see_constants, notebook["plan"])
    for values, name, new in (notebook, "STEP", 4), (notebook["CYCLES"], 1, 3):
        values[name] = new
        assert not kept_over(watched.see_constants, notebook["plan"])


def test_a_choice_goes_by_the_constants_of_its_module(monkeypatch):
    watched.see_constants(KERNELS[18].plan)  # as every call does
    before = k18_past_cublas_bf16.select_config(64, 128, 4096, 132)
    monkeypatch.setattr(k18_past_cublas_bf16, "MIN_K_TILES", 32)
    assert k18_past_cublas_bf16.select_config(64, 128, 4096, 132) != before
