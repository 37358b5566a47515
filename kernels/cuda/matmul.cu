// C = A B for row-major A [m, k], B [k, n] and C [m, n], added up in fp32: a ladder of two steps.
//
// naive: a thread owns an element of C and reads a row of A and a column of B from global memory.
// tiled: a block owns 128 x 128 of C and shares what it reads through shared memory.  fp32 is multiplied by FMA, 8 x 8
// elements a thread, two tiles of k in turns; fp16 and bf16 by tensor cores (mma.sync), 64 x 32 elements a warp, three
// tiles under way.  bf16 tensor cores, and the copies that need no registers, are of compute capability 8.0.

#include <cuda_pipeline.h>

#include "numbers.cuh"

constexpr int THREADS = 256;
constexpr int BLOCK_M = 128, BLOCK_N = 128;
constexpr int GROUP_M = 8;  // rows of tiles whose blocks run side by side and find each other's operands in L2

template <typename T>
__device__ void naive(const T* a, const T* b, T* c, int m, int n, int k) {
  const int column = blockIdx.x * 32 + threadIdx.x % 32;
  const int row = blockIdx.y * (THREADS / 32) + threadIdx.x / 32;
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) {
    sum += widened(a[static_cast<long long>(row) * k + i]) * widened(b[static_cast<long long>(i) * n + column]);
  }
  c[static_cast<long long>(row) * n + column] = rounded<T>(sum);
}

struct Tile {
  int row, column;  // of its first element
};

// Tiles in the order of blocks: GROUP_M rows of tiles at a time, down these first.
__device__ Tile tile_of_block(int m, int n) {
  const int rows = (m + BLOCK_M - 1) / BLOCK_M, columns = (n + BLOCK_N - 1) / BLOCK_N;
  const int group = blockIdx.x / (GROUP_M * columns), within = blockIdx.x % (GROUP_M * columns);
  const int height = min(GROUP_M, rows - group * GROUP_M);
  return {(group * GROUP_M + within % height) * BLOCK_M, within / height * BLOCK_N};
}

// Four neighbours of a row, zeros beyond the matrix.
__device__ float4 four_of(const float* matrix, int row, int column, int rows, int columns) {
  const float* from = matrix + static_cast<long long>(row) * columns + column;
  if (row < rows && column + 3 < columns && columns % 4 == 0) return *reinterpret_cast<const float4*>(from);
  float4 found = {0, 0, 0, 0};
  if (row < rows) {
    if (column < columns) found.x = from[0];
    if (column + 1 < columns) found.y = from[1];
    if (column + 2 < columns) found.z = from[2];
    if (column + 3 < columns) found.w = from[3];
  }
  return found;
}

__device__ void tiled_fma(const float* a, const float* b, float* c, int m, int n, int k) {
  constexpr int BLOCK_K = 16;
  __shared__ float a_tile[2][BLOCK_K][BLOCK_M + 4];  // transposed: a thread reads four rows at once
  __shared__ float b_tile[2][BLOCK_K][BLOCK_N];
  const Tile tile = tile_of_block(m, n);
  const int a_row = threadIdx.x / 4, a_column = threadIdx.x % 4 * 4;
  const int b_row = threadIdx.x / 32, b_column = threadIdx.x % 32 * 4;
  // Of its 8 x 8 elements a thread's halves lie 64 apart, so that neighbours read neighbouring banks.
  const int first_row = threadIdx.x / 16 * 4, first_column = threadIdx.x % 16 * 4;
  float4 a_next[2], b_next[2];
  float sum[8][8] = {};

  const auto read = [&](int at) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      a_next[half] = four_of(a, tile.row + a_row + 64 * half, at + a_column, m, k);
      b_next[half] = four_of(b, at + b_row + 8 * half, tile.column + b_column, k, n);
    }
  };
  const auto share = [&](int buffer) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      a_tile[buffer][a_column][a_row + 64 * half] = a_next[half].x;
      a_tile[buffer][a_column + 1][a_row + 64 * half] = a_next[half].y;
      a_tile[buffer][a_column + 2][a_row + 64 * half] = a_next[half].z;
      a_tile[buffer][a_column + 3][a_row + 64 * half] = a_next[half].w;
      *reinterpret_cast<float4*>(&b_tile[buffer][b_row + 8 * half][b_column]) = b_next[half];
    }
    __syncthreads();
  };

  read(0);
  share(0);
  int buffer = 0;
  for (int at = 0; at < k; at += BLOCK_K, buffer ^= 1) {
    if (at + BLOCK_K < k) read(at + BLOCK_K);  // on its way while this tile is multiplied
#pragma unroll
    for (int i = 0; i < BLOCK_K; ++i) {
      float left[8], right[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(left + 4 * half) =
            *reinterpret_cast<const float4*>(&a_tile[buffer][i][first_row + 64 * half]);
        *reinterpret_cast<float4*>(right + 4 * half) =
            *reinterpret_cast<const float4*>(&b_tile[buffer][i][first_column + 64 * half]);
      }
#pragma unroll
      for (int row = 0; row < 8; ++row) {
#pragma unroll
        for (int column = 0; column < 8; ++column) sum[row][column] += left[row] * right[column];
      }
    }
    if (at + BLOCK_K < k) share(buffer ^ 1);
  }

#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = tile.row + first_row + i % 4 + i / 4 * 64;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = tile.column + first_column + j % 4 + j / 4 * 64;
      if (row < m && column < n) c[static_cast<long long>(row) * n + column] = sum[i][j];
    }
  }
}

