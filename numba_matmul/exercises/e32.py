"""What `grade("32", my_cut_by_k)` asks of a product that's cut by k between ranks.

`my_cut_by_k` is called once for each rank. The ranks are greenlets of one process: `receive` lets other
ranks run until the message is there, so the judge sees a deadlock at once, and every message, number and
multiply-add can be counted. Ranks start in any order. `send` doesn't copy, as `torch.distributed.isend`
doesn't, so what was sent must stay as it was.
"""
from collections import defaultdict, deque

import numpy as np
from greenlet import getcurrent, greenlet

from ..exercise import Exercise, Mutant
from ..judge import Verdict


class Counted(np.ndarray):
    "A rank's matrix, which counts the multiply-adds of products with it."
    def __array_finalize__(self, other): self.done = getattr(other, "done", None)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        def plain(xs): return tuple(x.view(np.ndarray) if isinstance(x, Counted) else x for x in xs)
        if "out" in options: options["out"] = plain(options["out"])
        inputs = plain(inputs)
        found = getattr(ufunc, method)(*inputs, **options)
        if ufunc is np.matmul: self.done[0] += found.size * inputs[0].shape[-1]
        elif isinstance(found, np.ndarray):
            found = found.view(Counted)
            found.done = self.done
        return found

    def dot(self, other): return self @ other

    def __array_function__(self, function, types, args, options):
        if function is np.dot: return np.matmul(*args)
        return super().__array_function__(function, types, args, options)


class Wrong(Exception):
    "A verdict that fails, and what was found."

def text_of(shape): return "×".join(map(str, shape))

class Network:
    "Ranks that send and receive, one at a time."
    def __init__(self, ranks):
        self.ranks, self.mail, self.waiting = ranks, defaultdict(deque), {}
        self.sent, self.received, self.kept = [0] * ranks, [0] * ranks, []
        self.before_first = [None] * ranks  # multiply-adds before a rank's first message
        self.done = [[0] for _ in range(ranks)]

    def _other(self, rank, other, what):
        if not isinstance(other, (int, np.integer)) or not 0 <= other < self.ranks:
            raise Wrong("messages", f"rank {rank} {what} rank {other!r}, but there are only {self.ranks}")
        if other == rank: raise Wrong("messages", f"rank {rank} {what} itself")

    def send(self, rank):
        def send(x, to):
            self._other(rank, to, "sends to")
            if not isinstance(x, np.ndarray):
                raise Wrong("messages", f"rank {rank} sends a {type(x).__name__}, not an array")
            if self.before_first[rank] is None: self.before_first[rank] = self.done[rank][0]
            self.sent[rank] += x.size
            self.kept.append((rank, to, x, x.copy()))
            self.mail[rank, to].append(self.kept[-1])
        return send

    def receive(self, rank):
        def receive(source):
            self._other(rank, source, "receives from")
            while not self.mail[source, rank]:
                self.waiting[rank] = source
                getcurrent().parent.switch()
            self.waiting.pop(rank, None)
            *_, x = self.mail[source, rank].popleft()
            self.received[rank] += x.size
            return x.copy().view(np.ndarray)
        return receive

    def run(self, fn, a, b, order):
        "What the function returns on each rank."
        found = {}
        def main(rank):
            found[rank] = fn(a[rank], b[rank], rank, self.ranks, self.send(rank), self.receive(rank))
        lines = {rank: greenlet(main) for rank in order}
        while left := [rank for rank in order if rank not in found]:
            before = sum(self.received), len(self.kept), len(found)
            for rank in left: lines[rank].switch(*(() if lines[rank] else (rank,)))
            if before == (sum(self.received), len(self.kept), len(found)):
                waits = ", ".join(f"rank {r} for one from rank {s}" for r, s in sorted(self.waiting.items()))
                raise Wrong("no deadlock", f"no message is on its way, and these ranks wait: {waits}")
        for (source, to), letters in self.mail.items():
            if letters: raise Wrong("messages", f"rank {to} never receives what rank {source} sent to it")
        return [found[rank] for rank in range(self.ranks)]


