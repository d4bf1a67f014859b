"""Machine code as the disassembler prints it: instructions with their control bits, the loops they form, and
what an FFMA reads. `compiler` makes it; this module only reads it."""
import re
from dataclasses import dataclass, field


INSTRUCTION = re.compile(r"/\*([0-9a-f]+)\*/\s+(@!?U?P\w+)?\s*([A-Z][A-Z0-9_.]*)([^;]*);")
WORD = re.compile(r"/\* 0x([0-9a-f]{16}) \*/")  # half of an instruction: there are two, the lower one first
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}  # modifier → bytes of an access
ATOMIC = "ATOM", "ATOMG", "ATOMS", "RED", "REDG"
EXCHANGE = "SHFL", "VOTE", "MATCH", "REDUX"  # between the lanes of a warp
HALF = "HADD2", "HMUL2", "HFMA2", "HSETP2", "HMNMX2"
MEMORY = "LDG", "STG", "LDS", "STS", "LDL", "STL", "LDGSTS", "LD", "ST"


@dataclass(slots=True)
class Instruction:
    """One machine instruction. The last four fields are its control bits: the hardware doesn't find out by
    itself what an instruction has to wait for, the compiler wrote it down."""
    address: int
    opcode: str    # with its modifiers: LDG.E.128
    operands: str
    line: int      # of the Python source, 0 if unknown
    label: str     # the label before it, if there is one
    guard: str = ""  # the condition under which it is carried out: @P0, @!P0
    stall: int = 0   # cycles until the warp's next instruction may issue
    waits: tuple = ()   # scoreboards, 0 to 5, that must be clear before it issues
    result: int = None  # the scoreboard that it holds until its result is there
    source: int = None  # the one that it holds until its operands have been read

    @property
    def name(self):
        "The opcode without its modifiers: LDG."
        return self.opcode.split(".")[0]

    @property
    def width(self):
        "Bytes that each lane loads or stores."
        return next((WIDTHS[word] for word in self.opcode.split(".") if word in WIDTHS), 4)

    @property
    def kind(self):
        "What it's counted as. Whatever is nothing else is \"integer\": addresses, counters, moves."
        name, *modifiers = self.opcode.split(".")
        if name == "LDS" and self.operands.startswith("RZ"): return "control"  # loads nothing
        if name in MEMORY:
            width = next((m for m in modifiers if m in ("U8", "U16", "64", "128")), "32")
            return f"{name} {width}"
        if name in ("FFMA", "BAR", "HMMA", "HGMMA", "QGMMA", "LDSM", "DFMA"): return name
        if name in ATOMIC: return "atomic"
        if name in EXCHANGE: return "shuffle or vote"
        if name in HALF: return "float16"
        if name in ("FADD", "FMUL", "FSEL", "FSETP", "FMNMX", "FCHK", "MUFU"): return "other float32"
        converts = name in ("F2F", "I2F", "F2I") and "F64" in modifiers
        if name in ("DADD", "DMUL", "DSETP", "DMNMX") or converts: return "float64"
        if name in ("BRA", "EXIT", "BSYNC", "BSSY", "NOP", "WARPSYNC", "LDGDEPBAR",
                    "DEPBAR"): return "control"
        return "integer"

    @property
    def target(self):
        "The label that a branch goes to; `None` for other instructions."
        if self.name == "BRA" and (found := re.search(r"`\((\.L\w+)\)", self.operands)): return found[1]

def control_bits(
    high,  # the upper 64 of an instruction's 128 bits
) -> dict:
    "The control bits as fields of an `Instruction`: bits 41 to 57, behind four that mark operands for reuse."
    bits = high >> 41
    def scoreboard(number): return None if number == 7 else number
    return dict(stall=bits & 15, result=scoreboard(bits >> 5 & 7), source=scoreboard(bits >> 8 & 7),
                waits=tuple(number for number in range(6) if bits >> 11 + number & 1))

def instructions_of(
    sass,  # output of nvdisasm, with -hex for the control bits
) -> list:
    "The instructions of a disassembly."
    found, line, label = [], 0, ""
    for text in sass.splitlines():
        if mark := re.search(r'//## File ".*?", line (\d+)', text): line = int(mark[1])
        elif mark := re.match(r"\s*(\.L\w+):", text): label = mark[1]
        elif mark := INSTRUCTION.search(text):
            address, guard, opcode, operands = mark.groups()
            found.append(Instruction(int(address, 16), opcode, operands.strip(), line, label,
                                     guard or ""))
            label = ""
        elif found and (mark := WORD.search(text)):  # a line of its own: the upper half
            for name, value in control_bits(int(mark[1], 16)).items(): setattr(found[-1], name, value)
    return found


