# Kernels 1 and 5 as an extension of PyTorch that is built ahead of time. It needs nvcc, a C++ compiler and
# PyTorch's build for CUDA; ninja makes it faster. In this folder:
#     pip install --no-build-isolation .          installs it (the build needs the PyTorch you already have)
#     python setup.py build_ext --inplace         builds it here, to try it out
# TORCH_CUDA_ARCH_LIST="9.0" names the GPUs to build for; by default, it's built for this machine's.
# For kernels of your own: put them into matmul.cu, and change both names.
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="matmul_extension",
    version="0.1.0",
    ext_modules=[CUDAExtension("matmul_extension", ["matmul.cu"],
                               extra_compile_args={"cxx": ["-O2"], "nvcc": ["-O3"]})],
    cmdclass={"build_ext": BuildExtension},
)
