"""A call that is prepared: without a GPU, with arrays that are only addresses, and a driver that only notes what it
gets. (On a GPU `make gpu STAGE=check` runs the real thing: streams, threads, graphs, new addresses.)"""
import ast
import ctypes
import inspect
from threading import Thread, local
from types import SimpleNamespace

import numpy as np
import pytest

from numba_matmul.process import in_child
from numba_matmul.registry import KERNELS

A, B, C, ROOM = 1 << 20, 2 << 20, 3 << 20, 4 << 20  # addresses


class Matrix:
    "What a plan reads of a device array."
    def __init__(self, address, *shape):
        self.shape, self.dtype, self.size = shape, np.dtype(np.float32), int(np.prod(shape))
        self.nbytes, self.device_ctypes_pointer = 4 * self.size, ctypes.c_void_p(address)
        self.strides = tuple(4 * int(np.prod(shape[i + 1:])) for i in range(len(shape)))
    @property
    def address(self): return self.device_ctypes_pointer.value


class Told(Exception): "A wrong argument."


def prepared_calls():
    """In a child, with the compiler's side of Numba: calls of a prepared function, and what the driver got of each
    (grid, block, shared bytes, stream, number of attributes, the arguments' fields)."""
    import numba_matmul.gemm.launch as launch
    from numba_matmul.gemm.args import calls
    launches, long_way = [], []

    def note(config, function, pointers, _):
        config, count = ctypes.cast(config, ctypes.POINTER(ctypes.c_uint32)), 3 * 9 + 2 + 7 + 1
        stream = ctypes.cast(config, ctypes.POINTER(ctypes.c_uint64))[4]
        fields = ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        launches.append((tuple(config[:3]), tuple(config[3:6]), config[6], stream, config[12], [fields[i][0] for i in range(count)]))
        return 0

    launch._launch, launch.current_gpu = note, lambda: SimpleNamespace(id=0)
    launch.array_like = lambda x, shape: Matrix(5 << 20, *shape)
    launch._Plan.find_room = lambda self, stream: SimpleNamespace(data_ptr=lambda: ROOM + (1 << 16))
    handle = 77

    @launch.prepared
    def fn(a, b, c=None, alpha=1.0, beta=0.0, tile=None):
        if c is None: c = Matrix(C, a.shape[0], b.shape[1])
        (m, k), n = a.shape, b.shape[1]
        for x in a, b:
            if x.address < c.address + c.nbytes and c.address < x.address + x.nbytes: raise Told("overlaps")
        long_way.append((m, n, k, alpha, beta, tile))
        room = Matrix(ROOM, 64)
        g = SimpleNamespace(a=a, b=b, c=c, m=m, n=n, k=k, rooms=[Matrix(9 << 20, 1), room], delegate=None, launches=[])
        calls.made.append(g)
        second_row = Matrix(a.address + a.strides[0], m - 1, k)  # a strip of A
        compiled = SimpleNamespace(_codelibrary=SimpleNamespace(get_cufunc=lambda: SimpleNamespace(handle=handle)))
        given = second_row, b, c, np.int64(-3), np.float32(alpha), room, launch.launch_number
        g.launches.append((compiled, (2, 3, 1), (64, 1, 1), 128, tile == "together", given))
        return c

    a, b, c = Matrix(A, 4, 8), Matrix(B, 8, 2), Matrix(C, 4, 2)
    fn(a, b, c)
    fn(Matrix(A + 4096, 4, 8), Matrix(B + 4096, 8, 2), Matrix(C + 4096, 4, 2))
    fn(a, b, c)
    fn(a, b)
    new = fn(a, b)
    fn(a, b, c, 2)          # another alpha
    fn(a, b, c, 2.0)        # of another type
    fn(Matrix(A + 4, 4, 8), b, c)  # another alignment
    fn(Matrix(A, 5, 8), b, Matrix(C, 5, 2))
    fn(a, b, c, tile="together")
    fn(a, b, c, tile="together")
    fn(a, b, c, tile=[])    # no key
    fn(a, b, c, tile=[])
    launch.forget_plans()
    fn(a, b, c)             # the long way once more
    try: fn(Matrix(C - 64, 4, 8), b, c)
    except Told: refused = True
    else: refused = False
    return launches, long_way, new.address, refused


@pytest.fixture(scope="module")
def found(): return in_child(prepared_calls, simulator=False)


def test_a_call_like_an_earlier_one_does_not_take_the_long_way(found):
    _, long_way, new, refused = found
    same = (4, 2, 8, 1.0, 0.0, None)
    assert long_way == [same, same, (4, 2, 8, 2, 0.0, None), (4, 2, 8, 2.0, 0.0, None), same, (5, 2, 8, 1.0, 0.0, None),
                        (4, 2, 8, 1.0, 0.0, "together"), (4, 2, 8, 1.0, 0.0, []), (4, 2, 8, 1.0, 0.0, []), same]
    assert new == 5 << 20 and refused


