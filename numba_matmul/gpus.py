"""The GPUs that predictions are made for: what their makers publish, and the constants of the model."""
from dataclasses import dataclass

from .cards import load_cards


@dataclass(frozen=True)
class Machine:
    "A GPU as the model of a multiprocessor sees it. The last eight figures are constants, see `MEASURED`."
    name: str
    target: str       # a key of `compiler.TARGETS`
    sms: int          # multiprocessors
    clock_mhz: float  # under load
    dram_gb_s: float  # of a large copy; published, if `checked` is false
    l2_mb: float
    l2_gb_s: float    # that it delivers; `None` if nobody says
    pipes: int        # of a scheduler that multiply and add in float32, with 16 lanes each
    wavefronts: float  # that the memory unit serves per cycle, of 128 bytes
    source: str       # of these figures
    checked: bool     # has the model been compared with measurements on this GPU?
    shared_latency: float   # cycles from service to data: of shared memory …
    l1_latency: float       # … of the L1 cache …
    l2_latency: float       # … of the L2 cache …
    dram_latency: float     # … of memory
    load_cycles: float      # of the memory unit for a load from global memory, at least
    lines_per_cycle: float  # of 128 bytes, that the L1 cache looks up
    barrier_cycles: float   # from the last arrival to the next instruction
    launch_us: float        # start and end of a kernel

# What `make gpu STAGE=model` measures, and its unit. A card keeps it under "model", "machine".
MEASURED = dict(clock_mhz="MHz", l2_gb_s="GB/s", shared_latency="cycles", l1_latency="cycles",
                l2_latency="cycles", dram_latency="cycles", load_cycles="cycles", lines_per_cycle="per cycle",
                barrier_cycles="cycles", launch_us="µs")

# A GPU where nobody has measured them is taken for an H100.
OF_AN_H100 = dict(shared_latency=20.36, l1_latency=29.16, l2_latency=272.8, dram_latency=667.8,
                  load_cycles=1.05, lines_per_cycle=3.637, barrier_cycles=27.86, launch_us=0.928)
L2_GB_S = 7430  # of an H100

# These show less in a kernel that does nothing else than a busy multiprocessor makes warps wait. What counts
# there is fitted to times of the variants and short kernels that lessons 1 to 12 compare at 4096, on the
# cards of an H200 and an H100 together; never to the kernels of the ladder, by which the model is judged.
# Where another GPU measures more than an H100, or less, so does it here.
FITTED = dict(shared_latency=26.5, l1_latency=33, load_cycles=1.21, barrier_cycles=38, launch_us=1.8)
LOADED = 1.27        # how much longer memory takes if all multiprocessors ask for something
BLOCK_CYCLES = 1000  # of a block outside its loop over k

# GPUs without a result card: nobody has compared. Its constants are those of an H100.
_ROWS = (  # name, target, multiprocessors, boost clock, GB/s, L2 in MB, its GB/s, pipes, wavefronts, source
    ("Tesla T4", "sm_75", 40, 1590, 320, 4, None, 1, 0.5, "NVIDIA's T4 datasheet and Turing whitepaper"),
    ("NVIDIA A100", "sm_80", 108, 1410, 1555, 40, None, 1, 1, "NVIDIA's A100 whitepaper, for 40 GB"),
    ("NVIDIA GeForce RTX 3090", "sm_86", 82, 1695, 936, 6, None, 2, 1, "NVIDIA's GA102 whitepaper"),
    ("NVIDIA GeForce RTX 4090", "sm_89", 128, 2520, 1008, 72, None, 2, 1, "NVIDIA's Ada whitepaper"),
    ("NVIDIA L4", "sm_89", 58, 2040, 300, 48, None, 2, 1, "NVIDIA's L4 datasheet"))
UNCHECKED = {row[0]: Machine(*row, False, **OF_AN_H100 | FITTED) for row in _ROWS}

SUSTAINED = 0.9  # of a large copy's speed, for a kernel that also computes

def _of_card(card):
    found = {name: entry["value"] for name, entry in card.get("model", {}).get("machine", {}).items()}
    found = dict(clock_mhz=card["clocks"]["after"]["sm_mhz"], l2_gb_s=L2_GB_S) | OF_AN_H100 | found
    found |= {name: busy * (found[name] / OF_AN_H100[name]) for name, busy in FITTED.items()}
    return Machine(card["gpu"], "sm_90", card["multiprocessors"], dram_gb_s=card["copy_gb_s"],
                   l2_mb=card["l2_mb"], pipes=2, wavefronts=1, source=f"its result card, {card['date']}",
                   checked=True, **found)

def machines():
    "All GPUs that can be predicted, by name: those with a card of compute capability 9.0 first."
    cards = [card for card in load_cards() if card["compute_capability"] == "9.0" and "l2_mb" in card]
    return {card["gpu"]: _of_card(card) for card in cards} | UNCHECKED

def machine_called(
    name,  # or a part of it: "H200", "T4"
) -> Machine:
    "A GPU by its name. `ValueError` that lists them if there is none."
    known = machines()
    found = [gpu for full, gpu in known.items() if name.lower() in full.lower()]
    if not found: raise ValueError(f"no GPU is called {name!r}; there are {', '.join(known)}")
    return found[0]
