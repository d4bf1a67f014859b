"Arguments and sizes of a launch in the strict simulator, of every type."
from functools import partial

import numpy as np
import pytest
import torch
from numba import cuda
from sim_cases import X, check_errors, last, refused

from numba_matmul.process import ChildError, in_child
from numba_matmul.sim.launch import simulate

# Every scalar type of numpy, and some of Python's
SCALARS = [*{np.dtype(code).type for code in np.typecodes["All"] if code not in "OV"}]
KINDS = *SCALARS, int, float, bool, str, type(None)


@pytest.mark.parametrize("given, told", [(1, "1 was given"), (4, "4 were given")],
                         ids=["too few", "too many"])
def test_a_launch_with_too_many_or_too_few_arguments_is_refused(given, told):
    def launch(given):
        @cuda.jit
        def k(x, out, factor=2.0): out[0] = x[1] * factor
        out = np.zeros(1, np.float32)
        k[1, 1](X, out)
        assert out[0] == 2
        k[1, 1](*[X] * given)
    with pytest.raises(ChildError,
                       match=rf"k takes 3 arguments \(x, out, factor\), but {told}: pass one"):
        in_child(launch, given, simulator=True, keep=True)


@pytest.mark.parametrize("out", [0.0, 0, np.float32(0)], ids=["float", "int", "float32"])
def test_an_atomic_operation_on_a_number_is_refused_in_words(out):
    @cuda.jit
    def k(x, out): cuda.atomic.add(out, 0, x[0])
    refused(k[1, 1], X, out, match=r"cuda.atomic.add got the number 0(.0)? in place of an array.*one element")


def test_a_view_that_a_launch_cannot_copy_is_refused_by_name():
    def launch():
        @cuda.jit
        def k(x, out): out[0] = x[1]
        k[1, 1](X[::2], np.zeros(1, np.float32))
    with pytest.raises(ChildError, match=r"x is a non-contiguous view.*pass to_d\(x\)"):
        in_child(launch, simulator=True, keep=True)


@pytest.mark.parametrize("given", [(), (0.1,)], ids=["a default", "given"])
def test_python_floats_are_float64_as_when_compiled(given):
    @cuda.jit
    def product(out, x=0.1): out[0] = np.float32(1) * x
    assert simulate(product[1, 1], np.zeros(1), *given)[0][0] == 0.1


def three(kind):
    if kind is type(None): return None
    if kind is np.str_: return kind("3")
    return kind(3, "s") if kind in (np.datetime64, np.timedelta64) else kind(3)


def slots(n):
    "A number in each place of a launch's configuration."
    return [(n, 2), ((n, 2), 2), ((2, n), 2), ((1, 1, n), 2), (2, n), (2, (n, 2)), (2, (2, n)),
            (2, (1, 1, n)), (1, 1, 0, n), ([n], [n])]


def test_every_scalar_type_of_numpy_in_every_slot_of_a_launch():
    "Whole numbers of every width work like Python's; anything else is refused before a thread runs."
    def launches():
        @cuda.jit
        def dims(sizes):
            sizes[0] = cuda.gridDim.x * 200 + cuda.blockDim.x * 100
            sizes[1] = cuda.gridDim.y * cuda.blockDim.y
        found = {}
        for kind in KINDS:
            for i, (slot, same) in enumerate(zip(slots(three(kind)), slots(3))):
                sizes, expected = cuda.to_device(np.zeros((2, 2), np.int64))
                try: dims[slot](sizes)
                except Exception as e: found[kind.__name__, i] = type(e).__name__, str(e)
                else:
                    dims[same](expected)
                    found[kind.__name__, i] = sizes.copy_to_host().tolist(), expected.copy_to_host().tolist()
        return found
    found = in_child(launches, simulator=True, keep=True)
    whole = {kind.__name__ for kind in SCALARS if issubclass(kind, np.integer)} - {"timedelta64"} | {"int"}
    assert len(whole) >= 9 and len(found) >= 10 * 26
    for (name, slot), (one, other) in found.items():
        if name in whole: assert one == other and one[0] >= 300, (name, slot, one, other)
        else: assert one == "TypeError" and "expected" in other, (name, slot, one, other)


SIZES = {
    "no block": ((0, 1), "at least 1"), "fewer blocks than none": ((-1, 1), "at least 1"),
    "too many blocks": ((2**31, 1), "at most"), "no row of threads": ((1, (1, 0)), "at least 1"),
    "too many layers": ((1, (1, 1, 65)), "at most"), "less memory than none": ((1, 1, 0, -1), "-1 bytes"),
    "too much memory": ((1, 1, 0, 48 * 1024 + 1), "49153 bytes.* 49152"),
    "far too much memory": ((1, 1, 0, 2**40), "1099511627776 bytes")}


@pytest.mark.parametrize("slot,match", SIZES.values(), ids=SIZES)
def test_sizes_out_of_range_are_refused(slot, match): refused(last[slot], X, match=match)


@pytest.mark.parametrize("slot", [1, (1,), (1, 1, 0, 0, 0), ((1, 1, 1, 1), 1)],
                         ids=["a number", "no block", "five parts", "four dimensions"])
def test_what_is_no_configuration_is_refused(slot):
    with pytest.raises(ValueError): last[slot]


def test_arguments_that_a_gpu_has_no_type_for_are_refused_by_name():
    longer = "float128|longdouble|float64"
    def launches():
        bad = [("object", np.array([1, None])), ("other byte order.*astype", np.zeros(3, ">f4")),
               ("byte order", cuda.to_device(np.zeros(3, ">i4"))), (longer, np.zeros(3, np.longdouble)),
               (longer, np.longdouble(1)), ("64 bits", 2**64), (r"list.*to_d\(x\)", [1.0]), ("str", "text"),
               ("str_", np.str_("text")), ("NoneType", None), ("dict", {}),
               (r" is a torch.Tensor, .*pass to_d\(x\)", torch.zeros(3)),
               (r"torch.Tensor.*to_d\(x\[0\]\)", (torch.zeros(3),))]
        check_errors(*((f"^TypeError: x.*({match})", partial(last[1, 1], x)) for match, x in bad))
    in_child(launches, simulator=True, keep=True)


@cuda.jit
def last_of_both(pair, n): pair[0][int(n)] = pair[1][int(n)]


@cuda.jit
def of_no_dimension(x): x[()] = 5


def test_arguments_that_a_gpu_has_a_type_for_are_accepted():
    def launches():
        good = {kind.__name__: np.zeros(2, kind) for kind in SCALARS
                if np.dtype(kind).kind in "biufc" and kind not in (np.longdouble, np.clongdouble)}
        for x in good.values(): last[1, 1](x)
        pair, zero = (np.zeros(2), cuda.to_device(np.arange(2.0))), np.zeros(())
        last_of_both[1, 1](pair, 1)
        of_no_dimension[1, 1](zero)
        return {name: x[1].item() for name, x in good.items()}, pair[0].tolist(), float(zero)
    good, pair, zero = in_child(launches, simulator=True, keep=True)
    assert good == {name: True if name.startswith("bool") else 3 for name in good}
    assert len(good) >= 13 and pair == [0, 1] and zero == 5