# Loops

@dataclass
class Loop:
    "A loop: instructions `start` to `end`, without `end`, and the loops inside it."
    start: int
    end: int
    inside: list = field(default_factory=list, repr=False)

    def holds(self, other): return self != other and self.start <= other.start and other.end <= self.end

def loops_of(
    instructions,  # list of `Instruction`s
) -> list:
    "All loops, outer ones first: each branch backward ends one."
    labels = {x.label: i for i, x in enumerate(instructions) if x.label}
    found = []
    for i, x in enumerate(instructions):
        start = labels.get(x.target, i)
        if start < i: found.append(Loop(start, i + 1))
    found.sort(key=lambda loop: (loop.start, -loop.end))
    for loop in found: loop.inside = [other for other in found if loop.holds(other)]
    return found

def main_loop_of(
    instructions,  # list of `Instruction`s
    loops,         # their loops
) -> Loop:
    """The innermost loop that multiplies most; of equals one that loads. (If none does: the longest.) `None`
    without loops."""
    def products(loop):
        return sum(x.opcode.startswith(("FFMA", "HMMA", "HGMMA", "QGMMA"))
                   for x in instructions[loop.start:loop.end])
    loops = [loop for loop in loops if products(loop)] or loops
    inner = [loop for loop in loops if not any(loop.holds(other) for other in loops)]
    def weight(loop):
        body, count = instructions[loop.start:loop.end], products(loop)
        loads = any(x.kind.startswith(("LDG ", "LDGSTS ")) for x in body)
        return count, loads, -len(body) if count else len(body)
    return max(inner, key=weight, default=None)


# Registers

def collides(
    read,  # registers that an instruction reads
) -> bool:
    "Are two of them in the same bank? Even registers are in one, odd ones in the other."
    return len(read) > len({number % 2 for number in read})

def register_reads(
    instructions,  # a list of `Instruction`s
) -> list:
    "For each FFMA the registers that it reads, without those that the one before kept (.reuse)."
    kept, found = (None, None, None), []  # kept: by place of the operand
    for x in instructions:
        if x.kind != "FFMA": continue
        operands = re.findall(r"\bR(Z|\d+)(\.reuse)?", x.operands)[1:]
        new = [number for (number, _), old in zip(operands, kept) if number not in (old, "Z")]
        found.append({int(number) for number in new})
        kept = [number if reuse else None for number, reuse in operands]
    return found

DEPTH = 2  # cycles that the reads of an FFMA may wait for a bank before they hold up those that follow

def bank_delays(
    instructions,  # `Instruction`s: a loop, which begins again at its end
) -> list:
    """Cycles that each FFMA waits for its registers. A bank delivers one per cycle, and reads queue up in
    front of it, so something has to wait only if they were one-sided for a while."""
    free, time = [0.0, 0.0], 0
    for _ in range(2):  # the second pass begins where the first one has ended
        reads, found = iter(register_reads(instructions)), []
        for x in instructions:
            if x.kind == "FFMA":
                for number in next(reads): free[number % 2] = max(free[number % 2], time) + 1
                found.append(max(0, *free) - time - DEPTH if max(free) > time + DEPTH else 0)
                time += found[-1]
            time += 1
    return found

def until_use(
    instructions,  # a list of `Instruction`s: a loop, which begins again at its end
) -> list:
    """For each load from shared memory: its place in the loop, and how many FFMA follow before the first
    that needs what it loads."""
    def reads(x): return {int(number) for number in re.findall(r"\bR(\d+)", x.operands)[1:]}
    found = []
    for place, load in enumerate(instructions):
        if not load.kind.startswith("LDS"): continue
        first = int(re.search(r"\bR(\d+)", load.operands)[1])
        loaded = {*range(first, first + int(load.kind.split()[-1]) // 32)}
        after = [x for x in instructions[place + 1:] + instructions[:place] if x.kind == "FFMA"]
        uses = (count for count, x in enumerate(after) if reads(x) & loaded)
        if (count := next(uses, None)) is not None: found.append((place, count))
    return found
