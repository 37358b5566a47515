// The dtypes of the kernels here: fp32, fp16 and bf16, all added up in fp32.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(__half x) { return __half2float(x); }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ T rounded(float x);
template <>
__device__ inline float rounded<float>(float x) { return x; }
template <>
__device__ inline __half rounded<__half>(float x) { return __float2half_rn(x); }
template <>
__device__ inline __nv_bfloat16 rounded<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// Sixteen bytes of elements: the widest access of one thread.
template <typename T>
struct alignas(16) Vector {
  static constexpr int LANES = 16 / sizeof(T);
  T lanes[LANES];
};

// In one access.  Hints that the data is of no further use (__ldcs, __stcs) cost vector_add a tenth of its rate on an
// H200 (CUDA 13.0, 2^28 elements), so there are none.
template <typename T>
__device__ inline Vector<T> read(const Vector<T>* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  return *reinterpret_cast<const Vector<T>*>(&bits);
}

template <typename T>
__device__ inline void write(Vector<T>* to, const Vector<T>& vector) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&vector);
}
