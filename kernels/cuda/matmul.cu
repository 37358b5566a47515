// C = A B for row-major A [m, k], B [k, n] and C [m, n], added up in fp32: a ladder of two steps.
//
// naive: a thread owns an element of C and reads a row of A and a column of B from global memory.
// tiled: a block owns 128 x 128 of C and shares what it reads through shared memory, two tiles of k in turns.  fp32 is
// multiplied by FMA, 8 x 8 elements a thread; fp16 and bf16 by tensor cores (wmma), 64 x 32 elements a warp.  bf16
// tensor cores, and the copies that need no registers, are of compute capability 8.0.

#include <cuda_pipeline.h>
#include <mma.h>

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

// k and n are multiples of 8, and A and B start on 16 bytes.
template <typename T>
__device__ void tiled_tensor_cores(const T* a, const T* b, T* c, int m, int n, int k) {
  using namespace nvcuda;
  constexpr int BLOCK_K = 32, PAD = 8;  // rows a multiple of 16 bytes, and eight of them in different banks
  constexpr int WARP_M = 64, WARP_N = 32;
  struct Tiles {
    T a[2][BLOCK_M][BLOCK_K + PAD];
    T b[2][BLOCK_K][BLOCK_N + PAD];
  };
  __shared__ union {
    Tiles tiles;
    float result[THREADS / 32][16][16 + 4];  // a piece of C of each warp, on its way to be rounded
  } shared;
  const Tile tile = tile_of_block(m, n);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BLOCK_N / WARP_N) * WARP_M, warp_column = warp % (BLOCK_N / WARP_N) * WARP_N;

  const auto copy = [&](int buffer, int at) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int chunk = threadIdx.x + half * THREADS;  // of 8 elements, 16 bytes
      const int a_row = chunk / (BLOCK_K / 8), a_column = chunk % (BLOCK_K / 8) * 8;
      const int b_row = chunk / (BLOCK_N / 8), b_column = chunk % (BLOCK_N / 8) * 8;
      const bool in_a = tile.row + a_row < m && at + a_column < k;
      const bool in_b = at + b_row < k && tile.column + b_column < n;
      const T* a_from = in_a ? a + static_cast<long long>(tile.row + a_row) * k + at + a_column : a;
      const T* b_from = in_b ? b + static_cast<long long>(at + b_row) * n + tile.column + b_column : b;
      // The last argument counts the bytes that are filled with zeros instead of being read.
      __pipeline_memcpy_async(&shared.tiles.a[buffer][a_row][a_column], a_from, 16, in_a ? 0 : 16);
      __pipeline_memcpy_async(&shared.tiles.b[buffer][b_row][b_column], b_from, 16, in_b ? 0 : 16);
    }
    __pipeline_commit();
  };

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[WARP_M / 16][WARP_N / 16];
#pragma unroll
  for (auto& row : sum) {
    for (auto& piece : row) wmma::fill_fragment(piece, 0.0f);
  }

  copy(0, 0);
  int buffer = 0;
  for (int at = 0; at < k; at += BLOCK_K, buffer ^= 1) {
    __pipeline_wait_prior(0);
    __syncthreads();  // this tile is there, and nobody reads the other one any more
    if (at + BLOCK_K < k) copy(buffer ^ 1, at + BLOCK_K);
#pragma unroll
    for (int i = 0; i < BLOCK_K; i += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left[WARP_M / 16];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major> right[WARP_N / 16];
#pragma unroll
      for (int row = 0; row < WARP_M / 16; ++row) {
        wmma::load_matrix_sync(left[row], &shared.tiles.a[buffer][warp_row + 16 * row][i], BLOCK_K + PAD);
      }
#pragma unroll
      for (int column = 0; column < WARP_N / 16; ++column) {
        wmma::load_matrix_sync(right[column], &shared.tiles.b[buffer][i][warp_column + 16 * column], BLOCK_N + PAD);
      }
#pragma unroll
      for (int row = 0; row < WARP_M / 16; ++row) {
#pragma unroll
        for (int column = 0; column < WARP_N / 16; ++column) {
          wmma::mma_sync(sum[row][column], left[row], right[column], sum[row][column]);
        }
      }
    }
  }

  __syncthreads();  // the results take the place of the tiles
  // Which elements of a piece a lane holds is not said, so it goes through shared memory to be rounded and written.
#pragma unroll
  for (int i = 0; i < WARP_M / 16; ++i) {
#pragma unroll
    for (int j = 0; j < WARP_N / 16; ++j) {
      wmma::store_matrix_sync(&shared.result[warp][0][0], sum[i][j], 16 + 4, wmma::mem_row_major);
      __syncwarp();
      const int row = tile.row + warp_row + 16 * i + lane / 2;
      const int column = tile.column + warp_column + 16 * j + lane % 2 * 8;
      if (row < m && column < n) {
        Vector<T> written;
#pragma unroll
        for (int at = 0; at < 8; ++at) {
          written.lanes[at] = rounded<T>(shared.result[warp][lane / 2][lane % 2 * 8 + at]);
        }
        *reinterpret_cast<Vector<T>*>(c + static_cast<long long>(row) * n + column) = written;
      }
      __syncwarp();
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
