// One layer of the chain: out[i] = relu(in[i]) * weight[i] + bias[i].
// TRIGGER says where the block lets the next kernel start: 0 never (its exit does), 1 after the output is stored,
// 2 at once. All three are correct, because every kernel of the chain waits before it touches shared data.
#include "pdl.cuh"

#ifndef TRIGGER
#define TRIGGER 1
#endif
#ifndef READ_ONLY_WEIGHTS
#define READ_ONLY_WEIGHTS 0
#endif

// The handbook declares the weights __restrict__. They are then read-only loads (ld.global.nc), and those the assembler
// moves behind the wait (SASS: ACQBULK before LDG.CONSTANT), so that the prologue is empty. Plain loads stay before it.
#if READ_ONLY_WEIGHTS
#define WEIGHTS const float* __restrict__
#else
#define WEIGHTS const float*
#endif

// `in` is never __restrict__: with PDL the previous kernel may still be writing it when this one starts, and the
// read-only cache would not see those writes.
extern "C" __global__ void layer(const float* in, float* out, WEIGHTS weight, WEIGHTS bias, int n) {
#if TRIGGER == 2
  let_next_kernel_start();
#endif
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float w = 0.f, b = 0.f;
  if (i < n) {  // the prologue reads weights only: nothing that another kernel of the chain writes
    w = weight[i];
    b = bias[i];
  }
  wait_for_previous_kernel();
  if (i < n) out[i] = fmaf(fmaxf(in[i], 0.f), w, b);  // two buffers in turn: the store must come after the wait too
#if TRIGGER == 1
  let_next_kernel_start();
#endif
}
