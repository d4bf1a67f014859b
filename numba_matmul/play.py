"""Watch a kernel: which elements each warp of a block touches, step by step, in a player on the page.

The strict simulator runs the launch once to find the first mistake, and then one block alone, noting each
access. What all threads do at the same place in the code between the same two barriers is one *step*. A GPU
may run warps in any other order between barriers. That's what a race is.
"""
import inspect
import re
from collections import Counter, defaultdict
from contextlib import redirect_stdout
from copy import deepcopy
from math import prod
from unittest.mock import patch

import numpy as np
from greenlet import getcurrent
from .draw import color_of
from .microscope import _served, sectors, wavefronts
from .process import in_child, kernel_parts
from .sim import memory, races
from .sim.launch import as_written, check_launch
from .sim.places import instruction, position
from .sim.scheduler import Again, Block, SimulatorError, Thread, _located
from .widgets import Widget, widget

MOST_ACCESSES = 150_000  # recorded in a block, shared equally among its threads
MOST_BYTES = 300_000     # of a player
ROW = 32  # elements of an array with one axis that are drawn in a row


# The first run: what goes wrong first, and where?

def _line(code, frame):
    "The kernel's own line that a frame executes, perhaps by calling another function; `None` if none does."
    while frame and (frame.f_code.co_filename, frame.f_code.co_firstlineno) != code: frame = frame.f_back
    return frame and frame.f_lineno

def _code_of(launch): return launch.fn.__code__.co_filename, launch.fn.__code__.co_firstlineno

def _failing_line(code, error):
    "The kernel's own line in an error's traceback."
    found, at = None, error.__traceback__ if error else None
    while at:
        if (at.tb_frame.f_code.co_filename, at.tb_frame.f_code.co_firstlineno) == code: found = at.tb_lineno
        at = at.tb_next
    return found

def _noting_errors(code, note):
    """`Block._resume` that calls `note(thread, error, line)` where a thread fails. The error is raised on
    unless the note returns true."""
    def resume(block, thread):
        thread.paused = False
        try: thread.switch()
        except Again: raise
        except Exception as e:
            located = _located(e, thread)
            if not note(thread, located, _failing_line(code, e)): raise located from None
    return resume

def first_mistake(launch, args):
    "In a child: the first mistake of a launch: its text, the block, and each access that it's about."
    found, code, report = [], _code_of(launch), races._report
    def access(one): return dict(thread=one.thread.linear, phase=one.barriers, line=one.place[0][1])
    def note_race(array, index, before, done, now, doing, same=False):
        if not same:
            both = [before] * (before.thread.block is now.thread.block) + [now]
            found.append(dict(block=now.thread.block.index, array=array.name,
                              accesses=[access(one) for one in both]))
        report(array, index, before, done, now, doing, same)
    def note_error(thread, error, line):
        if str(error):
            found.append(dict(block=thread.block.index, array=error.data.get("array"),
                              accesses=[dict(thread=thread.linear, phase=thread.barriers, line=line)]))
    run = Block.run
    def note_block(block):
        try: run(block)
        except SimulatorError:
            if not found: found.append(dict(block=block.index, array=None, accesses=[]))
            raise
    with patch.object(races, "_report", note_race), patch.object(Block, "run", note_block), \
            patch.object(Block, "_resume", _noting_errors(code, note_error)), redirect_stdout(None):
        try: launch(*args)
        except SimulatorError as e:
            text = str(e).splitlines()[0]
            first = found[0] if found else dict(block=None, array=None, accesses=[])
            where = re.match(r"(?:race: )?([\w ]+)\[([\d, ]+)\]", text)
            place = [int(i) for i in where[2].split(",")] if where else None
            return first | dict(text=text, block=first["block"] and tuple(first["block"]), index=place,
                                array=where[1] if where else first["array"])


# The second run: one block, access by access

