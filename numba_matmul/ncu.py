"""Run NVIDIA's profiler on a script, and return its counters as a table."""
import csv
import re
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from .draw import Markdown
from .cards import card_row, load_cards
from .compiler import machine_code


class NcuError(RuntimeError):
    "Nsight Compute failed; the message says what to do."

COUNTERS = {
    "global load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global store sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "global load requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "shared load wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared store wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared load instructions": "smsp__inst_executed_op_shared_ld.sum",
    "cycles": "sm__cycles_active.avg",
}
REASONS = {  # why a warp waits: ncu's name → what it waits for
    "long_scoreboard": "global or local memory", "lg_throttle": "room in the queue to global memory",
    "short_scoreboard": "shared memory", "mio_throttle": "room in the queue to shared memory",
    "barrier": "barrier", "math_pipe_throttle": "arithmetic units",
    "dispatch_stall": "register ports", "wait": "fixed latency",
    "no_instruction": "code", "not_selected": "another warp's turn"}
STALLS = {reason: f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
          for reason in REASONS}
MEMORY = {"bytes read from the GPU's memory": "dram__bytes_read.sum",
          "bytes written to it": "dram__bytes_write.sum"}
COPIES = {"shared copy wavefronts":  # compute capability 8.0 and up
          "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum"}
TENSOR_CORES = {"tensor cores busy, %":
                "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"}
LOOK_AT = {  # what the lessons ask you to look at, by Nsight Compute's name → its metric
    "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "Sectors/Req": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "Block Limit Registers": "launch__occupancy_limit_registers",
    "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
    "Executed Instructions": "smsp__inst_executed.sum",
    "Bank Conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "Stall MIO Throttle": STALLS["mio_throttle"], "Stall Barrier": STALLS["barrier"],
    "Stall Long Scoreboard": STALLS["long_scoreboard"],
    "Stall Dispatch": STALLS["dispatch_stall"],
    "Stall Math Pipe Throttle": STALLS["math_pipe_throttle"]}
REMEDIES = {
    "ERR_NVGPUCTRPERM": ("reading the counters needs permission: run it as root (sudo, with the "
                         "full path of ncu), or have the administrator load the driver with "
                         "NVreg_RestrictProfilingToAdminUsers=0"),
    "No kernels were profiled": ("no kernel of that name was launched often enough: "
                                 "check `kernel` and `skip`"),
    "No CUDA-capable device": "ncu can't find a usable GPU here",
}


def ncu(
    script,             # Python script to run, or a report (.ncu-rep) to read
    *args,              # arguments of the script
    kernel="_kernel",   # part of the kernel's name (a regular expression)
    skip=1,             # launches to skip first
    launches=1,         # launches to profile; several of one kernel are averaged
    counters=COUNTERS,  # name → ncu's metric
    command="ncu",      # the program
) -> dict:              # kernel → counter → value
    "Profile launches of a script with Nsight Compute. Raises `NcuError` with a remedy."
    script = Path(script)
    options = ["--csv", "--page", "raw", "--print-units", "base",
               "--metrics", ",".join(counters.values())]
    if script.suffix == ".ncu-rep": options += ["-i", script]
    else:
        which = which_launches(kernel, skip, launches)
        options += [*which, sys.executable, script, *map(str, args)]
    printed = run_ncu(*options, command=command)
    return _read(printed, counters)

def which_launches(
    kernel="_kernel",  # part of the kernel's name (a regular expression)
    skip=1,            # launches to skip first
    launches=1,        # launches to profile
) -> list:
    "The options that make ncu profile certain launches without changing the GPU's clock."
    return ["--clock-control", "none", "-k", f"regex:{kernel}",
            "--launch-skip", str(skip), "--launch-count", str(launches)]

def run_ncu(
    *options,       # the arguments after `ncu` on a command line
    command="ncu",  # the program
) -> str:           # what it printed
    "Run Nsight Compute. Raises `NcuError` with a remedy."
    path = shutil.which(command)
    if not path:
        raise NcuError(f"{command} was not found: install Nsight Compute (it comes with the CUDA "
                       "toolkit), or add its folder to PATH")
    for file in options:
        if isinstance(file, Path) and not file.exists(): raise NcuError(f"there is no file {file}")
    done = subprocess.run([path, *options], capture_output=True, text=True)
    for sign, remedy in REMEDIES.items():
        if sign in done.stdout + done.stderr: raise NcuError(f"{sign}: {remedy}")
    if done.returncode:
        last_words = (done.stdout + done.stderr)[-2000:]
        raise NcuError(f"ncu exited with status {done.returncode}:\n{last_words}")
    return done.stdout


