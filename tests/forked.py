"A function in a fork of a long-lived child: everything is imported already, and no change stays behind."
import os
import pickle

from numba_matmul.process import in_child


def _fork(fn, args):
    "In a child: what its fork returns or raises."
    receive, send = os.pipe()
    if not (fork := os.fork()):
        try: answer = True, fn(*args)
        except Exception as error: answer = False, error
        with open(send, "wb") as out: pickle.dump(answer, out)
        os._exit(0)
    os.close(send)
    with open(receive, "rb") as given: answer = given.read()
    os.waitpid(fork, 0)
    returned, value = pickle.loads(answer)
    if not returned: raise value
    return value


def in_fork(fn, *args, timeout=60):
    "`fn(*args)` with the simulator. Raises what it raises."
    return in_child(_fork, fn, args, simulator=True, timeout=timeout, keep=True)