class _Recorder:
    "What each thread of a block does, in order."
    def __init__(self, code, most):
        self.code, self.most = code, most  # most accesses of a thread
        self.block, self.cut = None, False
        self.kept = {}
    def begin(self, block):
        self.block, self.events = block, defaultdict(list)
        self.memories, self.threads = block.memories, len(block.threads)  # it forgets them when it ends
        self.places, self.arrays, self.barriers, self.printed, self.stored = {}, {}, {}, [], None

    def mine(self):
        "The events of the running thread. Another block means that the launch starts over."
        thread = getcurrent()
        if thread.block is not self.block: self.begin(thread.block)
        self.settle()
        return thread, self.events[thread.linear]

    def settle(self):
        "The values that the last store left: only now has it happened."
        if not self.stored: return
        (array, index, count), event = self.stored
        event[-1] = [array.data[i] for i in memory.neighbours(array, index, count)[0]]
        self.stored = None

    def place(self, *key):
        "The number of a place in the code."
        return self.places.setdefault(key, len(self.places))

    def __call__(self, space, operation, array, index, count, frame, source=None):
        thread, mine = self.mine()
        if len(mine) >= self.most:
            self.cut = True
            return
        key = id(array), thread.rank
        if key not in self.arrays: self.arrays[key] = array  # kept, so that no other gets its id
        place = self.place(_line(self.code, frame), frame.f_code, instruction(frame), space, operation,
                           array.name, array.data.dtype.itemsize, count)
        number = (array.byte(index) if space == "global" else array.byte(index) - array.base)
        values = None
        if operation == "copy":  # it lands later, with what was read just before
            values = self.loaded if source is not None else [array.dtype.type(0)] * count
            values = [*values, *[array.dtype.type(0)] * (count - len(values))]
        elif operation == "load" and space == "global":
            self.loaded = [array.data[i] for i in memory.neighbours(array, index, count)[0]]
        mine.append([thread.barriers, place, number, array.byte(index), source, values])
        if operation == "store": self.stored = (array, index, count), mine[-1]

    def fail(self, thread, error, line):
        "A thread ends with an error; the others go on to the next barrier."
        self.settle()
        if str(error):
            place = self.place(line, None, 0, "", "fails", "", 0, 0)
            self.events[thread.linear].append([thread.barriers, place, 0, 0, None, None])
        return True

    def pause(self, thread, frame):
        self.mine()
        self.barriers[thread.barriers] = _line(self.code, frame)

    def write(self, text):
        "What a thread prints."
        if not isinstance(getcurrent(), Thread): return
        thread, mine = self.mine()
        last = self.printed[-1] if self.printed else None
        if last and last[0] == thread.linear and not last[-1].endswith("\n"): last[-1] += text
        else: self.printed.append([thread.linear, len(mine), text])
    def flush(self): pass


def _merged(sequences):
    "One sequence that has the elements of all, each in its order as far as possible."
    merged, at = [], {}
    for sequence in dict.fromkeys(sequences):
        cursor = -1
        for key in sequence:
            if key not in at:
                merged.insert(cursor + 1, key)
                at = {key: i for i, key in enumerate(merged)}
            cursor = max(cursor, at[key])
    return merged

def _plain(value):
    "A number as JSON has it, with four digits."
    if isinstance(value, (np.void, complex, np.complexfloating)): return str(value)
    if isinstance(value, (int, np.integer, np.bool_)): return int(value)
    value = float(f"{float(value):.4g}")
    if not np.isfinite(value): return str(value)
    return int(value) if value == int(value) and abs(value) < 1e15 else value

def _ranges(numbers):
    "Ascending numbers as [first, count, …]."
    found = []
    for number in numbers:
        if found and number == found[-2] + found[-1]: found[-1] += 1
        else: found += [number, 1]
    return found


def _steps(recorder):
    "The steps of a block, and (thread, number of its event) → step."
    order, phases = [], {}
    keyed, step_of = {}, {}
    for thread, events in recorder.events.items():
        counts, sequence = Counter(), defaultdict(list)
        for n, (phase, place, *_) in enumerate(events):
            key = phase, place, counts[phase, place]
            counts[phase, place] += 1
            sequence[phase].append(key)
            keyed[thread, n] = key
        for phase, keys in sequence.items(): phases.setdefault(phase, []).append(tuple(keys))
    for phase in sorted(phases): order += _merged(phases[phase])
    number = {key: i for i, key in enumerate(order)}
    step_of = {where: number[key] for where, key in keyed.items()}
    lanes = [{} for _ in order]
    for thread in sorted(recorder.events):
        for n, event in enumerate(recorder.events[thread]): lanes[step_of[thread, n]][thread] = event
    return order, lanes, step_of