def _read(text, counters):
    "ncu's table as kernel → counter → value, the mean of its launches."
    lines = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    rows = [dict(zip(lines[0], line)) for line in lines[2:]]  # the second has the units
    last_words = f"The end of its output:\n{text[-2000:]}"
    if not rows:
        raise NcuError("ncu printed no table: run the script without it first, and check that "
                       f"`ncu --version` works. {last_words}")
    def value(row, metric):
        try: number = float(row.get(metric, "").replace(",", ""))
        except ValueError:
            raise NcuError(f"ncu reported {row.get(metric) or 'nothing'} for {metric}: check with `ncu "
                           "--query-metrics` whether this GPU has it. (A report contains only the metrics it "
                           f"was made with.) {last_words}") from None
        return int(number) if number.is_integer() else number
    def kernel(row):
        return re.split(r"[\[(]", row.get("Kernel Name", ""))[0].split("::")[-1]
    launches = defaultdict(list)
    for row in rows: launches[kernel(row)].append(row)
    return {name: {counter: statistics.mean(value(row, metric) for row in its)
                   for counter, metric in counters.items()} for name, its in launches.items()}


def merged_by_compiler(
    fn,       # host function
    counter,  # a key of `COUNTERS`
) -> bool:
    "Does the machine code access shared memory in wider pieces than the source? Then the two differ."
    opcode = {"shared load wavefronts": "LDS", "shared store wavefronts": "STS"}.get(counter)
    kinds = {x.kind for x in machine_code(fn).instructions}
    return bool(kinds & {f"{opcode} 64", f"{opcode} 128"})

def agreement(
    *functions,       # host functions
    differing=False,  # show only what differs, plus the number of matches?
) -> Markdown:        # predictions of the microscope and the compiler tool, and counts
    "Predicted and counted values, from the cards, at a size small enough for the simulator."
    known = {fn.__name__: fn for fn in functions}
    lines, cards = [], load_cards("ncu")
    rows = [(card["gpu"], row) for card in cards for row in card["ncu"]]
    same = sum(row["predicted"] == row["counted"] for _, row in rows)
    for gpu, row in rows:
        kernel, counter, predicted, counted = (row[key] for key in AGREEMENT)
        if predicted == counted if differing else kernel not in known: continue
        merged = (predicted != counted and kernel in known
                  and merged_by_compiler(known[kernel], counter))
        difference = f"{100 * predicted / counted - 100:+.2f} %" if counted else ""
        where = f" on {gpu}" if len(cards) > 1 else ""
        lines.append(f"| {kernel}{where} | {counter} | {predicted:,} | {counted:,} | {difference} "
                     f"| {'wider in the machine code' * merged} |")
    if not (differing or lines): return Markdown(f"Not counted yet: {', '.join(known)}.")
    m, n, k = SHAPE
    if differing: lines += ["", f"Of {len(rows)} predictions, {same} match the counters exactly."]
    return Markdown("\n".join([f"| m×n×k = {m}×{n}×{k} | | predicted | counted | | |",
                               "|---|---|--:|--:|--:|---|", *lines]))

AGREEMENT = "kernel", "counter", "predicted", "counted"
SHAPE = 256, 256, 64  # m, n, k


def counted(
    name,     # name of a host function
    counter,  # a key of `COUNTERS`, `STALLS` or `MEMORY`
    card=None,  # a result card; the first with profiles if None
) -> float:
    "ncu's count for one launch of a lesson's profiling script, from the card."
    return _profiled(card)["profiles"][name][counter]

def _profiled(card=None):
    "The card, or the first one with profiles; `NcuError` if it has none."
    card = card or next(iter(load_cards("profiles")), None)
    if card is None: raise NcuError("no recorded profile: run make gpu STAGE=ncu")
    return card

