"""The blocks of a launch: they run one after another, and one may wait for another.

A thread that waits for another block asks for a flag, again and again. When an atomic operation gives a
thread the same answer twice, the others have their turn, and further blocks start. If a thousand rounds
change nothing, what they wait for never comes. No more blocks start than an H100 has room for, so a block
that waits for one that can't start is found. By a seed, blocks can also be mixed at random, at each fence and
atomic operation.
"""
from random import Random

from .scheduler import SimulatorError, share

PATIENCE = 1000  # rounds in which all blocks ask, and nothing changes
FULL_PATIENCE = 50  # the same where the GPU has no room for more blocks, and there are many
MULTIPROCESSORS = 132  # of an H100
MOST_BLOCKS, MOST_THREADS, MOST_SHARED = 32, 2048, 228 * 1024  # of a multiprocessor at once; bytes


class Grid:
    "A launch under way, and what is found out about it."
    def __init__(self, launch, elements, seed=None):
        self.elements = elements  # notes on global memory, by address
        self.fn, self.grid_dim, self.block_dim = launch.fn, launch.grid_dim, launch.block_dim
        self.random = None if seed is None else Random(seed)
        self.moves = 0                      # how often something has happened that others may wait for
        self.races, self.remarks = {}, {}   # pair of lines → mistake; line → text
        self.talks = self.masked = False    # do blocks talk to each other? do some lanes meet without others?
        self.started, self.some_ended = [], False
        # of the launch: argument → elements stored; most barriers of a thread
        self.stores, self.barriers = {}, 0

    def run(self, indices, start, ended):
        """Run the blocks with these indices. Where one waits for another, the others have their turn.
        start: makes the block of an index; ended: what to do with a block that has ended."""
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
                # does anything still change?
                idle = 0 if newcomers or self.moves > moves else idle + 1
                if idle > (FULL_PATIENCE if more else PATIENCE): self._refuse_to_wait(more)
        finally:
            for block in self.started: block.unwind()

    def room(self):
        "How many blocks like the first that runs an H100 has at once, if their registers suffice."
        if not self.started: return MULTIPROCESSORS
        memory, threads = self.started[0].memory, -(-len(self.started[0].threads) // 32) * 32
        shared = memory.static_bytes + memory.dynamic.size + 1024  # the last is the system's
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
        "Before a fence or an atomic operation: perhaps others run first."
        if self.random and self.random.random() < 0.5: thread.let_others_go_on(frame)

    def take_turns(self, thread, frame, asked):
        "After an atomic operation: a thread that waits for others lets them run."
        thread.questions += 1
        waits, thread.asked = asked == thread.asked or thread.questions > 100, asked
        if waits: thread.let_others_go_on(frame)

    def _release_grid(self):
        "Threads that wait for the whole grid go on when all of it is there."
        threads = [thread for block in self.started for thread in block.alive]
        if not threads or not all(thread.at_grid for thread in threads): return
        if self.some_ended or any(len(block.alive) < len(block.threads) for block in self.started):
            raise SimulatorError(f"the grid's barrier is not reached by all: {threads[0]} of "
                                 f"{threads[0].block} waits at {threads[0].waits_at}, and some threads have "
                                 "returned",
                                 "barrier", at="grid")
        # what any thread did before is in order before all that follows
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
            text += (f". {len(self.started)} blocks of this size run at once on an H100, and these wait for "
                     "one that starts when they have ended: launch fewer blocks, with a loop in each")
        raise SimulatorError(f"threads wait for what never comes: {text}", "deadlock")
