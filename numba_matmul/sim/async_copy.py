"""An asynchronous copy lands when a thread waits for it, and not before.

Newer GPUs copy from global to shared memory in the background. Between the start of such a copy and the
wait, the destination holds neither the old data nor the new. So in the simulator a copy *lands at its wait,
not before*: reading earlier is an error, and so is overwriting the source. The three functions are named
after the PTX instructions they simulate.
"""
import sys

from greenlet import getcurrent
from . import memory
from .races import Access
from .scheduler import SimulatorError
from .views import refuse_negative


def cp_async(
    target,        # shared array
    target_index,  # index of the first element to write
    source,        # global array
    source_index,  # index of the first element to read
    count,         # elements along the last axis: 4, 8 or 16 bytes, aligned to that size
    inside=None,   # how many of them are read, the rest are zero-filled; all if None
    frame=None,    # Python frame of the kernel; the caller's if None
):
    "Start copying `count` elements. They land when the running thread waits for their group."
    thread, frame = getcurrent(), frame or sys._getframe(1)
    inside = count if inside is None else int(inside)
    if count * target.dtype.itemsize not in (4, 8, 16):
        raise SimulatorError(f"cp_async copies 4, 8 or 16 bytes, not {count} elements of "
                             f"{target.dtype.itemsize}")
    # the values are read now, and recorded as read again when they land
    refuse_negative(target_index)
    places, *_ = target.run(target_index, count)
    values, sources = [target.dtype.type(0)] * count, [None] * count
    if inside > 0:
        refuse_negative(source_index)
        starts, numbers = source.run(source_index, count)
        source.note_reads(starts[:inside], frame)
        values[:inside] = source.taken(starts[:inside], numbers)
        if source.watch.on:  # unwatched arrays are never written
            sources[:inside] = [(source, start) for start in starts[:inside]]
            for start in starts[:inside]: source.note(start).sent += thread,
        if memory.recorder: memory.recorder("global", "load", source, source_index, inside, frame)
    if memory.recorder:
        came_from = source.byte(source_index) if inside > 0 else None
        memory.recorder("shared", "copy", target, target_index, count, frame, came_from)
    # from here on the target holds neither old nor new data
    access = Access(frame)
    for at, value, origin in zip(places, values, sources):
        element = target.free_for_copy(at, target.notes(at)[0])
        target.note_write(at, access)
        element.copying = thread
        thread.copies[-1].append((target, at, value, origin))

def cp_async_commit_group():
    "Close the running thread's open group of copies."
    getcurrent().copies.append([])

def cp_async_wait_group(
    pending,     # how many of the latest closed groups may still be in flight
    frame=None,  # Python frame of the kernel; the caller's if None
):
    "Land all but the latest `pending` closed groups of the running thread."
    thread, frame = getcurrent(), frame or sys._getframe(1)
    landing = max(0, len(thread.copies) - 1 - pending)  # the last group is still open
    groups, thread.copies = thread.copies[:landing], thread.copies[landing:]
    access = Access(frame)
    for target, at, value, origin in (copy for group in groups for copy in group):
        if origin:  # it was being read until now
            source, start = origin
            element = source.note(start)
            element.sent = tuple(other for other in element.sent if other is not thread)
            element.note_read(access, source, start)
        target.notes(at)[0].copying = None
        target.note_write(at, access)
        target.data[at] = value
