"""What every lesson uses: move arrays, check a product, time a kernel, draw a matrix, read a result."""
from .arrays import array_like, cdiv, dtype_of, from_bf16, rounded, to_bf16, to_d, to_h
from .draw import COLORS, Markdown, draw_matmul, draw_matrix
from .cards import (
    card_row, cycles_per_step, gain, gpu_card, gpu_name, load_cards, pick_card, recorded)
from .gemm.args import gemm_args
from .bench.experiment import Experiment, experiment
from .bench.timing import Runtime, call_time, cuda_mean_runtime, measure_runtime, progress
from .bench.verify import assert_matmul_correct, check_matmul
from .exercise import ask, grade, mine, show, so_far, solutions
from .machine import draw_machine
from .play import play
from .predict import predict
from .report.strip import you_are_here
from .source import changes
from .explore import explore_pipeline, explore_tiles
from .widgets import explore_banks, explore_sectors


__all__ = ['to_d', 'to_h', 'array_like', 'to_bf16', 'from_bf16', 'rounded', 'cdiv', 'dtype_of',
         'COLORS', 'Markdown', 'draw_matrix', 'draw_matmul', 'load_cards', 'pick_card', 'card_row',
         'cycles_per_step', 'gpu_name', 'gpu_card', 'gemm_args', 'assert_matmul_correct',
         'check_matmul', 'Runtime', 'call_time', 'cuda_mean_runtime', 'measure_runtime', 'progress',
         'Experiment', 'experiment', 'recorded', 'gain', 'draw_machine', 'ask', 'grade', 'show',
         'solutions', 'you_are_here', 'changes', 'predict', 'mine',
         'so_far', 'play', 'explore_banks', 'explore_sectors',
         'explore_tiles', 'explore_pipeline']
