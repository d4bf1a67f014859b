from numba_matmul.util import *
