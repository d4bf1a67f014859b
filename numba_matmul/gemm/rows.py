"""A product with few rows: one pass over B.

With few rows of A, every element of B is multiplied only a few times, so the time is what it takes to read
B. A tile in shared memory would only delay it. Each thread reads four columns of B, several rows ahead, and
multiplies them by all rows of A, which are in shared memory. Teams of threads, and blocks, share the sums:
each takes other rows of B.
"""
from functools import cache
from typing import NamedTuple

import numpy as np

from ..ptx.ampere import cp_async_at, cp_async_commit_group, cp_async_wait_group
from ..ptx.core import add_part, global_address, load4, load_fours_at, shared_address, store_fours
from ..static import static, unrolled
from .shared_sums import part_of, sums_writer
from .tiles import Tile
from numba import cuda, float32, int64, uint32, uint64

class RowTile(NamedTuple):
    """What a block computes if C has few rows. Its threads are divided into teams of `lanes`, side by side;
    each team takes other rows of B."""
    bm: int             # rows of C
    lanes: int = 32     # of a team: each has four columns
    threads: int = 128  # of the block
    ahead: int = 8      # rows of B that a thread reads before it multiplies them
    chunk: int = 4      # as often, a team does that with one chunk of A

    @property
    def bn(self): return 4 * self.lanes

    @property
    def teams(self): return self.threads // self.lanes

    @property
    def bk(self): return self.teams * self.ahead * self.chunk

    @property
    def pitch(self):
        "Words from one column of A's chunk to the next: few bank conflicts for the copies."
        return self.bm + (4 if self.bm % 8 == 0 else 0)

    @property
    def results(self): return 4 * self.bm

    @property
    def shared_bytes(self):
        "Two chunks of A; in the end, the sums of all teams."
        return 4 * max(2 * self.bk * self.pitch, self.threads * self.results)

    @property
    def launch_bounds(self):
        registers = 128 if self.bm <= 8 else 168
        return self.threads, 65536 // (registers * self.threads)

    fits = Tile.fits

