// What the megakernels share: the job, the clock, random delays, ordering, the watchdog, records.
// BLOCK, VECTOR, COUNTER_STRIDE, TIMELINE and CHAOS are megakernel.cu's.
#pragma once
#include "pdl.cuh"

#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef VECTOR
#define VECTOR 1
#endif
#ifndef COUNTER_STRIDE
#define COUNTER_STRIDE 32
#endif
#ifndef TIMELINE
#define TIMELINE 0
#endif
#ifndef CHAOS
#define CHAOS 0
#endif

typedef unsigned long long u64;

constexpr unsigned POLLS_A_CHECK = 256;  // the watchdog looks at the clock this seldom, so that polling stays short
constexpr u64 STOPPED = ~0ull;

// Every field has 8 bytes, in the order of gpu.JOB.
struct Job {
  const int4* program;       // two int4 an instruction, packing.INSTRUCTION; the one after the last is STOP
  const int4* dependencies;  // {counter, count, count of a whole run, -}
  u64 instructions;
  unsigned* counters;        // never reset: run number `epoch` starts at epoch x the count of a whole run
  unsigned* queue;           // of this run, 0
  u64 epoch;
  const float* start;
  float* buffer_0;
  float* buffer_1;
  const float* weights;
  const float* biases;
  u64 size;
  int* report;               // {stopped, block, instruction, counter, wanted, seen}
  u64 timeout_ns;
  u64* records;
  u64 capacity;              // records a block
  u64* blocks;               // {started, ended, multiprocessor, dropped} a block
  u64 chaos_seed;
  u64 chaos_ns;
  u64 layers;                // the rest is for lockstep.cu
  u64 rotate;                // in blocks
  u64* pairs;                // two buffers of {float, epoch}
  u64 withheld;              // a test's instruction whose signal is never given, or past the last
};

struct alignas(4 * VECTOR) Floats {
  float value[VECTOR];
};

__device__ __forceinline__ u64 stamp() {
#if TIMELINE
  return threadIdx.x == 0 ? device_time_ns() : 0;
#else
  return 0;
#endif
}

__device__ __forceinline__ void delay(const Job& job, int number, unsigned point) {
#if CHAOS
  unsigned mix = static_cast<unsigned>(job.chaos_seed) ^ (blockIdx.x * 32 + threadIdx.x / 32) * 0x9e3779b1u;
  mix = (mix ^ static_cast<unsigned>(number) * 8u ^ point) * 0x85ebca6bu;
  mix = (mix ^ (mix >> 15)) * 0xc2b2ae35u;
  mix ^= mix >> 13;
  if (mix & 1) __nanosleep((mix >> 8) % static_cast<unsigned>(job.chaos_ns));
#endif
}

// ---- Ordering

__device__ __forceinline__ unsigned load_acquire(const unsigned* at) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ unsigned load_relaxed(const unsigned* at) {
  unsigned value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ void fence_acquire_release() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ __forceinline__ void release_add(unsigned* at) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory");
}

__device__ __forceinline__ void store_release(unsigned* at, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// Counters run on from run to run, and past 2^32.
__device__ __forceinline__ bool is_behind(unsigned seen, unsigned wanted) {
  return static_cast<int>(seen - wanted) < 0;
}

// Since when this wait lasts, or STOPPED: it has lasted too long, or another block has given up. `at` is what is waited
// for, where that can be read.
__device__ __noinline__ u64 watch(const Job& job, int number, int counter, const unsigned* at, unsigned wanted,
                                  u64 since_ns) {
  if (load_relaxed(reinterpret_cast<unsigned*>(job.report))) return STOPPED;
  const u64 now_ns = device_time_ns();
  if (since_ns == 0) return now_ns;
  if (now_ns - since_ns < job.timeout_ns) return since_ns;
  if (atomicCAS(job.report, 0, 1) == 0) {
    job.report[1] = blockIdx.x;
    job.report[2] = number;
    job.report[3] = counter;
    job.report[4] = wanted;
    job.report[5] = at ? load_relaxed(at) : 0;
  }
  return STOPPED;
}

// ---- Values

// Never read-only loads: another block wrote the values while this kernel ran.
__device__ __forceinline__ Floats load(const float* at) { return *reinterpret_cast<const Floats*>(at); }

__device__ __forceinline__ void store(float* at, const Floats& values) { *reinterpret_cast<Floats*>(at) = values; }

__device__ __forceinline__ Floats scale(Floats in, const Floats& weight, const Floats& bias) {
#pragma unroll
  for (int k = 0; k < VECTOR; ++k) in.value[k] = fmaf(fmaxf(in.value[k], 0.f), weight.value[k], bias.value[k]);
  return in;
}

// Weights into registers. Volatile, so that the loads are issued where they stand: before the wait.
__device__ __forceinline__ Floats load_ahead(const float* at) {
  Floats to;
#if VECTOR == 4
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to.value[0]), "=f"(to.value[1]), "=f"(to.value[2]), "=f"(to.value[3]) : "l"(at));
#elif VECTOR == 2
  asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(to.value[0]), "=f"(to.value[1]) : "l"(at));
#else
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(to.value[0]) : "l"(at));
#endif
  return to;
}

// ---- Records: thread 0 keeps them in registers until the instruction is published, so that storing them is not in it

struct Recorder {
  u64 used, dropped;
};

__device__ __forceinline__ unsigned multiprocessor() {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

__device__ __forceinline__ void record(const Job& job, Recorder& recorder, int number, u64 fetch_ns, u64 wait_ns,
                                       u64 execute_ns, u64 end_ns) {
#if TIMELINE
  if (threadIdx.x != 0) return;
  if (recorder.used == job.capacity) {
    ++recorder.dropped;
    return;
  }
  u64* at = job.records + (blockIdx.x * job.capacity + recorder.used++) * 6;
  at[0] = fetch_ns;
  at[1] = wait_ns;
  at[2] = execute_ns;
  at[3] = end_ns;
  at[4] = number;
  at[5] = 1;  // written: the host clears the buffer before
#endif
}

__device__ __forceinline__ void record_block(const Job& job, const Recorder& recorder, u64 started_ns) {
#if TIMELINE
  if (threadIdx.x == 0) {
    u64* mine = job.blocks + 4 * blockIdx.x;
    mine[0] = started_ns;
    mine[1] = device_time_ns();
    mine[2] = multiprocessor();
    mine[3] = recorder.dropped;
  }
#endif
}
