"""The host's side of numba.cuda in the strict simulator: device arrays, streams, events, and the names that
it lacks."""
import json
import subprocess
import sys
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import environment
from numba import cuda, vectorize
from sim_cases import X, check_errors, error_of, last

from numba_matmul.process import in_child


def test_what_nobody_wrote_shows():
    def look():
        like, columns = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32, order="F")
        by_columns = cuda.device_array_like(columns)
        made = [cuda.device_array(3), cuda.device_array((2, 3), np.float16), cuda.device_array(()),
                cuda.device_array(3, np.complex64, strides=(16,)), cuda.device_array_like(like), by_columns,
                cuda.pinned_array(3), cuda.pinned_array_like(columns), cuda.mapped_array(3),
                cuda.mapped_array_like(like), cuda.managed_array((3, 1), np.float32)]
        whole = cuda.device_array((2, 2), np.int32), cuda.device_array(np.int64(2), np.uint8)
        assert all(np.isnan(np.asarray(x)).all() for x in made) and by_columns.is_f_contiguous()
        return [np.asarray(x).ravel().tolist() for x in whole]
    assert in_child(look, simulator=True, keep=True) == [[-1] * 4, [255] * 2]


def test_a_device_array_does_what_a_gpus_does():
    """Whatever the real one lacks is refused, whatever it copies is a copy, and whatever numpy would
    silently copy is refused."""
    def look():
        d = cuda.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
        other, transposed = cuda.to_device(np.ones((3, 4), np.float32)), d.T
        transposed[0, 0] = 99
        on_host = np.asarray(d)
        on_host[0, 1] = 99
        check_errors(
            (r"support \+.*to_h", lambda: d + d), ("support <", lambda: d < 1),
            (r"to_h\(x\).sum", lambda: d.sum()), ("to_h", lambda: d.fill(0)),
            ("integers and slices", lambda: d[d.copy_to_host() > 1]),
            ("integers and slices", lambda: d[[0, 1]]), ("integers and slices", lambda: d[None]),
            ("requires copying", lambda: d[:, 1:].ravel()), ("requires copying", lambda: d[:, 1:].reshape(9)),
            ("negative strides", lambda: d[::-1].copy_to_host()),
            ("simulator doesn't support gpu_data", lambda: d.gpu_data),
            ("did you mean shape", lambda: d.shap), ("to_d", lambda: cuda.as_cuda_array(np.zeros(2))))
        return (d.copy_to_host().tolist(), transposed.shape, transposed.is_c_contiguous(), d == other, d == d,
                d in {d}, d.nbytes, d.reshape(4, -1).shape, d[1, 1],
                cuda.to_device(np.zeros((3, 4), np.float32), to=d) is d, d[:, 1].copy_to_host().tolist(),
                cuda.as_cuda_array(d) is d)
    values, *rest = in_child(look, simulator=True, keep=True)
    assert values == np.arange(12).reshape(3, 4).tolist()
    assert rest == [(4, 3), True, False, True, True, 48, (4, 3), 5, True, [0, 0, 0], True]