ROW_RULES = {
    "bm must be a multiple of 4": lambda t: t.bm % 4 == 0,
    "lanes is 8, 16 or 32": lambda t: t.lanes in (8, 16, 32),
    "threads must be whole warps": lambda t: t.threads % 32 == 0,
    "the threads must copy whole rows of a chunk of A":
        lambda t: t.threads % t.bk == 0 == t.bm % (t.threads // t.bk),
    "the sums must fit into 48 KB of shared memory": lambda t: t.shared_bytes <= 48 * 1024,
}


@cache
def rows_of_b(
    tile,      # a `RowTile`
    width,     # floats per access: 4, or 1 where rows aren't aligned
    predicated,  # may n or k not be multiples of the tile?
):
    """Two device functions: four elements of `ahead` rows of B, as a tuple; and of fewer rows, with zeros for
    the others. (What they read instead of elements outside is somewhere inside.)"""
    ahead, lanes = tile.ahead, tile.lanes

    @cuda.jit(device=True)
    @unrolled
    def whole_rows(b, n, start, col):
        found = ()
        for i in static(ahead):
            at = start + i * n
            if width == 4: found = found + load4(b, uint64(at + col))
            else:
                for j in static(4):
                    here = min(col + lanes * j, n - 1) if predicated else col + lanes * j
                    found = found + (b[uint64(at + here)],)
        return found

    @cuda.jit(device=True)
    @unrolled
    def last_rows(b, n, rows, start, col):
        found = ()
        for i in static(ahead):
            at = start + min(i, rows - 1) * n
            if width == 4: some = load4(b, uint64(at + col))
            else:
                some = ()
                for j in static(4): some = some + (b[uint64(at + min(col + lanes * j, n - 1))],)
            for j in static(4): found = found + (some[j] if i < rows else float32(0),)
        return found

    return whole_rows, last_rows


@cache
def rows_kernel(
    tile,             # a `RowTile`
    four_writer,      # the factory of lesson 6 that writes four results
    predicated=True,  # may m, n or k not be multiples of the tile?
    width=1,          # floats per access: 4, or 1 where rows don't start at multiples of 16 bytes
    read_c=True,      # may beta be other than 0?
    guarded=False,    # does it return at once where `wanted` is 0?
):
    "A kernel for few rows of C, each block with a part of the sums of a tile."
    bm, bk, pitch, ahead, chunk = tile.bm, tile.bk, tile.pitch, tile.ahead, tile.chunk
    bn, lanes, teams, threads = tile.bn, tile.lanes, tile.teams, tile.threads
    results, shared_floats = tile.results, tile.shared_bytes // 4
    chunk_bytes = 4 * bk * pitch
    zeros, nothing = (np.float32(0),) * results, (np.float32(0),) * (4 * ahead)
    whole_rows, last_rows = rows_of_b(tile, width, predicated)
    unit = teams * ahead       # rows of B that all teams read at a time
    pass_rows = threads // bk  # rows of A that are copied at a time
    write_sums = sums_writer(tile, teams, four_writer, predicated, width, read_c)

    @cuda.jit(device=True)
    def copy_a(ring, to, a, m, k, row0, k0, k_end, thread):
        "Start to copy a chunk of A, transposed; zeros outside."
        row, col = uint32(thread // uint32(bk)), uint32(thread % uint32(bk))
        start = global_address(a, uint64((row0 + row) * k + k0 + col))
        to = uint32(to + uint32(4) * (col * uint32(pitch) + row))
        rows = m - row0 if k0 + col < k_end else int64(0)
        while row < uint32(bm):
            cp_async_at(ring, to, 0, a, start, 1, 1 if row < rows else 0)
            start += uint64(4 * pass_rows) * uint64(k)
            to = uint32(to + uint32(4 * pass_rows))
            row = uint32(row + uint32(pass_rows))
        cp_async_commit_group()

    @cuda.jit(device=True)
    @unrolled
    def multiply(acc, ring, at, found):
        for i in static(ahead):
            x = load_fours_at(ring, at, 4 * pitch * i, 16, bm)
            acc = add_part(acc, x, found[4 * i:4 * i + 4], 0, results, 1)
        return acc

    @cuda.jit(lineinfo=True, launch_bounds=tile.launch_bounds)
    @unrolled
    def sgemm_stream_k_kernel(a, b, c, k, alpha, beta, workspace, flags, launch, wanted, parts):
        if guarded and wanted[0] == 0: return
        ring = cuda.shared.array(shared_floats, float32, alignment=16)
        m, n = int64(c.shape[0]), int64(c.shape[1])
        thread = uint32(cuda.threadIdx.x)
        team, lane = uint32(thread // uint32(lanes)), uint32(thread % uint32(lanes))

        # this block's tile of C, and its part of the sums: whole rounds of all teams, or the rest
        block = uint32(cuda.blockIdx.x)
        number, part = uint32(block // parts), uint32(block % parts)
        across = uint32((n + bn - 1) // bn)
        row0, col0 = int64(number // across) * bm, int64(number % across) * bn
        first, end = part_of((k + unit - 1) // unit, parts, part)
        k0, k_end = int64(first) * unit, min(k, int64(end) * unit)
        col = col0 + (uint32(4) * lane if width == 4 else lane)
        if predicated and width == 4: col = min(col, n - 4)

        # A in chunks; B several rows ahead, the next ones while these are multiplied
        acc, found, here = zeros, nothing, uint32(0)
        row = k0 + team * ahead
        base = shared_address(ring, uint64(0))
        to, at = uint32(base), uint32(base + uint32(4) * (team * uint32(ahead * pitch)))
        if row + ahead <= k_end: found = whole_rows(b, n, row * n, col)
        copy_a(ring, to, a, m, k, row0, k0, k_end, thread)
        other = uint32(chunk_bytes)
        while k0 < k_end:
            cp_async_wait_group(0)
            cuda.syncthreads()  # this chunk is there, and no thread needs the other one anymore
            copy_a(ring, uint32(to + other), a, m, k, row0, k0 + bk, k_end, thread)
            turn, here = uint32(0), at
            while turn < uint32(chunk) and row + ahead <= k_end:
                now = found
                if row + unit + ahead <= k_end: found = whole_rows(b, n, (row + unit) * n, col)
                acc = multiply(acc, ring, here, now)
                row += unit
                here = uint32(here + uint32(4 * unit * pitch))
                turn = uint32(turn + uint32(1))
            k0 += bk
            to, at, other = uint32(to + other), uint32(at + other), uint32(uint32(0) - other)
        if predicated and row < k_end:
            acc = multiply(acc, ring, here, last_rows(b, n, k_end - row, row * n, col))
        cp_async_wait_group(0)

        # the sums of all teams
        cuda.syncthreads()
        store_fours(ring, uint64(4 * (team * uint32(bm * lanes) + lane)), bn, acc)
        write_sums(ring, c, workspace, flags, launch, block, parts, row0, col0, alpha, beta, thread)
    return sgemm_stream_k_kernel  # the name that a profiler shows
