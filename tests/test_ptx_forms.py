"""The compiler's half of each PTX instruction, without a GPU: its output for the binding, compared with the
form in the PTX ISA."""
import importlib.util
import re
from inspect import signature
from types import SimpleNamespace

import pytest

if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("numba-cuda is not installed", allow_module_level=True)

from instructions import CASES, bound
from numba import cuda
from ptx_forms import FORMS, TARGETS

from numba_matmul.compiler import machine_code
from numba_matmul.process import in_child
from numba_matmul.ptx.hopper import MAP_WORDS, WORDS_BEFORE, tensor_map_address


def kernel_of(name):
    "A kernel that calls a form's function and stores its results."
    form = FORMS[name]
    call = f"probe({', '.join(signature(form.probe).parameters)})"
    if form.results > 1: body = [f"found = {call}", *(f"out[{i}] = found[{i}]" for i in range(form.results))]
    elif form.results: body = [f"out[0] = {call}"]
    else: body = [call] * form.times()
    scope = dict(probe=cuda.jit(device=True)(form.probe))
    exec(f"def {name}({', '.join(form.parameters())}): {'; '.join(body)}", scope)
    return scope[name]


def compiled_forms():
    """In a child in real mode: PTX for each form, the lines of LLVM's inline assembly, and the targets that
    can assemble it."""
    from numba.cuda import codegen, dispatcher
    from numba.cuda.core.sigutils import normalize_signature
    target, found = (9, 0, "a"), {}
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=target[:2])
    codegen.CUDACodeLibrary._ensure_cc = lambda self, cc: cc or target
    for name in FORMS:
        types, _ = normalize_signature(f"void({FORMS[name].types})")
        library = dispatcher._Kernel(kernel_of(name), types)._codelibrary
        assembly = [line for line in library.get_llvm_str().splitlines() if " asm " in line]
        ptx = "\n".join(library.get_asm_strs(cc=target))
        found[name] = ptx, assembly, [target for target in TARGETS if assembles(ptx, target)]
    return found


def assembles(ptx, target):
    "Does the assembler accept this PTX for a target?"
    from cuda.bindings import nvjitlink
    text, handle = ptx.replace(".target sm_90a",
                               f".target {target}").encode(), nvjitlink.create(1, [f"-arch={target}"])
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "form")
        nvjitlink.complete(handle)
        return True
    except nvjitlink.nvJitLinkError: return False
    finally: nvjitlink.destroy(handle)


OPERATORS = {"add": "+", "xor": "^", "shl": "<<", "and": "&", "mul": "*"}


def parameters(name):
    "The meaning of each parameter of a compiled kernel: an array is several, the fifth of them its address."
    kinds, found = re.findall(r"\w+(?:\[[^]]*])?", FORMS[name].types), []
    for parameter, kind in zip(FORMS[name].parameters(), kinds):
        dimensions = kind.count(",") + 1
        found += [None] * 4 + [parameter] + [None] * 2 * dimensions if "[" in kind else [parameter]
    return found


def statements(name, ptx):
    "What a kernel does, with registers replaced by expressions of its parameters."
    names, values, kept = parameters(name), {}, []
    # a, b: in the assembly
    def filled(text): return re.sub(r"%\w+|\b[ab]\b", lambda x: values.get(x[0], x[0]), text)
    body = re.sub(r"//.*", "", ptx[ptx.index("\n{") + 2:ptx.rindex("}")])
    # blocks of assembly
    body = re.sub(r"[{}] *(\.reg\b|$)", r"\1", re.sub(r"(\w:)\s", r"\1;", body), flags=re.M)
    for text in map(str.strip, body.split(";")):
        opcode, operands = re.fullmatch(r"(\S*)\s*(.*)", text, re.S).groups()
        first, *others = re.split(r",\s*(?![^{[]*[]}])", operands)
        kind = opcode.split(".")[0]
        if opcode.startswith("ld.param"): values[first] = names[int(re.search(r"_param_(\d+)", operands)[1])]
        elif kind in ("mov", "cvta") or opcode in ("cvt.u32.u64", "cvt.u64.u32"):
            values[first] = filled(others[0])
        elif kind in OPERATORS and opcode != "add.f32":
            values[first] = OPERATORS[kind].join(map(filled, others))
        elif opcode and opcode != "ret" and not opcode.startswith("."):
            kept.append(f"{opcode} {filled(operands)}".strip())
    return results_named(kept)