CASES = (2, 6, 5, 3), (4, 8, 3, 5), (3, 9, 4, 2), (1, 4, 3, 2)  # ranks, m, n, k of a rank

def first_mistake(fn, ranks, m, n, own_k, random):
    "Verdict and text of what's wrong in one case, or None."
    net = Network(ranks)
    whole_a, whole_b = (random.standard_normal(shape).astype(np.float32)
                        for shape in ((m, ranks * own_k), (ranks * own_k, n)))
    a, b = (np.split(whole_a.copy(), ranks, 1), np.split(whole_b.copy(), ranks))
    for parts in a, b:
        for rank in range(ranks):
            parts[rank] = np.ascontiguousarray(parts[rank]).view(Counted)
            parts[rank].done = net.done[rank]
    try: found = net.run(fn, a, b, random.permutation(ranks).tolist())
    except Wrong as e: return e.args
    except Exception as e: return "runs", f"{type(e).__name__}: {e}"
    exact, rows = whole_a.astype(np.float64) @ whole_b, m // ranks
    for rank, c in enumerate(found):
        if getattr(c, "shape", None) != (rows, n):
            given = text_of(c.shape) if isinstance(c, np.ndarray) else type(c).__name__
            return "shape", f"rank {rank} returns {given}, expected its rows of C, {rows}×{n}"
        right = exact[rank * rows:(rank + 1) * rows]
        wrong = ~(abs(c - right) <= 1e-4 * (1 + abs(right)))  # NaN, too
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            return "correct", (f"rank {rank}: {wrong.sum()} of {wrong.size} elements are wrong: first "
                               f"[{i}, {j}] = {c[i, j]:.5g}, expected {right[i, j]:.5g}")
    for source, to, x, copy in net.kept:
        if not np.array_equal(x, copy):
            return "sent unchanged", f"what rank {source} sent to rank {to} was changed after that"
    for name, parts, whole, axis in ("A", a, whole_a, 1), ("B", b, whole_b, 0):
        if not np.array_equal(np.concatenate(parts, axis), whole):
            return "inputs unchanged", f"{name} was changed"
    most = (ranks - 1) * rows * n
    for what, numbers in ("sends", net.sent), ("receives", net.received):
        if max(numbers) > most:
            rank = numbers.index(max(numbers))
            return "moved", f"rank {rank} {what} {numbers[rank]} numbers; {most} are enough"
    share = m * n * own_k
    for rank, (done,) in enumerate(net.done):
        if done != share:
            return "products", f"rank {rank} does {done} multiply-adds by matmul, expected {share}"
        if (first := net.before_first[rank]) is not None and first > share // ranks:
            return "early", (f"rank {rank} has done {first} of its {share} multiply-adds before it sends "
                             f"anything; the first message needs {share // ranks}")


def judge(exercise, fn):
    "The verdicts on `my_cut_by_k`."
    random, names = np.random.default_rng(), []
    for ranks, m, n, own_k in CASES:
        name = f"{m}×{n}×{ranks * own_k} on {ranks} rank" + "s" * (ranks > 1)
        if mistake := first_mistake(fn, ranks, m, n, own_k, random):
            verdict, text = mistake
            yield Verdict(verdict, False, f"{name}: {text}")
        names.append(name)
    yield Verdict("runs", True, "; ".join(names))
    yield Verdict("no deadlock", True, "ranks in any order")
    yield Verdict("messages", True, "each received, once")
    yield Verdict("correct", True, "against float64, random data")
    yield Verdict("sent unchanged", True)
    yield Verdict("moved", True, "(ranks - 1)/ranks of C for each rank, no more")
    yield Verdict("products", True, "each part once")
    yield Verdict("early", True, "the first message leaves after one part")