def shared_memory_bound(
    *names,     # names of host functions
) -> Markdown:  # one row per function
    """How much of the peak can a kernel reach, if shared memory serves one wavefront per cycle while the
    four schedulers each issue an `FFMA`? From the first card's counters, at `PROFILED`."""
    card = _profiled()
    ffmas, rows = PROFILED**3 / 32, []
    for name in names:
        speed = card_row(card, name, PROFILED)
        if name not in card["profiles"] or not speed:
            rows.append(f"| {name} | not counted yet | | |")
            continue
        wavefronts = sum(counted(name, f"shared {operation} wavefronts", card)
                         for operation in ("load", "store"))
        bound = min(1, ffmas / 4 / wavefronts) if wavefronts else 1
        reached = speed["gflops"] / card["peak_gflops"]
        rows.append(f"| {name} | {wavefronts / ffmas:.3f} | {bound:.0%} | {reached:.0%} |")
    return Markdown("\n".join([f"| {card['gpu']}, {PROFILED}×{PROFILED}×{PROFILED} "
                               "| wavefronts per warp `FFMA` | upper bound | reached |",
                               "|---|--:|--:|--:|", *rows]))

PROFILED = 4096  # m, n and k of the lessons' profiling scripts


# two shades of a color for each memory: its latency, and room in the queue to it
SHADES = {"long_scoreboard": "#CC79A7", "lg_throttle": "#EBCBDD", "short_scoreboard": "#56B4E9",
          "mio_throttle": "#BFE2F7", "barrier": "#F0E442", "math_pipe_throttle": "#777777",
          "dispatch_stall": "#AAAAAA", "wait": "#CCCCCC", "no_instruction": "#E5E5E5",
          "not_selected": "#FFFFFF"}

def stalls(
    *names,    # names of host functions
):
    """What the warps of each kernel wait for, in cycles per issued instruction, from the first card with
    profiles. Waits too short to see are left out. Returns the figure."""
    import matplotlib.pyplot as plt
    card = _profiled()
    found = card["profiles"]
    rows = {name if name in found else f"{name}: not counted yet": found.get(name, {}) for name in names}
    longest = max(sum(row.get(reason, 0) for reason in STALLS) for row in rows.values()) or 1
    shown = [reason for reason in STALLS
             if any(row.get(reason, 0) >= 0.01 * longest for row in rows.values())]
    lines = max(1, -(-len(shown) // 2))
    heights = 0.55 * len(rows) + 0.7, 0.2 * lines
    fig, (ax, key) = plt.subplots(2, 1, figsize=(7, sum(heights)), height_ratios=heights,
                                  layout="constrained")
    left = [0] * len(rows)
    for i, reason in enumerate(shown):
        style = dict(color=SHADES[reason], edgecolor="#666666", linewidth=0.5)
        waits = [row.get(reason, 0) for row in rows.values()]
        texts = [f"{wait:.1f}" for wait in waits]
        bars = ax.barh(range(len(rows)), waits, 0.5, left, **style)
        ax.bar_label(bars, [text if wait > 0.0115 * len(text) * longest else ""
                            for text, wait in zip(texts, waits)], label_type="center", fontsize=8)
        left = [start + wait for start, wait in zip(left, waits)]
        x, y = i // lines, -(i % lines)
        key.scatter(x, y, s=50, marker="s", **style)
        words = key.text(x + 0.03, y, REASONS[reason], fontsize=8, va="center_baseline")
        key.annotate(reason, (1, 0), xycoords=words, xytext=(4, 1), textcoords="offset points",
                     fontsize=7)
    for i, name in enumerate(rows): ax.text(0, i - 0.3, name, fontsize=8, va="bottom")
    ax.set_title("What a warp waits for between two of its instructions", fontsize=10)
    ax.set_xlabel(f"cycles per instruction, counted on one {card['gpu']}", fontsize=8)
    ax.set(xlim=(0, 1.02 * longest), ylim=(len(rows) - 0.6, -0.7), yticks=[])
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right", "left"]].set_visible(False)
    key.set(xlim=(-0.03, 1.9), ylim=(0.6 - lines, 0.6))
    key.axis("off")
    plt.close(fig)
    return fig


def table(
    found,  # the result of `ncu`
) -> Markdown:
    "The counters as a table, one column per kernel."
    names = next(iter(found.values()))
    rows = [f"| {name} | " + " | ".join(f"{values[name]:,}" for values in found.values()) + " |"
            for name in names]
    head = "| | " + " | ".join(f"`{kernel}`" for kernel in found) + " |"
    return Markdown("\n".join([head, "|---|" + "--:|" * len(found), *rows]))