REAL_NAMES = """
import json
from numba import cuda
from numba.cuda.cudadrv import devicearray, driver
@cuda.jit
def k(x): pass
there = cuda, k, devicearray.DeviceNDArray, driver.Stream, driver.Event, driver.Device
print(json.dumps([[name for name in dir(x) if name[0] != "_"] for x in there]))
"""


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")
def test_every_public_name_of_numba_cuda_is_there_or_is_told_apart():
    "A kernel-only name, one the simulator lacks, a typo: each gets its own answer."
    done = subprocess.run([sys.executable, "-c", REAL_NAMES],
                          env=environment() | {"NUMBA_ENABLE_CUDASIM": "0"}, capture_output=True, text=True)
    names, of_kernel, of_array, *others = json.loads(done.stdout)
    def look():
        from numba_matmul.sim.cuda_module import StrictModule
        def told(x, names):
            said = {name: error_of(getattr, x, name) or "" for name in names}
            return {name: text or "None" * (getattr(x, name) is None) for name, text in said.items()}
        @cuda.jit
        def k(x): pass
        objects = cuda.stream(), cuda.event(), cuda.get_current_device()
        return (told(cuda, names), {*dir(StrictModule((1, 1, 1), (1, 1, 1)))}, told(k, of_kernel),
                told(cuda.to_device(np.zeros((2, 2))), of_array),
                [told(x, some) for x, some in zip(objects, others)],
                told(cuda,
                     ("syncronize", "to_devise", "devicearray", "threadidx", "jti", "qqqqq", "shfl_snyc")))
    answers, inside, kernel, array, rest, typos = in_child(look, simulator=True, keep=True)
    def there(answers): return {name for name, text in answers.items() if not text}
    def lacks(text):
        return any(x in text for x in ("simulator doesn't", "can't link"))
    assert {"event_elapsed_time", "profile_start", "profiling", "as_cuda_array", "is_cuda_array", "mapped",
            "managed_array", "reduce", "default_stream", "select_device", "detect",
            "synchronize"} <= there(answers)
    for name in answers.keys() - there(answers) - {"alias", "fp16", "bf16"}:
        in_kernel = "only inside a running kernel" in answers[name]
        assert in_kernel != lacks(answers[name]), (name, answers[name])
        assert in_kernel or name not in inside, name
    for name, text in (*kernel.items(), *array.items()): assert not text or lacks(text), (name, text)
    assert {"forall", "configure", "specialize", "overloads", "py_func"} & kernel.keys() <= there(kernel)
    assert [name for some in rest for name in some.keys() - there(some)] in ([], ["from_identity"])
    for name, match in dict(syncronize="did you mean cuda.synchronize?", to_devise="cuda.to_device",
                            threadidx="cuda.threadIdx", shfl_snyc="cuda.shfl_sync").items():
        assert match in typos[name]
    assert typos["qqqqq"] == "AttributeError: numba.cuda doesn't have qqqqq"


def test_the_hosts_side_answers_as_a_gpus_does():
    def look():
        device, stream, seen = cuda.get_current_device(), cuda.stream(), []
        start, end = cuda.event(), cuda.event(timing=True)
        for event in start, end: event.record(stream)
        stream.add_callback(lambda s, status, arg: seen.append((s is stream, status, arg)), 7)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ms = cuda.event_elapsed_time(start, end), start.elapsed_time(end)
        assert min(ms) >= 0 and len(told) == 2 and "nothing about a GPU" in str(told[0].message)
        with stream.auto_synchronize() as same, cuda.profiling(), cuda.defer_cleanup(), cuda.pinned(X): pass
        check_errors(
            ("record", lambda: cuda.event_elapsed_time(cuda.event(), end)),
            ("no device 1", lambda: cuda.select_device(1)), ("WARP_SIZE", lambda: device.WARP_SIZ),
            ("vectorize", lambda: vectorize(["float32(float32)"], target="cuda")(lambda x: x)),
            ("machine_code", lambda: cuda.compile_ptx(last, ())),
            (r"machine_code\(last", lambda: last.inspect_asm()),
            ("get_memory_info", lambda: cuda.current_context().get_memory_inf))
        return (device.WARP_SIZE, device.MULTIPROCESSOR_COUNT, device.compute_capability,
                cuda.gpus[0].name == device.name, cuda.select_device(0) is device, same is stream, seen)
    found = in_child(look, simulator=True, keep=True)
    assert found == (32, 132, (9, 0), True, True, True, [(True, 0, 7)])


def test_the_hosts_side_computes_as_a_gpus_does():
    "forall, mapped arrays and reduce."
    def look():
        out, wide = np.zeros(5), np.zeros(300)
        @cuda.jit
        def every(x):
            i = cuda.grid(1)
            if i < x.size: x[i] += 1
        every.forall(5)(out)
        every.forall(300, tpb=64)(wide)
        every.forall(0)(out)
        with cuda.mapped(out) as on_device: every[1, 5](on_device)
        shared = cuda.mapped_array(2)
        shared[:] = 0
        every[1, 2](shared)
        total, result = cuda.reduce(lambda a, b: a + b), cuda.to_device(np.zeros(1))
        return (out.tolist(), wide.sum(), shared.tolist(), total(np.arange(10.0)), total(X, size=3, init=1),
                total(X, res=result), result[0])
    assert in_child(look, simulator=True, keep=True) == ([2] * 5, 300, [1, 1], 45, 4, None, X.sum())