REFERENCE = """def my_cut_by_k(a, b, rank, ranks, send, receive):
    rows = a.shape[0] // ranks
    def part(owner): return a[owner * rows:(owner + 1) * rows] @ b
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    total = part(before)
    for step in range(1, ranks):
        send(total, after)
        mine = part((before - step) % ranks)
        total = receive(before) + mine
    return total
"""
SOLUTIONS = {"reference": REFERENCE,
             "each part directly to its owner": """def my_cut_by_k(a, b, rank, ranks, send, receive):
    rows = len(a) // ranks
    def part(owner): return np.matmul(a[owner * rows:][:rows], b)
    for i in range(1, ranks):
        owner = (rank + i) % ranks
        send(part(owner), owner)
    total = part(rank)
    for source in range(ranks):
        if source != rank: total = total + receive(source)
    return total
""", "the ring the other way": """def my_cut_by_k(a, b, rank, ranks, send, receive):
    a = a.reshape(ranks, -1, a.shape[1])
    owner, total = rank, 0
    for _ in range(ranks - 1):
        owner = (owner + 1) % ranks
        total = total + a[owner] @ b
        send(total, (rank - 1) % ranks)
        total = receive((rank + 1) % ranks)
    return total + a[rank] @ b
""", "one ring step at a time": """def my_cut_by_k(a, b, rank, ranks, send, receive):
    chunks = np.array_split(a, ranks)
    total = None
    for step in range(ranks):
        if step > 0: send(total, (rank + 1) % ranks)
        c = chunks[rank - 1 - step].dot(b)
        if step > 0: c += receive(rank - 1 if rank else ranks - 1)
        total = c
    return total
"""}
DIRECT, OTHER = "each part directly to its owner", "the ring the other way"

MUTANTS = (
    Mutant("not written", "total = receive(before) + mine", "...", "written"),
    Mutant("waits before it sends",
           "        send(total, after)\n        mine = part((before - step) % ranks)\n"
           "        total = receive(before) + mine\n",
           "        arrived = receive(before)\n        send(total, after)\n"
           "        total = arrived + part((before - step) % ranks)\n", "no deadlock"),
    Mutant("sends to where it receives from", "send(total, after)", "send(total, before)", "no deadlock"),
    Mutant("receives from where it sends to", "receive(before)", "receive(after)", "no deadlock"),
    Mutant("starts with its own rows", "total = part(before)", "total = part(rank)", "correct"),
    Mutant("starts with the next rank's rows", "total = part(before)", "total = part(after)", "correct"),
    Mutant("the other way around the ring", "(before - step) % ranks", "(before + step) % ranks", "correct"),
    Mutant("the same rows in each step", "(before - step) % ranks", "before", "correct"),
    Mutant("steps counted from the own rank", "(before - step) % ranks", "(rank - step) % ranks", "correct"),
    Mutant("its own part forgotten", "receive(before) + mine", "receive(before)", "correct"),
    Mutant("what arrives is forgotten", "total = receive(before) + mine",
           "receive(before)\n        total = mine", "correct"),
    Mutant("added to what was sent", "receive(before) + mine", "total + receive(before) + mine", "correct"),
    Mutant("only its own part is sent on", "total = receive(before) + mine",
           "arrived = receive(before)\n        total = mine if step < ranks - 1 else arrived + mine",
           "correct"),
    Mutant("a step too few", "range(1, ranks)", "range(2, ranks)", "correct"),
    Mutant("a step too many", "range(1, ranks)", "range(ranks)", "correct"),
    Mutant("no ring: the last rank has no next one", "(rank + 1) % ranks,", "rank + 1,", "messages"),
    Mutant("sends to itself", "send(total, after)", "send(total, rank)", "messages"),
    Mutant("sent again at the end", "    return total",
           "    if ranks > 1: send(total, after)\n    return total", "messages"),
    Mutant("sends the list of a total", "send(total, after)", "send(total.tolist(), after)", "messages"),
    Mutant("returns all rows", "    return total", "    return np.concatenate([total] * ranks)", "shape"),
    Mutant("returns nothing", "    return total", "    total", "shape"),
    Mutant("columns instead of rows", "a[owner * rows:(owner + 1) * rows]",
           "a[:, owner * rows:(owner + 1) * rows]", "runs"),
    Mutant("rows of all of A", "a.shape[0] // ranks", "a.shape[0]", "shape"),
    Mutant("a row too many", "(owner + 1) * rows]", "(owner + 1) * rows + 1]", "shape"),
    Mutant("added where it was sent from", "        mine = part((before - step) % ranks)\n"
           "        total = receive(before) + mine",
           "        sent, total = total, part((before - step) % ranks)\n        total += receive(before)\n"
           "        sent[:] = 0", "sent unchanged"),
    Mutant("the whole product first", "def part(owner): return a[owner * rows:(owner + 1) * rows] @ b",
           "c = a @ b\n    def part(owner): return c[owner * rows:(owner + 1) * rows]", "early"),
    Mutant("the whole product in each step", "return a[owner * rows:(owner + 1) * rows] @ b",
           "return (a @ b)[owner * rows:(owner + 1) * rows]", "products"),
    Mutant("a part computed twice", "total = part(before)", "part(rank)\n    total = part(before)",
           "products"),
    Mutant("by another product", "a[owner * rows:(owner + 1) * rows] @ b",
           "a.view(np.ndarray)[owner * rows:(owner + 1) * rows] @ b.view(np.ndarray)", "products"),
    Mutant("all-reduce: everybody gets all", "return a[owner * rows:(owner + 1) * rows] @ b",
           "return a[owner * rows:(owner + 1) * rows] @ b\n    if ranks > 2:\n        c = a @ b\n"
           "        for other in range(ranks):\n            if other != rank: send(c, other)\n"
           "        for other in range(ranks):\n            if other != rank: c = c + receive(other)\n"
           "        return c[rank * rows:(rank + 1) * rows]", "moved"),
    Mutant("two arrays in a message", "send(total, after)", "send(np.stack([total, total]), after)", "shape"),
    Mutant("A scaled where it is", "    rows = a", "    a *= 2\n    rows = a", "correct"),
    Mutant("B scaled where it is", "    return total", "    b *= 2\n    return total", "inputs unchanged"),
    Mutant("its own part first", "        owner = (rank + i) % ranks\n        send(part(owner), owner)\n"
           "    total = part(rank)\n",
           "        owner = (rank + i) % ranks\n        if i == 1: mine = part(rank)\n"
           "        send(part(owner), owner)\n    total = mine if ranks > 1 else part(rank)\n", "early",
           DIRECT),
    Mutant("receives from itself", "        if source != rank: total", "        total", "messages", DIRECT),
    Mutant("all parts to the next rank", "send(part(owner), owner)", "send(part(owner), (rank + 1) % ranks)",
           "no deadlock", DIRECT),
    Mutant("its own rows twice", "owner, total = rank, 0", "owner, total = rank - 1, 0", "correct", OTHER))


