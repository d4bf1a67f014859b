"""Mistakes that people make: (module, the text as it is, the text with the mistake, what it is). See
tools/mutants.py."""
BY_HAND = [
    ("kernels.k01_naive", "col += cuda.gridsize(2)[1]", "col += cuda.gridsize(2)[0]",
     "the grid's other dimension"),
    ("kernels.k01_naive", "blocks_x, blocks_y = cdiv((g.m, g.n), threads)",
     "blocks_x, blocks_y = cdiv((g.n, g.m), threads)", "grid turned over"),
    ("kernels.k01_naive", "np.uint64(g.k if g.alpha else 0)", "np.uint64(g.k)",
     "A and B are read where alpha is 0"),
    ("kernels.k01_naive", "if beta == float32(0): c[row, col] = alpha * acc",
     "if alpha == float32(0): c[row, col] = alpha * acc", "the wrong factor is asked for"),
    ("kernels.k02_gmem_coalescing", "while i + UNROLL <= k:", "while i < k:",
     "the unrolled loop takes the rest, too"),
    ("gemm.tiled", "row_strips(g, tile.bm)", "row_strips(g, 2 * tile.bm)", "strips of too many rows"),
    ("gemm.tiles", "g.n % self.bn or g.k % self.bk)", "g.n % self.bn)", "the predicate forgets k"),
    ("gemm.tiles", "g.n % self.bn or g.k % self.bk)", "g.n % self.bn and g.k % self.bk)", "or and and"),
    ("kernels.k04_1d_blocktiling", "if not predicated or (row < m and col < n):",
     "if not predicated or row < m:", "columns past the edge are written"),
    ("gemm.tiled", "read_c=bool(g.beta != 0)", "read_c=bool(g.beta > 0)", "a negative beta"),
    ("kernels.k05_2d_blocktiling", "            b_from += bk * n\n", "            b_from += bk\n",
     "B goes on by columns"),
    ("kernels.k05_2d_blocktiling", "inside = k0 + b_row + s < k and", "inside = k0 + b_row < k and",
     "rows of later passes are not asked for"),
    ("kernels.k06_vectorized", "if predicated and inside <= 0: return",
     "if predicated and inside < 0: return", "none inside counts as inside"),
    ("kernels.k06_vectorized", "x = read4(a, uint64(a_from + s * k), cols if s < rows else 0)",
     "x = read4(a, uint64(a_from + s * k), cols)", "rows below the edge are read"),
    ("kernels.k06_vectorized", "q += beta * old[1]", "q += beta * old[0]", "the same element twice"),
    ("kernels.k06_vectorized", "write1(c, row, col + 3, x[3], alpha, beta)",
     "write1(c, row, col + 3, x[2], alpha, beta)", "a copied line"),
    ("kernels.k07_bank_conflicts_linearize", "uint32(col % tn), uint32(col // tn)",
     "uint32(col // tn), uint32(col % tn)", "B's tile turned over"),
    ("kernels.k08_bank_conflicts_padding", "b_width = 1 if pad_b % 4 else 4", "b_width = 4",
     "wide stores to rows that are not aligned"),
    ("kernels.k08_bank_conflicts_padding", "(4 * bn // tn, 4) if split", "(4 * tn, 4) if split",
     "the gap between groups"),
    ("kernels.k09_autotuning", "dot = uint32(dot + uint32(unroll))", "dot = uint32(dot + uint32(1))",
     "steps are done several times"),
    ("kernels.k10_warptiling", "lane_row = uint32(lane // (2 * lanes_across) * 2 + lane % 2)",
     "lane_row = uint32(lane // lanes_across)", "half of the zig-zag"),
    ("kernels.k10_warptiling", "warp // warps_across * wm", "warp % warps_across * wm",
     "rows of warps taken for columns"),
    ("kernels.k11_double_buffering", "now = uint32(uint32(bk) - now)", "now = uint32(uint32(bk) + now)",
     "the ring does not come round"),
    ("kernels.k12_async_copy",
     "pending = stages - 2",
     "pending = stages - 1",
     "one group too many may be under way"),
    ("kernels.k12_async_copy", "            free = now  # its last row is in registers\n", "",
     "the free stage stays where it was"),
    ("kernels.k12_async_copy", "ahead = left - columns_ahead", "ahead = left - bk", "columns ahead"),
    ("kernels.k13_planned_loop",
     "row0 = int64(uint32(cuda.blockIdx.y)) * bm",
     "row0 = int64(uint32(cuda.blockIdx.x)) * bm",
     "the grid's other dimension"),
    ("kernels.k13_planned_loop",
     "open_groups = tile.stages - 3",
     "open_groups = tile.stages - 2",
     "one group too many may be under way"),
    ("kernels.k13_planned_loop", "free_at, stage_at = stage_at, next_stage(stage_at)",
     "free_at, stage_at = free_at, next_stage(stage_at)", "the free stage stays where it was"),
    ("kernels.k13_planned_loop",
     "if k_tile < k_tiles: stage_at = next_stage(stage_at)",
     "if k_tile < k_tiles: stage_at = stage_at",
     "the tail reads the same stage over and over"),
    ("kernels.k13_planned_loop", "        return add_part(acc, x, y, carried_from, results, serpentine)\n",
     "        return acc\n", "what is left of the last step"),
    ("kernels.k14_stream_k", "done, other = min(k_tiles, until), other + 1", "done, other = until, other",
     "the same block's part over and over"),
    ("kernels.k14_stream_k", "end = first_k_tile(block + 1, blocks, shared_tiles * k_tiles)",
     "end = first_k_tile(block + 1, blocks, tiles * k_tiles)", "all tiles are shared"),
    ("kernels.k14_stream_k", "sums = g.workspace(blocks * tile.bm * tile.bn if shares else 1)",
     "sums = g.workspace(tile.bm * tile.bn if shares else 1)", "a workspace for one block"),
    ("kernels.k14_stream_k", "flags = g.workspace(blocks if shares else 1, kind=\"int64\")",
     "flags = g.workspace(1, kind=\"int64\")", "one flag for all"),
    ("kernels.k14_stream_k", "whole = shared_tiles + block\n", "whole = block\n",
     "shared tiles are done again"),
    ("kernels.k15_tensor_cores", "cuda.syncthreads()  # nobody needs the ring any more", "pass",
     "results overwrite the ring"),
    ("kernels.k15_tensor_cores", "staged = staged and width == 8 and not read_c",
     "staged = staged and not read_c", "16 bytes at rows that are not aligned"),
    ("kernels.k15_tensor_cores", "options, width=g.alignment // 2)", "options, width=8)",
     "alignment is not asked for"),
    ("kernels.k16_tma_wgmma", "(g.a, tile.bm), (g.b", "(g.a, 64), (g.b", "boxes of A with too few rows"),
    ("kernels.k16_tma_wgmma", "mbarrier_arrive_expect_tx(full, uint32(stage_bytes))",
     "mbarrier_arrive_expect_tx(full, uint32(bytes_a))", "bytes of A alone"),
    ("kernels.k16_tma_wgmma", "if not (tma_counts(g) and g.aligned)", "if not tma_counts(g)",
     "rows that the TMA cannot copy"),
    ("kernels.k17_warp_specialized", "uint32(4 * consumers)", "uint32(4)", "arrivals of one consumer"),
    ("kernels.k17_warp_specialized", "state = PipelineState(uint32(0), uint32(1))",
     "state = PipelineState(uint32(0), uint32(0))", "the producer waits for a release that never comes"),
    ("kernels.k18_past_cublas_bf16", "g.workspace(split_k * g.m * g.n, kind=\"float32\")",
     "g.workspace(g.m * g.n, kind=\"float32\")", "a workspace for one part"),
    ("kernels.k18_past_cublas_bf16", "[copy_padded(copies[\"c\"], g.c)]",
     "[copy_padded(copies.get(\"a\", g.a), g.c)]", "the wrong matrix comes back"),
    ("gemm.tiled", "range(0, g.m, strip)", "range(0, g.m - strip, strip)", "the last strip is missing"),
    ("gemm.tiled", "g.c[first:first + strip]", "g.c[first:strip]", "strips of C"),
    ("gemm.schedule", "length = uint32(uint32(grid.k_tiles + grid.split_k - uint32(1)) // grid.split_k)",
     "length = uint32(grid.k_tiles // grid.split_k)", "rounded down: the rest of the sum is lost"),
    ("gemm.epilogue", "for part in range(split_k): total += workspace[part * size + i]",
     "for part in range(split_k): total += workspace[i * split_k + part]", "parts lie otherwise"),
    ("gemm.args", "math.gcd(16, first, x.shape[1] * x.dtype.itemsize)",
     "math.gcd(16, x.shape[1] * x.dtype.itemsize)", "where the matrix begins"),
    ("ptx.ampere", "low, high = array.load(_element(array, row) + 2 * (lane % 4), 2, frame)",
     "low, high = array.load(_element(array, row) + 2 * (lane // 8), 2, frame)", "which numbers a lane gets"),
    ("ptx.ampere", "left = x.transpose(2, 4, 0, 3, 1, 5)", "left = x.transpose(2, 3, 0, 4, 1, 5)",
     "halves of a factor swapped"),
    ("ptx.core", "acc[i * columns + j] += x[i] * y[j]", "acc[j * len(x) + i] += x[i] * y[j]",
     "an outer product turned over"),
    ("ptx.core", "return [(i, columns - 1 - j if serpentine and i % 2 else j)",
     "return [(i, columns - j if serpentine and i % 2 else j)", "the way back begins too far right"),
    ("ptx.core", "range(0, len(values), 4): array.store(index + n // 4 * step, values[n:n + 4], frame)",
     "range(0, len(values), 4): array.store(index + n * step, values[n:n + 4], frame)",
     "groups of four counted as numbers"),
    ("ptx.hopper", "here = start + (bits ^ 32 * group) + 4 * (lane % 4)",
     "here = start + (bits + 32 * group) + 4 * (lane % 4)", "no swizzle"),
    ("ptx.hopper", "bits = to_bf16(np.array(acc, np.float32) * np.float32(alpha))",
     "bits = to_bf16(np.array(acc, np.float32))", "alpha left out"),
]

