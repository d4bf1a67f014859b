// Two kernels and what PyTorch needs to call them. From the top: the kernels, in plain CUDA C++; a launch that checks
// its tensors and uses PyTorch's current stream; and the functions that Python sees, through pybind11.
// (extern "C" keeps the kernels' names, for those who load them by name.)

extern "C" __global__ void naive(
        const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int col = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < m && col < n) {
        float acc = 0;
        for (int i = 0; i < k; i++) acc += a[row * k + i] * b[i * n + col];
        c[row * n + col] = acc;
    }
}

constexpr int BM = 128, BN = 128, BK = 8, TM = 8, TN = 8, THREADS = BM * BN / (TM * TN);

extern "C" __global__ void tiled(
        const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[BM][BK], b_tile[BK][BN];
    float acc[TM][TN] = {}, reg_m[TM], reg_n[TN];
    int thread = threadIdx.x, row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
    int row = thread / (BN / TN) * TM, col = thread % (BN / TN) * TN;
    for (int k0 = 0; k0 < k; k0 += BK) {
        for (int s = 0; s < BM; s += THREADS / BK)
            a_tile[s + thread / BK][thread % BK] =
                a[(row0 + s + thread / BK) * k + k0 + thread % BK];
        for (int s = 0; s < BK; s += THREADS / BN)
            b_tile[s + thread / BN][thread % BN] =
                b[(k0 + s + thread / BN) * n + col0 + thread % BN];
        __syncthreads();
        for (int dot = 0; dot < BK; dot++) {
            for (int i = 0; i < TM; i++) reg_m[i] = a_tile[row + i][dot];
            for (int j = 0; j < TN; j++) reg_n[j] = b_tile[dot][col + j];
            for (int i = 0; i < TM; i++)
                for (int j = 0; j < TN; j++) acc[i][j] += reg_m[i] * reg_n[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < TM; i++)
        for (int j = 0; j < TN; j++)
            c[(row0 + row + i) * n + col0 + col + j] = acc[i][j];
}

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/utils/pybind.h>

using Kernel = void (*)(const float*, const float*, float*, int, int, int);

void run(Kernel kernel, dim3 grid, dim3 block, const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    for (const at::Tensor* x : {&a, &b, &c})
        TORCH_CHECK(x->is_cuda() && x->scalar_type() == at::kFloat && x->dim() == 2 && x->is_contiguous(),
                    "expected row-major float32 matrices on the GPU");
    TORCH_CHECK(a.size(1) == b.size(0) && c.size(0) == a.size(0) && c.size(1) == b.size(1), "the shapes don't fit together");
    c10::cuda::CUDAGuard device(a.device());
    kernel<<<grid, block, 0, c10::cuda::getCurrentCUDAStream()>>>(
        a.const_data_ptr<float>(), b.const_data_ptr<float>(), c.mutable_data_ptr<float>(), a.size(0), b.size(1), a.size(1));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void run_naive(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    run(naive, dim3((a.size(0) + 31) / 32, (b.size(1) + 31) / 32), dim3(32, 32), a, b, c);
}

void run_tiled(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    TORCH_CHECK(a.size(0) % BM == 0 && b.size(1) % BN == 0 && a.size(1) % BK == 0, "the sizes must fit the tile");
    run(tiled, dim3(b.size(1) / BN, a.size(0) / BM), dim3(THREADS), a, b, c);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("naive", &run_naive, "C = A B, one thread per element");
    m.def("tiled", &run_tiled, "C = A B, 8 x 8 elements per thread");
}
