// out = x + y, elementwise; x, y and out start on 16 bytes.
//
// A block owns THREADS * UNROLL vectors of 16 bytes.  A thread asks for all of its vectors before it adds the first, so
// that enough bytes are in flight: 4 * 16 bytes a thread.

#include "numbers.cuh"

constexpr int THREADS = 128;
constexpr int UNROLL = 2;

template <typename T>
__device__ void add(const T* x, const T* y, T* out, long long n) {
  constexpr int LANES = Vector<T>::LANES;
  const auto* x_vectors = reinterpret_cast<const Vector<T>*>(x);
  const auto* y_vectors = reinterpret_cast<const Vector<T>*>(y);
  auto* out_vectors = reinterpret_cast<Vector<T>*>(out);
  const long long vectors = n / LANES;
  const long long first = static_cast<long long>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;

  Vector<T> left[UNROLL], right[UNROLL];
#pragma unroll
  for (int i = 0; i < UNROLL; ++i) {
    const long long at = first + i * THREADS;
    if (at < vectors) {
      left[i] = read(x_vectors + at);
      right[i] = read(y_vectors + at);
    }
  }
#pragma unroll
  for (int i = 0; i < UNROLL; ++i) {
    const long long at = first + i * THREADS;
    if (at < vectors) {
#pragma unroll
      for (int lane = 0; lane < LANES; ++lane) {
        left[i].lanes[lane] = rounded<T>(widened(left[i].lanes[lane]) + widened(right[i].lanes[lane]));
      }
      write(out_vectors + at, left[i]);
    }
  }

  // Up to LANES - 1 elements fill no vector.
  const long long rest = vectors * LANES + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && rest < n) {
    out[rest] = rounded<T>(widened(x[rest]) + widened(y[rest]));
  }
}

#define VECTOR_ADD(NAME, T)                                                                            \
  extern "C" __global__ void __launch_bounds__(THREADS) NAME(const T* x, const T* y, T* out, long long n) { \
    add<T>(x, y, out, n);                                                                              \
  }

VECTOR_ADD(vector_add_fp32, float)
VECTOR_ADD(vector_add_fp16, __half)
VECTOR_ADD(vector_add_bf16, __nv_bfloat16)