# Mutants that no check can find here, and why: (module, the line, the change) → the proof that nothing
# changes, or what only a GPU sees.
EXCUSED = {
    ("kernels.k13_planned_loop",
     "carried_from = results * (4 - schedule.carried) // 4 # from here on: with the next k tile", "- → +"):
        "carried_from is then no less than the number of products: all are added at once, and none with the "
        "next k tile",
    ('kernels.k18_past_cublas_bf16',
     'must = {name for name, alignment in g.alignments.items() if alignment < 16}', '16 → 17'):
        'all matrices are then copied into padded ones: slower, with the same results',
    ('kernels.k08_bank_conflicts_padding', 'if b_width == 4:', 'b_width == 4 → False'):
        'results stay as they are, by narrower accesses: four loads for one',
    ('kernels.k06_vectorized', 'if width == 4: # then rows are multiples of four: all are inside, or none',
     'width == 4 → False'):
        'results stay as they are, by narrower accesses: the other branch reads the same four',
    ('kernels.k14_stream_k', 'if cooperative:', 'cooperative → False'):
        'no number of blocks is refused then: the simulator gives each its turn, however many there are',
    ('kernels.k10_warptiling', 'if zigzag:', 'zigzag → True'):
        'the lanes of a warp are numbered in another order, on the way in and out: a matter of speed',
    ('kernels.k10_warptiling', 'if zigzag:', 'zigzag → False'):
        'the same',
    ('gemm.tensor_maps', 'return bool(g.m and g.n and g.k and g.alpha and max(g.m, g.n, g.k) <= LONGEST)',
     'g.n, g.k → g.k, g.n'):
        'the largest of three is the same in any order',
    ('gemm.tensor_maps', 'return bool(g.m and g.n and g.k and g.alpha and max(g.m, g.n, g.k) <= LONGEST)',
     'g.m, g.n → g.n, g.m'):
        'the same',
    ('kernels.k17_warp_specialized',
     'if distance and is_last_tile and thread == 128: mbarrier_arrive(storage.order)',
     'thread == 128 → thread != 128'):
        'the order barrier staggers two consumers: results do not depend on who goes first',
    ('kernels.k12_async_copy',
     'write_tile = tile_writer(tile.shape, predicated, width, read_c, group=(tile.tm, tile.tn),',
     'predicated, width → width, predicated'):
        'results stay as they are, by narrower accesses: a width counts as true, and true is not 4',
    ('gemm.args', 'alignments = {name: math.gcd(16, first, x.shape[1] * x.dtype.itemsize) # the second row',
     '16 → 17'):
        'results stay as they are, by narrower accesses: the greatest common divisor with 17 is 1, or 17 '
        'where nothing is smaller',
    ('gemm.args', 'alignments = {name: math.gcd(16, first, x.shape[1] * x.dtype.itemsize) # the second row',
     '16 → 15'):
        'results stay as they are, by narrower accesses: no power of two but 1 divides 15',
    ('gemm.tiles',
     'return 2 * max(self.stages * self.stage_size, self.bm * self.bn // self.wn * (self.wn + 8))', '8 → 9'):
        'more shared memory than the kernel needs: results stay as they are',
    ('kernels.k17_warp_specialized', 'return tile.shared_bytes + c_bytes(tile) + 8', '8 → 9'):
        'the same',
    ('kernels.k08_bank_conflicts_padding', 'copy_a, copy_b = tile_copiers(tile, predicated, width, b_width)',
     'predicated, width → width, predicated'):
        'results stay as they are, by narrower accesses: a width counts as true, and true is not 4',
    ('kernels.k08_bank_conflicts_padding', 'gap, step = (4 * bn // tn, 4) if split else (4, tn)',
     'split → False'):
        'a thread\'s columns are then neighbours, where it computes them and where it stores them: bank '
        'conflicts, the same results',
    ('kernels.k06_vectorized', 'second = x[uint64(at + uint64(1))] if not predicated or inside > 1 else zero',
     'not predicated or inside > 1 → ((inside > 1))'):
        'where nothing is predicated, all four are inside: a test for nothing',
    ('kernels.k08_bank_conflicts_padding', 'gap, step = (4 * bn // tn, 4) if split else (4, tn)',
     'split → True'):
        'the same; tests/test_kernels.py looks at the columns of a thread',
    ('kernels.k06_vectorized', 'x = read4(a, uint64(a_from + s * k), cols if s < rows else 0)', '0 → (-1)'):
        'none is inside, either way',
    ('kernels.k14_stream_k', 'while cuda.atomic.cas(flags, other, launch, 0) != launch: pass', '0 → 1'):
        'only a CUDA graph launches again with the same number; tests/test_kernels.py looks at the flags '
        'that are left',
    ('kernels.k14_stream_k', 'while cuda.atomic.cas(flags, other, launch, 0) != launch: pass', '0 → (-1)'):
        'the same',
    ('kernels.k18_past_cublas_bf16',
     'must = {name for name, alignment in g.alignments.items() if alignment < 16}',
     'alignment < 16 → alignment <= 16'):
        'all matrices are then copied into padded ones: slower, with the same results; tests/test_kernels.py '
        'looks at the launches',
    ('kernels.k18_past_cublas_bf16',
     'must = {name for name, alignment in g.alignments.items() if alignment < 16}', '16 → 15'):
        'an alignment is a power of two',
    ('gemm.epilogue', 'elif i == 0: bar_sync(store.barrier, uint32(128)) # all warps are done with the ring',
     'i == 0 → True'):
        'a barrier for each box, where one is enough: slower, with the same results',
    ('gemm.args', 'if not isinstance(factor, Real):', 'not isinstance(factor, Real) → False'):
        'no path is given what is no number; tests/test_kernels.py gives it',
    ('gemm.plan', 'if any(isinstance(arg, TensorMapWords) for arg in launch.args[1:]):',
     'any(isinstance(arg, TensorMapWords) for arg in launch.args[1:]) → False'):
        'no kernel is launched so; tests/test_kernels.py tries it',
    ('gemm.plan', 'if any(isinstance(arg, TensorMapWords) for arg in launch.args[1:]):', '1 → 2'):
        'the same',
}