// Four 8 x 8 matrices of 16-bit elements from shared memory, as tensor cores take them: lane i gives the address of row
// i % 8 of matrix i / 8, and gets two elements of each.
__device__ void load_matrices(uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

__device__ void load_transposed(uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

#if __CUDA_ARCH__ >= 800
#define MMA_16(DTYPE)                                                                                            \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." DTYPE "." DTYPE                                          \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                            \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                          \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]))
#else  // half as much of k an instruction, and fp16 alone
#define MMA_8(I)                                                                                                 \
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                          \
               : "r"(left[2 * I]), "r"(left[2 * I + 1]), "r"(right[I]))
#define MMA_16(DTYPE) MMA_8(0); MMA_8(1)
#endif

// sum [16, 8] += left [16, 16] right [16, 8], by a warp.
template <typename T>
__device__ void multiply(float (&sum)[4], const uint32_t (&left)[4], const uint32_t* right);
template <>
__device__ void multiply<__half>(float (&sum)[4], const uint32_t (&left)[4], const uint32_t* right) {
  MMA_16("f16");
}
#if __CUDA_ARCH__ >= 800
template <>
__device__ void multiply<__nv_bfloat16>(float (&sum)[4], const uint32_t (&left)[4], const uint32_t* right) {
  MMA_16("bf16");
}
#endif

// k and n are multiples of 8, and A and B start on 16 bytes.
template <typename T>
__device__ void tiled_tensor_cores(const T* a, const T* b, T* c, int m, int n, int k) {
  constexpr int BLOCK_K = 16, STAGES = 4;
  constexpr int PAD = 8;  // rows a multiple of 16 bytes, and eight of them in different banks
  constexpr int WARP_M = 64, WARP_N = 32;
  __shared__ alignas(16) T a_tiles[STAGES][BLOCK_M][BLOCK_K + PAD];
  __shared__ alignas(16) T b_tiles[STAGES][BLOCK_K][BLOCK_N + PAD];
  const Tile tile = tile_of_block(m, n);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BLOCK_N / WARP_N) * WARP_M, warp_column = warp % (BLOCK_N / WARP_N) * WARP_N;

  // A thread copies 16 bytes, 8 elements, of each tile; those beyond the matrices are zeros.
  const int a_row = threadIdx.x / (BLOCK_K / 8), a_column = threadIdx.x % (BLOCK_K / 8) * 8;
  const int b_row = threadIdx.x / (BLOCK_N / 8), b_column = threadIdx.x % (BLOCK_N / 8) * 8;
  const bool in_m = tile.row + a_row < m, in_n = tile.column + b_column < n;
  const T* a_from = a + static_cast<long long>(in_m ? tile.row + a_row : 0) * k + a_column;
  const T* b_from = b + static_cast<long long>(b_row) * n + (in_n ? tile.column + b_column : 0);
  const auto copy = [&](int step) {
    const int at = step * BLOCK_K, stage = step % STAGES;
    const bool in_a = in_m && at + a_column < k, in_b = in_n && at + b_row < k;
    // The last argument counts the bytes that are filled with zeros instead of being read.
    __pipeline_memcpy_async(&a_tiles[stage][a_row][a_column], in_a ? a_from + at : a, 16, in_a ? 0 : 16);
    __pipeline_memcpy_async(&b_tiles[stage][b_row][b_column], in_b ? b_from + static_cast<long long>(at) * n : b, 16,
                            in_b ? 0 : 16);
    __pipeline_commit();
  };

  float sum[WARP_M / 16][WARP_N / 8][4] = {};
  for (int step = 0; step < STAGES - 1; ++step) copy(step);
  for (int step = 0; step * BLOCK_K < k; ++step) {
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();  // this tile is there, and nobody reads the one before it any more
    copy(step + STAGES - 1);
    const int stage = step % STAGES;
    uint32_t left[WARP_M / 16][4], right[WARP_N / 16][4];  // of right 16 columns at a time
#pragma unroll
    for (int i = 0; i < WARP_M / 16; ++i) {
      load_matrices(left[i], &a_tiles[stage][warp_row + 16 * i + lane % 16][lane / 16 * 8]);
    }
#pragma unroll
    for (int j = 0; j < WARP_N / 16; ++j) {
      load_transposed(right[j], &b_tiles[stage][lane % 16][warp_column + 16 * j + lane / 16 * 8]);
    }
#pragma unroll
    for (int i = 0; i < WARP_M / 16; ++i) {
#pragma unroll
      for (int j = 0; j < WARP_N / 8; ++j) multiply<T>(sum[i][j], left[i], &right[j / 2][j % 2 * 2]);
    }
  }

#pragma unroll
  for (int i = 0; i < WARP_M / 16; ++i) {
#pragma unroll
    for (int j = 0; j < WARP_N / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // a lane has two neighbours of each half's rows
        const int row = tile.row + warp_row + 16 * i + 8 * half + lane / 4;
        const int column = tile.column + warp_column + 8 * j + lane % 4 * 2;
        alignas(4) const T pair[2] = {rounded<T>(sum[i][j][2 * half]), rounded<T>(sum[i][j][2 * half + 1])};
        if (row < m && column < n) {
          *reinterpret_cast<uint32_t*>(c + static_cast<long long>(row) * n + column) =
              *reinterpret_cast<const uint32_t*>(pair);
        }
      }
    }
  }
}

#define MATMUL(NAME, KERNEL, T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS) NAME(const T* a, const T* b, T* c, int m, int n, int k) { \
    KERNEL(a, b, c, m, n, k);                                                                                      \
  }

MATMUL(naive_fp32, naive, float)
MATMUL(naive_fp16, naive, __half)
MATMUL(naive_bf16, naive, __nv_bfloat16)
MATMUL(tiled_fp32, tiled_fma, float)
MATMUL(tiled_fp16, tiled_tensor_cores, __half)
#if __CUDA_ARCH__ >= 800
MATMUL(tiled_bf16, tiled_tensor_cores, __nv_bfloat16)
#endif
