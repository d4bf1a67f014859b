"""Mistakes that people make: (module, the original text, the text with the mistake, a description). See
tools/mutants.py."""
BY_HAND = [
    ("kernels.k01_naive", "col += cuda.gridsize(2)[1]", "col += cuda.gridsize(2)[0]",
     "the grid's other dimension"),
    ("kernels.k01_naive", "blocks_x, blocks_y = cdiv((g.m, g.n), threads)",
     "blocks_x, blocks_y = cdiv((g.n, g.m), threads)", "grid transposed"),
    ("kernels.k01_naive", "np.uint64(g.k if g.alpha else 0)", "np.uint64(g.k)",
     "A and B are read although alpha is 0"),
    ("kernels.k01_naive", "if beta == float32(0): c[row, col] = alpha * acc",
     "if alpha == float32(0): c[row, col] = alpha * acc", "the wrong factor is checked"),
    ("kernels.k02_gmem_coalescing", "while i + UNROLL <= k:", "while i < k:",
     "the unrolled loop also takes the remainder"),
    ("gemm.tiled", "row_strips(g, tile.bm)", "row_strips(g, 2 * tile.bm)", "strips of too many rows"),
    ("gemm.tiles", "g.n % self.bn or g.k % self.bk)", "g.n % self.bn)", "the predicate forgets k"),
    ("gemm.tiles", "g.n % self.bn or g.k % self.bk)", "g.n % self.bn and g.k % self.bk)", "or and and"),
    ("kernels.k04_1d_blocktiling", "if not predicated or (row < m and col < n):",
     "if not predicated or row < m:", "columns past the edge are written"),
    ("gemm.tiled", "read_c=bool(g.beta != 0)", "read_c=bool(g.beta > 0)", "a negative beta"),
    ("kernels.k05_2d_blocktiling", "            b_from += bk * n\n", "            b_from += bk\n",
     "B advances by columns"),
    ("kernels.k05_2d_blocktiling", "inside = k0 + b_row + s < k and", "inside = k0 + b_row < k and",
     "rows of later passes aren't checked"),
    ("kernels.k06_vectorized", "if predicated and inside <= 0: return",
     "if predicated and inside < 0: return", "none inside counts as inside"),
    ("kernels.k06_vectorized", "x = read4(a, uint64(a_from + s * k), cols if s < rows else 0)",
     "x = read4(a, uint64(a_from + s * k), cols)", "rows below the edge are read"),
    ("kernels.k06_vectorized", "q += beta * old[1]", "q += beta * old[0]", "the same element twice"),
    ("kernels.k06_vectorized", "write1(c, row, col + 3, x[3], alpha, beta)",
     "write1(c, row, col + 3, x[2], alpha, beta)", "a copied line"),
    ("kernels.k07_bank_conflicts_linearize", "uint32(col % tn), uint32(col // tn)",
     "uint32(col // tn), uint32(col % tn)", "B's tile transposed"),
    ("kernels.k08_bank_conflicts_padding", "b_width = 1 if pad_b % 4 else 4", "b_width = 4",
     "wide stores to misaligned rows"),
    ("kernels.k08_bank_conflicts_padding", "(4 * bn // tn, 4) if split", "(4 * tn, 4) if split",
     "the gap between groups"),
    ("kernels.k09_autotuning", "dot = uint32(dot + uint32(unroll))", "dot = uint32(dot + uint32(1))",
     "steps are done several times"),
    ("kernels.k10_warptiling", "lane_row = uint32(lane // (2 * lanes_across) * 2 + lane % 2)",
     "lane_row = uint32(lane // lanes_across)", "half of the zig-zag"),
    ("kernels.k10_warptiling", "warp // warps_across * wm", "warp % warps_across * wm",
     "rows of warps taken for columns"),
    ("kernels.k11_double_buffering", "now = uint32(uint32(bk) - now)", "now = uint32(uint32(bk) + now)",
     "the ring doesn't wrap around"),
    ("kernels.k12_async_copy",
     "pending = stages - 2",
     "pending = stages - 1",
     "one group too many may be in flight"),
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
     "one group too many may be in flight"),
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
    ("kernels.k14_stream_k",
     "flags = g.workspace(blocks + tiles * (not persistent or options[\"together\"]) if shares else 1, "
     "kind=\"int64\")", "flags = g.workspace(1, kind=\"int64\")", "one flag for all"),
    ("kernels.k14_stream_k", "whole = shared_tiles + block\n", "whole = block\n",
     "shared tiles are done again"),
    ("kernels.k15_tensor_cores", "cuda.syncthreads()  # no thread needs the ring anymore", "pass",
     "results overwrite the ring"),
    ("kernels.k15_tensor_cores", "staged = staged and width == 8 and not read_c",
     "staged = staged and not read_c", "16-byte accesses to misaligned rows"),
    ("kernels.k15_tensor_cores", "options, width=g.alignment // 2)", "options, width=8)",
     "alignment isn't checked"),
    ("kernels.k16_tma_wgmma", "(g.a, tile.bm), (g.b", "(g.a, 64), (g.b", "boxes of A with too few rows"),
    ("kernels.k16_tma_wgmma", "mbarrier_arrive_expect_tx(full, uint32(stage_bytes))",
     "mbarrier_arrive_expect_tx(full, uint32(bytes_a))", "only A's bytes"),
    ("kernels.k16_tma_wgmma", "if not (tma_counts(g) and g.aligned)", "if not tma_counts(g)",
     "rows that the TMA can't copy"),
    ("gemm.pipeline", "uint32(4 * consumers)", "uint32(4)", "arrivals of one consumer"),
    ("kernels.k17_warp_specialized", "state = PipelineState(uint32(0), uint32(1))",
     "state = PipelineState(uint32(0), uint32(0))", "the producer waits for a release that never comes"),
    ("gemm.epilogue", "mbarrier_wait(store.sums, uint32(0))", "pass", "parts are read before they arrive"),
    ("gemm.epilogue", "group = rank\n", "group = uint32(0)\n",
     "every block of a cluster adds up the same columns"),
    ("kernels.k18_past_cublas_bf16", "row_copy(copies[\"c\"], g.c)", "row_copy(copies.get(\"a\", g.a), g.c)",
     "the wrong matrix is copied back"),
    ("gemm.split", "(x - x_hi) * LO, (y - y_hi) * LO", "(x - x_hi) * LO, (y - x_hi) * LO", "a copied name"),
    ("gemm.split", "int32(largest + int32(0x1000))", "largest",
     "a row's largest rounds to float16's infinity"),
    ("gemm.split", "if x != float32(0) and not", "if scaled != float32(0) and not",
     "a number that is 0 once it is scaled"),
    ("gemm.split", "y = x * abs(factor)", "y = x * factor", "a factor's sign changes A"),
    ("gemm.split", "if by[i] < float32(0): meets", "if by[i] > float32(0): meets", "who meets small numbers"),
    ("gemm.split", "distance in (16, 8, 4, 2, 1)", "distance in (8, 4, 2, 1)", "half of a warp is skipped"),
    ("gemm.split", "split_rows_kernel(read4, other is not None,", "split_rows_kernel(read4, False,",
     "A isn't balanced"),
    ("kernels.k19_float32_on_tensor_cores", "bytes_a, bytes_b = tile.bytes_a, BOX * boxes",
     "bytes_a, bytes_b = tile.bytes_a, BOX", "B's lo after its first box"),
    ("kernels.k19_float32_on_tensor_cores",
     "cross = wgmma_mma_async_f16(cross, a_hi, b_lo, NEXT_A, NEXT_B, steps, transpose, no_wait, 1)",
     "cross = wgmma_mma_async_f16(cross, a_hi, b_hi, NEXT_A, NEXT_B, steps, transpose, no_wait, 1)",
     "hi·hi among the cross products"),
    ("kernels.k19_float32_on_tensor_cores", "wgmma_wait_prior(main, 2)", "wgmma_wait_prior(main, 3)",
     "accumulators are read too early"),
    ("kernels.k19_float32_on_tensor_cores", "return cross, add_tuples(sums, main)", "return cross, main",
     "only the last k tile's sums"),
    ("gemm.joined", "[i + 2] * over_lo) * below", "[i + 2] * over_lo) * above", "the other row's scale"),
    ("gemm.joined", "if i < size and declined[0] == 0:", "if i < size:",
     "parts of sums over kernel 14's product"),
    ("gemm.joined", "value = alpha * (total * inverse[i // cols])",
     "value = alpha * (total * inverse[i % cols])", "columns' scales"),
    ("kernels.k19_float32_on_tensor_cores", "plan_stream_k(g, wanted=declined) if range == \"check\"",
     "plan_stream_k(g, wanted=declined) if range == \"trust\"", "what the parts can't represent is lost"),
    ("gemm.tiled", "range(0, g.m, strip)", "range(0, g.m - strip, strip)", "the last strip is missing"),
    ("gemm.tiled", "g.c[first:first + strip]", "g.c[first:strip]", "strips of C"),
    ("gemm.schedule", "length = uint32(uint32(grid.k_tiles + grid.split_k - uint32(1)) // grid.split_k)",
     "length = uint32(grid.k_tiles // grid.split_k)", "rounded down: the rest of the sum is lost"),
    ("gemm.args", "math.gcd(16, first, x.shape[1] * x.dtype.itemsize)",
     "math.gcd(16, x.shape[1] * x.dtype.itemsize)", "where the matrix starts"),
    ("ptx.ampere", "low, high = array.load(_element(array, row) + 2 * (lane % 4), 2, frame)",
     "low, high = array.load(_element(array, row) + 2 * (lane // 8), 2, frame)", "which numbers a lane gets"),
    ("ptx.ampere", "left = x.transpose(2, 4, 0, 3, 1, 5)", "left = x.transpose(2, 3, 0, 4, 1, 5)",
     "halves of a factor swapped"),
    ("ptx.core", "acc[i * columns + j] += x[i] * y[j]", "acc[j * len(x) + i] += x[i] * y[j]",
     "an outer product transposed"),
    ("ptx.core", "return [(i, columns - 1 - j if serpentine and i % 2 else j)",
     "return [(i, columns - j if serpentine and i % 2 else j)", "the way back starts too far right"),
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
     'must = {name for name, alignment in g.alignments.items() if alignment < 16 and (name != "c" or not '
     'may_store)}', '16 → 17'):
        'all matrices are then copied into padded ones: slower, with the same results',
    ('kernels.k08_bank_conflicts_padding', 'if b_width == 4:', 'b_width == 4 → False'):
        'the results are the same, by narrower accesses: four loads for one',
    ('kernels.k06_vectorized', 'if width == 4: # then rows are multiples of four: all are inside, or none',
     'width == 4 → False'):
        'the results are the same, by narrower accesses: the other branch reads the same four',
    ('kernels.k14_stream_k', 'if shares and blocks > most:', 'shares and blocks > most → False'):
        'no number of blocks is refused then: the simulator gives each its turn, however many there are',
    ('kernels.k10_warptiling', 'if zigzag:', 'zigzag → True'):
        'the lanes of a warp are numbered in another order, on the way in and out: a matter of speed',
    ('kernels.k10_warptiling', 'if zigzag:', 'zigzag → False'):
        'the same',
    ('kernels.k17_warp_specialized',
     'if distance and is_last_tile and thread == 128: mbarrier_arrive(storage.order)',
     'thread == 128 → thread != 128'):
        'the order barrier staggers two consumers: results do not depend on who goes first',
    ('kernels.k12_async_copy',
     'write_tile = tile_writer(tile.shape, predicated, width, read_c, group=(tile.tm, tile.tn),',
     'predicated, width → width, predicated'):
        'the results are the same, by narrower accesses: a width counts as true, and true is not 4',
    ('gemm.args', 'alignments = {name: math.gcd(16, first, x.shape[1] * x.dtype.itemsize) # the second row',
     '16 → 17'):
        'the results are the same, by narrower accesses: the greatest common divisor with 17 is 1, or 17 '
        'where nothing is smaller',
    ('gemm.args', 'alignments = {name: math.gcd(16, first, x.shape[1] * x.dtype.itemsize) # the second row',
     '16 → 15'):
        'the results are the same, by narrower accesses: no power of two but 1 divides 15',
    ('gemm.tiles',
     'return 2 * max(self.stages * self.stage_size, self.bm * self.bn // self.wn * (self.wn + 8))', '8 → 9'):
        'more shared memory than the kernel needs: results stay as they are',
    ('kernels.k17_warp_specialized', 'return tile.shared_bytes + c_bytes(tile) + 16', '16 → 17'):
        'the same',
    ('kernels.k08_bank_conflicts_padding', 'copy_a, copy_b = tile_copiers(tile, predicated, width, b_width)',
     'predicated, width → width, predicated'):
        'the results are the same, by narrower accesses: a width counts as true, and true is not 4',
    ('kernels.k08_bank_conflicts_padding', 'gap, step = (4 * bn // tn, 4) if split else (4, tn)',
     'split → False'):
        'a thread\'s columns are then adjacent where it computes them and where it stores them: bank '
        'conflicts, the same results',
    ('kernels.k06_vectorized', 'second = x[uint64(at + uint64(1))] if not predicated or inside > 1 else zero',
     'not predicated or inside > 1 → ((inside > 1))'):
        'if nothing is predicated, all four are inside: the test is redundant',
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
     'must = {name for name, alignment in g.alignments.items() if alignment < 16 and (name != "c" or not '
     'may_store)}',
     'alignment < 16 → alignment <= 16'):
        'all matrices are then copied into padded ones: slower, with the same results; tests/test_kernels.py '
        'looks at the launches',
    ('kernels.k18_past_cublas_bf16',
     'must = {name for name, alignment in g.alignments.items() if alignment < 16 and (name != "c" or not '
     'may_store)}', '16 → 15'):
        'an alignment is a power of two',
    ('gemm.epilogue', 'elif i == 0: bar_sync(store.barrier, uint32(128)) # all warps are done with the ring',
     'i == 0 → True'):
        'one barrier per box, where one is enough: slower, with the same results',
    ('gemm.args', 'if not isinstance(factor, Real):', 'not isinstance(factor, Real) → False'):
        "no path passes a non-number; tests/test_kernels.py does",
    ('gemm.plan', 'if any(isinstance(arg, TensorMapWords) for arg in launch.args[1:]):',
     'any(isinstance(arg, TensorMapWords) for arg in launch.args[1:]) → False'):
        'no kernel is launched this way; tests/test_kernels.py tries it',
    ('gemm.plan', 'if any(isinstance(arg, TensorMapWords) for arg in launch.args[1:]):', '1 → 2'):
        'the same',
    ('gemm.limits', 'MAX_GRID_Y = 65535', '65535 → 65536'):
        'paths make the limit small; tests/test_kernels.py compares it with the simulator\'s',
    ('gemm.limits', 'launch.pre_launch_callbacks.append(_allow_before)',
     'launch.pre_launch_callbacks.append(_allow_before) → pass'):
        'only a GPU has to be asked for more than 48 KB of shared memory',
    ('gemm.tensor_maps', 'return bool(g.m and g.n and g.k and g.alpha and max(g.m, g.n, g.k) <= LONGEST)',
     'max(g.m, g.n, g.k) <= LONGEST → max(g.m, g.n, g.k) < LONGEST'):
        'no path is as long as that; tests/test_kernels.py looks at who multiplies such a matrix',
    ('gemm.tiles', 'room = (MOST_SHARED - self.shared_bytes - 8) // (ROW * boxes)', '8 → 9'):
        'what is divided is never a multiple of 16, so one byte less never costs a column of a box',
    ('kernels.k13_planned_loop',
     'carried_from = results * (4 - schedule.carried) // 4 # from here on: with the next k tile', '4 → 3'):
        'another share of the products is added with the next k tile: the results are the same',
    ('kernels.k19_float32_on_tensor_cores', 'return tile.shared_bytes + 8', '+ → -'):
        '16 bytes fewer, which are left of those that align the ring: memory starts at a multiple of 16',
    ('kernels.k20_fp8', 'if tile.wm > 64: epilogue = two_epilogues(epilogue)', '64 → 65'):
        'wm is 64 or 128',
    ('kernels.k20_fp8', 'width = 2 if g.n % 2 == 0 and g.alignments["c"] >= 2 * g.c.dtype.itemsize else 1',
     'g.n % 2 == 0 and g.alignments["c"] >= 2 * g.c.dtype.itemsize → False'):
        'the results are the same, by narrower accesses: one element for two',
}