EXERCISES = (Exercise(
    "32", "my_cut_by_k", judge=judge,
    hints={
        "runs": (
            "a is m×(k/ranks), b is (k/ranks)×n, and a part is rows of a times all of b: which of your lines "
            "fails?"),
        "no deadlock": (
            "every rank waits for a message that nobody has sent: send first, and receive from the rank that "
            "sends to you"),
        "messages: itself": "a rank keeps what it has: messages go to others",
        "messages: never receives": "what one rank sends, another must receive: ranks - 1 messages each",
        "messages: there are only": "after the last rank comes rank 0: (rank + 1) % ranks",
        "messages": "send takes an array and a rank from 0 to ranks - 1, receive a rank",
        "shape": "each rank returns its own rows of C: m/ranks of them, and all columns",
        "correct": (
            "whose rows does each arriving sum belong to? The rank before worked on it one step ago. "
            "Draw three ranks; after the last step, the sum belongs to this rank"),
        "sent unchanged": (
            "send doesn't copy, so the message may still be on its way: put the next sum into another array"),
        "inputs unchanged": "an operation such as *= writes into the matrix itself",
        "moved": (
            "a rank needs only its own rows of the sum: nobody needs all of C"),
        "products": "each part is rows of a, times b, computed once, with @",
        "early": (
            "others wait for the first message: compute only the rows it needs, and your own rows last")},
    solutions=SOLUTIONS, mutants=MUTANTS),)