def test_a_prepared_launch_has_what_numba_packs_and_the_addresses_of_this_call(found):
    launches = found[0]
    assert len(launches) == 4
    def fields(a, b, c):
        room = ROOM + (1 << 16) + 256  # behind another one
        return [0, 0, 24, 4, a + 32, 3, 8, 32, 4, 0, 0, 16, 4, b, 8, 2, 8, 4, 0, 0, 8, 4, c, 4, 2, 8, 4,
                2**64 - 3, 0x3F800000, 0, 0, 64, 4, room, 64, 4]  # -3 and 1.0, then the room
    first, second, third, fourth = launches
    for got, a, b, c in (first, A + 4096, B + 4096, C + 4096), (second, A, B, C), (third, A, B, 5 << 20), (fourth, A, B, C):
        assert got[:4] == ((2, 3, 1), (64, 1, 1), 128, 0)
        assert got[5][:-1] == fields(a, b, c)
    assert len({got[5][-1] for got in launches}) == 4  # numbers that no other launch has
    assert [got[4] for got in launches] == [0, 0, 0, 1]  # attributes: only blocks that wait for each other have one


def maps_of_calls():
    """In a child: where the tensor maps of prepared launches are, what they say, and what the driver is told of them. It
    refuses threads without a context, and the main thread begins without one. Then the same launch in threads of their own;
    and what is said of another error."""
    from cuda.bindings import driver
    import numba_matmul.gemm.launch as launch
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

    driver.cuTensorMapEncodeTiled, driver.cuKernelGetFunction = map(needs_context, (cuTensorMapEncodeTiled, cuKernelGetFunction))
    launch._launch, launch._move_map, launch.current_gpu = needs_context(note), needs_context(move), lambda: SimpleNamespace(id=3)
    launch.cuda = SimpleNamespace(current_context=lambda number: setattr(in_context, "gpu", number))
    compiled = SimpleNamespace(_codelibrary=SimpleNamespace(get_cufunc=lambda: SimpleNamespace(handle=driver.CUkernel(77))))
    a, b, c = Matrix(A, 4, 8), Matrix(B, 8, 2), Matrix(C, 4, 2)

    def prepare(pieces=None):
        maps = launch.TensorMapWords((a, 1), (b, 2), (c, 3))
        return launch.PreparedLaunch(((A, A + 4096), (B, B + 4096), (C, C + 4096)), compiled, (1, 1, 1), (1, 1, 1), 0, False,
                                     (maps, (a, b), np.uint32(5)), pieces=pieces)
    def in_thread(fn, *arguments):
        thread = Thread(target=fn, args=arguments)
        thread.start(), thread.join()

    for pieces in None, (0, 1, 2, 0, 1):
        one = prepare(pieces)
        one((A, B, C), 0)
        one((A, B + 64, C), 0)
    told, calls = (moved[:], launches[:], made[:3]), len(launches)
    in_thread(prepare)
    in_thread(one, (A, B + 64, C), 0)   # nothing to tell: the launch is the first
    in_thread(one, (A, B + 128, C), 0)  # a map is the first
    assert in_context.gpu == 3
    del in_context.gpu
    function = launch._ask(driver.cuKernelGetFunction, driver.CUkernel(77))
    try: one((0, B, C), 0)
    except RuntimeError as e: error = str(e)
    return *told, len(launches) - calls, moved[len(told[0]):], function, refused, error


def test_tensor_maps_are_parameters_and_only_new_addresses_are_told():
    moved, launches, made, calls, in_threads, function, refused, error = in_child(maps_of_calls, simulator=False)
    assert made == [(A, [8, 4, 16, 64, 1]), (B, [2, 8, 4, 64, 2]), (C, [2, 4, 4, 64, 3])]
    assert moved == 2 * [(0, A), (0, B), (0, C), (0, B + 64)]
    for got, b in zip(launches, 2 * (B, B + 64)):
        words = [[first, *range(100 * rows + 1, 100 * rows + 16)] for first, rows in ((A, 1), (b, 2), (C, 3))]
        assert got[:6] == 6 * [0] and got[6:54] == sum(words, [])
        assert got[54:] == [0, 0, 32, 4, A, 4, 8, 32, 4, 0, 0, 16, 4, b, 8, 2, 8, 4, 5]
    # A thread that hasn't used the GPU gets a context, whatever it asks first, and the driver is asked again.
    assert (calls, in_threads, function) == (2, [(0, B + 128)], 78)
    first = "cuTensorMapEncodeTiled", "cuTensorMapEncodeTiled", "note", "note", "move", "move", "cuKernelGetFunction"
    assert (tuple(refused), error) == (first, "the CUDA driver refuses move: error 1")


def test_every_host_function_is_prepared_and_launches_in_one_way():
    for kernel in KERNELS.values():
        module = inspect.getmodule(kernel.fn)
        tree = ast.parse(inspect.getsource(module))
        host = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == kernel.name)
        assert [ast.unparse(x) for x in host.decorator_list] == ["prepared"], kernel.name
        assert "g.stream]" not in inspect.getsource(module), kernel.name