def results_named(kept):
    "Statements with registers renamed: `out` if stored to it, numbers otherwise."
    for pattern, text in ((r"_cudapy_smem_\w+", "memory"), (r"\[out]", "[out+0]"),
                          # compilers differ in the type of a move
                          (r"^((?:ld|st)\.\S*\.)[fus](32|64)\b", r"\1b\2"),
                          (r"\+(\d+)\+(\d+)", lambda x: f"+{int(x[1]) + int(x[2])}")):
        kept = [re.sub(pattern, text, x) for x in kept]
    values = {}
    for text in list(kept):
        if stored := re.fullmatch(r"st\.global\.b(32|64) \[out\+(\d+)], (%\w+)", text):
            values[stored[3]] = f"out[{int(stored[2]) * 8 // int(stored[1])}]"
            kept.remove(text)
    def named(x): return values.setdefault(x[0], f"v{sum(value[0] == 'v' for value in values.values())}")
    return [sorted_factors(re.sub(r"%\w+", named, text)) for text in kept]


def sorted_factors(text):
    "A sum or product with its commutative operands in alphabetical order."
    opcode, _, operands = text.partition(" ")
    if opcode not in ("fma.rn.f32", "add.f32"): return text
    to, *factors = operands.split(", ")
    return f"{opcode} {', '.join((to, *sorted(factors[:2]), *factors[2:]))}"


def test_every_instruction_has_a_form_and_a_case():
    in_cases = {name for case in CASES.values() for name in case.instructions}
    assert bound() == FORMS.keys() | {"tensor_map_address"} == in_cases
    assert len(bound()) > 40


def test_instructions_have_the_form_that_the_ptx_isa_gives_them():
    """The statements have all their operands; none vanishes; those with effects stay in place, and those that
    lanes execute together aren't moved into a branch; the assembler accepts them from the first target with
    the instruction on."""
    for name, (ptx, assembly, targets) in in_child(compiled_forms, simulator=False, keep=True).items():
        wanted = FORMS[name]
        assert statements(name, ptx) == wanted.ptx * wanted.times(), (name, wanted.section)
        assert targets == list(TARGETS[TARGETS.index(wanted.since):]), name
        assert bool(assembly) or not (wanted.volatile or wanted.convergent), name
        for line in assembly:
            assert ("~{memory}" in line) == ("asm sideeffect" in line) == wanted.volatile, line
            assert line.endswith(" convergent") == wanted.convergent, line


def maps_kernel(maps, out):
    out[0], out[1] = tensor_map_address(maps, 0), tensor_map_address(maps, 1)
    out[2] = tensor_map_address(maps, 2)


def test_tensor_maps_among_the_parameters_begin_at_multiples_of_64():
    """Not an instruction, but the address of a parameter of the calling kernel. The machine code shows where
    parameters start: the pointer in the array after the maps is 58 words further."""
    code = machine_code(cuda.jit(maps_kernel),
                        f"void(UniTuple(uint64, {WORDS_BEFORE + 3 * MAP_WORDS}), uint64[::1])", "sm_90")
    operands, start = " ".join(x.operands for x in code.instructions), 0x210
    assert f"c[0x0][{start + 8 * (WORDS_BEFORE + 3 * MAP_WORDS + 4):#x}]" in operands
    assert all((start + 8 * (WORDS_BEFORE + MAP_WORDS * i)) % 64 == 0 for i in range(3))
    generic = [int(x, 16) for x in re.findall(r"UP?\d?,? ?UR\d+, (0x[0-9a-f]+), URZ", operands)]
    assert generic and all((b - a) % (8 * MAP_WORDS) == 0 for a, b in zip(generic, generic[1:]))


def test_cases_ask_for_a_gpu_that_has_their_instructions():
    for case in CASES.values():
        newest = max((FORMS[name].since for name in case.instructions if name in FORMS), key=TARGETS.index,
                     default="sm_90a")
        assert case.needs >= {"sm_75": (0, 0), "sm_80": (8, 0)}.get(newest, (9, 0, "a")), case.name
