// A chain whose layers each stream their own weights: out[warp] = 3 * in[another block's warp] + sum of the warp's weights.
// Integers modulo 2^32, so that the sum does not depend on its order and NumPy can check it exactly.
#include "pdl.cuh"

#ifndef STAMPS
#define STAMPS 0  // 1: every block stores when it started, when its wait returned and when it ended
#endif
#ifndef UNROLL
#define UNROLL 4  // independent 16-byte loads in flight a thread
#endif

// 16 bytes past L1: weights are read once. `volatile` keeps it before the wait.
__device__ __forceinline__ uint4 load_weights(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

__device__ __forceinline__ unsigned sum_of(uint4 v) { return (v.x + v.y) + (v.z + v.w); }

// Valid in lane 0. It uses the loaded weights before the wait: left unused, the assembler moves read-only loads behind it.
__device__ __forceinline__ unsigned sum_over_lanes(unsigned sum) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(0xffffffffu, sum);
#else
  for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  return sum;
#endif
}

// The warp's share of the weights, valid in lane 0. Threads of the grid take vectors in turn.
__device__ __forceinline__ unsigned sum_of_warp(const uint4* weights, unsigned long long vectors) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long v = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; v + (UNROLL - 1) * step < vectors; v += UNROLL * step) {
    uint4 loaded[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) loaded[k] = load_weights(weights + v + k * step);
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) sum += sum_of(loaded[k]);
  }
#pragma unroll 1
  for (; v < vectors; v += step) sum += sum_of(load_weights(weights + v));
  return sum_over_lanes(sum);
}

__device__ __forceinline__ unsigned warp_of_grid() {
  return (blockIdx.x * blockDim.x + threadIdx.x) / 32;
}

// blockDim.x is a multiple of 32. `stamps` has three values a block and is not touched without STAMPS.
extern "C" __global__ void layer(const unsigned* in, unsigned* out, const uint4* weights, unsigned long long vectors,
                                 unsigned long long* stamps) {
#if STAMPS
  const unsigned long long started_ns = device_time_ns();
#endif
  const unsigned sum = sum_of_warp(weights, vectors);
  wait_for_previous_kernel();
#if STAMPS
  const unsigned long long released_ns = device_time_ns();
#endif
  if (threadIdx.x % 32 == 0) {
    // another block's value: a kernel that did not wait for the whole previous grid is caught by the check
    const unsigned warp = warp_of_grid(), warps = gridDim.x * (blockDim.x / 32);
    out[warp] = 3 * in[(warp + blockDim.x / 32) % warps] + sum;
  }
#if STAMPS
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned long long ended_ns = device_time_ns();
    unsigned long long* mine = stamps + 3ull * blockIdx.x;
    mine[0] = started_ns;
    mine[1] = released_ns;
    mine[2] = ended_ns;
  }
#endif
  let_next_kernel_start();
}

// The same loads alone: the read bandwidth that a layer is compared with.
extern "C" __global__ void read_only(unsigned* out, const uint4* weights, unsigned long long vectors) {
  const unsigned sum = sum_of_warp(weights, vectors);
  if (threadIdx.x % 32 == 0) out[warp_of_grid()] = sum;
}

// word[j] = multiplier * j + 1 modulo 2^32: every address has its own value, and sums have a closed form.
extern "C" __global__ void fill(uint4* weights, unsigned long long vectors, unsigned multiplier) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long v = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; v < vectors;
       v += step) {
    const unsigned first = multiplier * static_cast<unsigned>(4 * v) + 1;
    weights[v] = make_uint4(first, first + multiplier, first + 2 * multiplier, first + 3 * multiplier);
  }
}
