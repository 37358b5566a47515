// Sums along contiguous rows of n elements, divided by `divisor` (1: the sum, n: the mean); all of a tensor is one row.
//
// long_rows: a row is shared by `splits` blocks.  Each adds up its part in registers, then across its threads, and the
// last block of a row to end adds the parts in the order of the splits, so that two runs agree bit by bit.  `tickets`
// holds a zero for each row before the launch, and again after it.
// short_rows: a row is shared by `group` lanes of a warp, and no block waits for another.

#include "numbers.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int UNROLL = 4;
constexpr unsigned ALL_LANES = 0xffffffffu;

template <typename T>
__device__ float sum_of(const Vector<T>& vector) {
  float sum = 0;
#pragma unroll
  for (int lane = 0; lane < Vector<T>::LANES; ++lane) sum += widened(vector.lanes[lane]);
  return sum;
}

// The sum over the block's threads, in thread 0.
__device__ float block_sum(float value) {
  __shared__ float of_warp[WARPS];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < WARPS; ++warp) value += of_warp[warp];
  }
  __syncthreads();  // the next call may write of_warp
  return value;
}

// What this thread adds up of the split's part of a row, which may start anywhere.
template <typename T>
__device__ float thread_sum(const T* row, long long n, int split, int splits) {
  constexpr int LANES = Vector<T>::LANES;
  const long long before = (16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T);
  const long long head = before < n ? before : n;
  const long long vectors = (n - head) / LANES;
  const auto* aligned = reinterpret_cast<const Vector<T>*>(row + head);
  const long long stride = static_cast<long long>(splits) * THREADS;
  long long at = static_cast<long long>(split) * THREADS + threadIdx.x;
  float sum = 0;
  for (; at + (UNROLL - 1) * stride < vectors; at += UNROLL * stride) {
    Vector<T> loaded[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) loaded[i] = read(aligned + at + i * stride);
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) sum += sum_of(loaded[i]);
  }
  for (; at < vectors; at += stride) sum += sum_of(read(aligned + at));
  if (split == 0) {
    const long long tail = head + vectors * LANES + threadIdx.x;
    if (threadIdx.x < head) sum += widened(row[threadIdx.x]);
    if (tail < n) sum += widened(row[tail]);
  }
  return sum;
}

template <typename T>
__device__ void long_rows(const T* x, T* out, float* parts, unsigned* tickets, long long n, int splits, float divisor) {
  const long long row = blockIdx.x / splits;
  const int split = blockIdx.x % splits;
  const float part = block_sum(thread_sum(x + row * n, n, split, splits));
  if (splits == 1) {
    if (threadIdx.x == 0) out[row] = rounded<T>(part / divisor);
    return;
  }
  __shared__ bool last;
  if (threadIdx.x == 0) {
    parts[row * splits + split] = part;
    __threadfence();  // the part is there before the ticket is
    last = atomicInc(&tickets[row], splits - 1) == splits - 1;  // and the last one sets it back to 0
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  float sum = 0;
  for (int at = threadIdx.x; at < splits; at += THREADS) sum += __ldcg(parts + row * splits + at);
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[row] = rounded<T>(sum / divisor);
}

// n is a multiple of a vector's lanes, x starts on 16 bytes, and group is a power of two up to 32.
template <typename T>
__device__ void short_rows(const T* x, T* out, long long rows, long long n, int group, float divisor) {
  const long long row = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) / group;
  const int lane = threadIdx.x % group;
  float sum = 0;
  if (row < rows) {
    const auto* vectors = reinterpret_cast<const Vector<T>*>(x + row * n);
    for (long long at = lane; at < n / Vector<T>::LANES; at += group) sum += sum_of(read(vectors + at));
  }
  for (int step = group / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
  if (lane == 0 && row < rows) out[row] = rounded<T>(sum / divisor);
}

#define REDUCTION(DTYPE, T)                                                                                \
  extern "C" __global__ void __launch_bounds__(THREADS) long_rows_##DTYPE(                                 \
      const T* x, T* out, float* parts, unsigned* tickets, long long n, int splits, float divisor) {       \
    long_rows<T>(x, out, parts, tickets, n, splits, divisor);                                              \
  }                                                                                                        \
  extern "C" __global__ void __launch_bounds__(THREADS) short_rows_##DTYPE(                                \
      const T* x, T* out, long long rows, long long n, int group, float divisor) {                         \
    short_rows<T>(x, out, rows, n, group, divisor);                                                        \
  }

REDUCTION(fp32, float)
REDUCTION(fp16, __half)
REDUCTION(bf16, __nv_bfloat16)
