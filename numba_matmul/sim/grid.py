"""The blocks of a launch run one after another, and one may wait for another.

A thread that waits for another block polls a flag. When an atomic operation returns the same answer to a
thread twice, the others get a turn, and more blocks start. If nothing changes for a thousand rounds, what
they wait for never happens. No more blocks start than fit on an H100, so a block waiting for one that can't
start is caught. With a seed, blocks can also be interleaved at random, at every fence and atomic operation.
"""
from random import Random

from .scheduler import SimulatorError, share

PATIENCE = 1000  # rounds in which all blocks poll and nothing changes
FULL_PATIENCE = 50  # the same when the GPU is full and there are many blocks
MULTIPROCESSORS = 132  # of an H100
MOST_BLOCKS, MOST_THREADS, MOST_SHARED = 32, 2048, 228 * 1024  # resident on a multiprocessor; bytes


class Grid:
    "A launch in progress, and what is learned about it."
    def __init__(self, launch, elements, seed=None):
        self.elements = elements  # notes on global memory, by address
        self.fn, self.grid_dim, self.block_dim = launch.fn, launch.grid_dim, launch.block_dim
        self.random = None if seed is None else Random(seed)
        self.moves = 0                      # how many events happened that others may wait for
        self.races, self.remarks = {}, {}   # pair of lines → error; line → text
        self.talks = self.masked = False    # do blocks communicate? do some lanes meet without others?
        self.started, self.some_ended = [], False
        # for the launch: argument → elements stored; most barriers any thread passed
        self.stores, self.barriers = {}, 0

    def run(self, indices, start, ended):
        """Run the blocks with these indices. When one waits for another, the others get a turn.
        start: creates the block for an index; ended: what to do with a finished block."""
        indices, more, idle = iter(indices), True, 0
        try:
            while more or self.started:
                moves, newcomers = self.moves, self._newcomers() if more else 0
                # new blocks join those that have started
                for _ in range(newcomers):
                    index = next(indices, None)
                    more = index is not None
                    if not more: break
                    self.started.append(start(index))
                # each runs as far as it can
                for block in self._turn():
                    block.run()
                    if not block.alive:
                        self.started.remove(block)
                        self.some_ended = True
                        self.barriers = max(self.barriers, block.threads[0].barriers)
                        ended(block)
                if not more: self._release_grid()
                # is anything still changing?
                idle = 0 if newcomers or self.moves > moves else idle + 1
                if idle > (FULL_PATIENCE if more else PATIENCE): self._refuse_to_wait(more)
        finally:
            for block in self.started: block.unwind()

    def room(self):
        "How many blocks like the first running one fit on an H100, registers permitting."
        if not self.started: return MULTIPROCESSORS
        memory, threads = self.started[0].memory, -(-len(self.started[0].threads) // 32) * 32
        shared = memory.static_bytes + memory.dynamic.size + 1024  # the last is reserved by the system
        return MULTIPROCESSORS * min(MOST_BLOCKS, MOST_THREADS // threads, MOST_SHARED // shared)

    def _newcomers(self):
        "How many blocks start now."
        several = 1
        if self.random: several = int(self.random.expovariate(0.25)) if self.started else 4
        return min(several, self.room() - len(self.started))

    def _turn(self):
        "The blocks that run now, in order."
        return self.random.sample(self.started, len(self.started)) if self.random else list(self.started)

    def mix(self, thread, frame):
        "Before a fence or an atomic operation: others may run first."
        if self.random and self.random.random() < 0.5: thread.let_others_go_on(frame)

    def take_turns(self, thread, frame, asked):
        "After an atomic operation: a thread that waits for others yields to them."
        thread.questions += 1
        waits, thread.asked = asked == thread.asked or thread.questions > 100, asked
        if waits: thread.let_others_go_on(frame)

    def _release_grid(self):
        "Threads at the grid's barrier continue once the whole grid has arrived."
        threads = [thread for block in self.started for thread in block.alive]
        if not threads or not all(thread.at_grid for thread in threads): return
        if self.some_ended or any(len(block.alive) < len(block.threads) for block in self.started):
            raise SimulatorError(f"not all threads reach the grid's barrier: {threads[0]} of "
                                 f"{threads[0].block} waits at {threads[0].waits_at}, and some threads have "
                                 "returned",
                                 "barrier", at="grid")
        # everything before the barrier is ordered before everything after it
        share(threads)
        clock = {block: block.threads[0].barriers + 1 for block in self.started}
        for thread in threads:
            thread.at_grid, thread.barriers = False, thread.barriers + 1
            thread.learn(clock)
        for block in self.started:
            block.runnable = block.alive
            block.begin_moment()
        self.moves += 1

    def _refuse_to_wait(self, more):
        waiting = sorted({f"{thread} of {block} at {thread.waits_at}" for block in self.started
                          for thread in block.alive if thread.paused or thread.at_grid})
        text = "; ".join(waiting[:4] + ["…"] * (len(waiting) > 4))
        if more:
            text += (f". {len(self.started)} blocks of this size fit on an H100 at once, and these wait for "
                     "one that can't start until they finish: launch fewer blocks, with a loop in each")
        raise SimulatorError(f"threads wait for something that never happens: {text}", "deadlock")