def _costs(lanes, space, operation, size):
    "Sectors or wavefronts of each warp that takes part."
    warps = defaultdict(dict)
    for thread, (*_, byte, source, _) in lanes.items(): warps[thread // 32][thread % 32] = byte, None, source
    found = []
    for sample in warps.values():
        starts = {lane: byte for lane, (byte, *_) in sample.items()}
        if size > 16: found.append(0)  # an element with fields
        elif space == "global": found.append(sectors(starts.values(), size))
        elif operation == "copy": found.append(len(_served(sample, operation, size)))
        else: found.append(wavefronts(starts, size))
    return found


def record(launch, args, block, columns, most):
    "In a child: what a block does, as the player reads it; `None` if it does nothing."
    code, first = _code_of(launch), dict(zip(launch.fn.__code__.co_varnames, deepcopy(args)))
    recorder = _Recorder(code, max(50, most // prod(launch.block_dim)))
    pause = Thread.pause
    def paused(thread, frame):
        recorder.pause(thread, frame)
        return pause(thread, frame)
    memory.recorder, launch.blocks = recorder, [block]
    with patch.object(Thread, "pause", paused), redirect_stdout(recorder), \
            patch.object(Block, "_resume", _noting_errors(code, recorder.fail)):
        try: launch(*args)
        except SimulatorError: pass  # the first run knows it
        finally: memory.recorder = None
    if not recorder.block or not (any(recorder.events.values()) or recorder.printed): return None
    recorder.settle()
    return _told(recorder, launch, first, columns)

def _told(recorder, launch, first, columns):
    "A recorded block as the player reads it."
    order, lanes, step_of = _steps(recorder)
    places, names = [*recorder.places], {}
    whole = {(a.name, a.data.dtype.itemsize): a for a in
             [*launch.arrays, *(x for m in recorder.memories for x in m.arrays.values())]}
    steps = []
    for (phase, place, _), by_thread in zip(order, lanes):
        line, _, _, space, operation, name, size, count = places[place]
        threads = [*by_thread]
        if operation == "fails":
            steps.append([phase, line, -1, operation, 0, _ranges(threads), [], 0, []])
            continue
        array, numbers = whole.get((name, size)), [event[2] for event in by_thread.values()]
        if space == "global" and array is not None: numbers = _places(array, numbers)
        else: numbers = [number // size for number in numbers]
        values = [[*map(_plain, event[-1])] for event in by_thread.values()] if operation != "load" else 0
        if values and count == 1: values = [value for value, in values]
        names.setdefault((name, size, space), set()).update(
            n + i for n in numbers for i in range(count))
        steps.append([phase, line, [*names].index((name, size, space)), operation, count, _ranges(threads),
                      [numbers[0], *map(int, np.diff(numbers))], values,
                      _costs(by_thread, space, operation, size * count)])
    arrays = [_array(name, space, whole.get((name, size)), touched, first.get(name), columns.get(name))
              for (name, size, space), touched in names.items()]
    lines, start = inspect.getsourcelines(launch.fn)
    printed = [[step_of.get((thread, at), len(steps) - 1), thread, text.rstrip("\n")]
               for thread, at, text in recorder.printed]
    return dict(name=launch.__name__, grid=as_written(launch.grid_dim), block=as_written(launch.block_dim),
                index=position(recorder.block.index, launch.grid_dim), dims=list(launch.block_dim),
                threads=recorder.threads, lines=[line.rstrip("\n") for line in lines],
                first=max(1, start), arrays=arrays, steps=steps, printed=printed, cut=recorder.cut,
                barriers=[recorder.barriers.get(i) for i in range(max(recorder.barriers, default=-1) + 1)])

def _places(array, numbers):
    "Bytes of a global array as row-major numbers of its elements."
    if array.data.flags.c_contiguous:
        return [(number - array.base) // array.data.dtype.itemsize for number in numbers]
    offsets = array.base + np.tensordot(array.strides, np.indices(array.shape), 1).ravel()
    at = {offset: i for i, offset in enumerate(offsets.tolist())}
    return [at[number] for number in numbers]

def _array(name, space, array, touched, before, columns):
    "An array as the player draws it: the rows and columns that are touched, and what they held."
    shape = tuple(map(int, array.shape)) if array is not None else (max(touched) + 1,)
    across = columns or (shape[-1] if len(shape) > 1 else min(ROW, prod(shape)))
    rows, cols = ({t // across for t in touched}, {t % across for t in touched})
    top, left, height, width = min(rows), min(cols), max(rows) + 1, max(cols) + 1
    if prod(shape) <= 4096: top, left, height, width = 0, 0, -(-prod(shape) // across), across  # all of it
    values = None
    if before is not None and np.ndim(before):
        held = np.asarray(before).ravel()
        values = [_plain(held[i]) if i < held.size else None
                  for row in range(top, height) for i in range(row * across + left, row * across + width)]
    return dict(name=name, space=space, shape=shape, across=across, top=top, left=left, rows=height - top,
                cols=width - left, values=values, color=color_of(name))


# The player

def _marked(told, mistake):
    "The mistake as the player shows it: its text, its steps, its element."
    if not mistake: return None
    at = None
    for i, array in enumerate(told["arrays"]):
        index, shape = mistake["index"], array["shape"]
        if array["name"] != mistake["array"] or not index or len(index) != len(shape): continue
        if all(0 <= j < n for j, n in zip(index, shape)): at = i, int(np.ravel_multi_index(index, shape))
    def takes_part(step, access):
        phase, line, array, operation, count, threads, deltas, *_ = step
        if (phase, line) != (access["phase"], access["line"]): return False
        every = [first + i for first, n in zip(threads[::2], threads[1::2]) for i in range(n)]
        if access["thread"] not in every or operation == "fails": return access["thread"] in every
        place = np.cumsum(deltas)[every.index(access["thread"])]
        return at is not None and array == at[0] and place <= at[1] < place + count
    steps = [[i for i, step in enumerate(told["steps"]) if takes_part(step, access)]
             for access in mistake["accesses"]]
    return dict(text=mistake["text"], steps=sorted({i for found in steps for i in found[-1:]}), at=at)

def play(
    launch,        # kernel[grid, block]
    *args,         # its arguments
    block=None,    # the block to watch; the one with the first mistake if None, or the first
    columns=None,  # name of an array with one axis → how many of its elements to draw in a row
    timeout=60,    # seconds
) -> Widget:
    """Watch a block of a kernel, step by step, in the strict simulator: a player in the page. `ValueError` if
    the block does nothing. The TMA and tensor cores aren't shown, only what threads load and store."""
    launch, given = check_launch(launch, args)
    ask = dict(simulator=True, timeout=timeout, keep=True)
    mistake = in_child(first_mistake, launch, given, **ask)
    if mistake and mistake["block"] is None: raise SimulatorError(mistake["text"])  # it doesn't even start
    if block is None: block = (mistake and mistake["block"]) or (0, 0, 0)
    block = (*map(int, np.atleast_1d(block)), 0, 0)[:3]
    fn, _, (grid, *_) = kernel_parts(launch)
    blocks = (*map(int, np.atleast_1d(grid)), 1, 1)[:3]
    if not all(0 <= i < count for i, count in zip(block, blocks)):
        raise ValueError(f"there is no block {block}: {fn.__name__} is launched with {blocks} blocks")
    if mistake and mistake["block"] not in (None, block): mistake = dict(mistake, accesses=[], index=None)
    told = in_child(record, launch, given, block, columns or {}, MOST_ACCESSES, **ask)
    if not told:
        raise ValueError(f"nothing to play: block {block} of {fn.__name__} touches no array and "
                         "prints nothing")
    told["mistake"] = _marked(told, mistake)
    title = f"{told['name']}[{told['grid']}, {told['block']}], block {told['index']}, step by step"
    every = told["steps"]
    made = widget("play", title, told)
    while len(made) > MOST_BYTES and len(told["steps"]) > 10:  # the beginning is what fits
        shorter = int(len(told["steps"]) * min(0.9, MOST_BYTES / len(made)))
        told |= dict(steps=every[:shorter], cut=True)
        made = widget("play", title, told)
    return made
