// The chain as one persistent kernel: every block is a worker that takes instructions from a table in ascending order,
// waits for their counters, runs them and publishes them. Ordering is the handbook's: a counter is read with
// ld.acquire.gpu and raised with red.release.gpu by one thread, after the barrier that ends the block's writes.
//
// BLOCK            threads a block
// VECTOR           floats a thread and instruction: 1, 2 or 4
// PREFETCH         0 an instruction and its weights are loaded when their turn comes, 1 instructions are loaded ahead,
//                  2 weights too (cp.async into shared memory); both are under way before the wait before them ends
// QUEUE            0 worker w runs w, w + grid, ...; 1 workers claim the next number from a counter
// POLL             0 the first warp polls and a barrier lets the others go; 1 every warp polls; 2 as 0, with two relaxed
//                  loads in flight and an acquire fence after them
// COUNTER_STRIDE   words from one counter to the next; 32: a line of 128 bytes each
// TIMELINE, CHAOS  1: record every instruction; 1: sleep for random times wherever order matters
#include "pdl.cuh"

#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef VECTOR
#define VECTOR 1
#endif
#ifndef PREFETCH
#define PREFETCH 2
#endif
#ifndef QUEUE
#define QUEUE 0
#endif
#ifndef POLL
#define POLL 0
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

constexpr int STOP = 0;  // opcodes: table.Opcode
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
};

struct Instruction {
  int opcode, signals, first_dependency, dependencies, layer, first, input_first, elements;
};

struct Item {
  int number;
  u64 fetch_ns;
  Instruction instruction;
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

// Counters run on from run to run, and past 2^32.
__device__ __forceinline__ bool is_behind(unsigned seen, unsigned wanted) {
  return static_cast<int>(seen - wanted) < 0;
}

// Since when this wait lasts, or STOPPED: it has lasted too long, or another block has given up.
__device__ __noinline__ u64 watch(const Job& job, int number, int counter, unsigned wanted, u64 since_ns) {
  if (load_relaxed(reinterpret_cast<unsigned*>(job.report))) return STOPPED;
  const u64 now_ns = device_time_ns();
  if (since_ns == 0) return now_ns;
  if (now_ns - since_ns < job.timeout_ns) return since_ns;
  if (atomicCAS(job.report, 0, 1) == 0) {
    job.report[1] = blockIdx.x;
    job.report[2] = number;
    job.report[3] = counter;
    job.report[4] = wanted;
    job.report[5] = load_relaxed(job.counters + static_cast<u64>(counter) * COUNTER_STRIDE);
  }
  return STOPPED;
}

// Returns false where the watchdog ended the wait.
__device__ __forceinline__ bool wait_for(const Job& job, int number, int4 dependency) {
  const unsigned* counter = job.counters + static_cast<u64>(dependency.x) * COUNTER_STRIDE;
  const unsigned wanted = static_cast<unsigned>(job.epoch) * dependency.z + dependency.y;
  u64 since_ns = 0;
  unsigned polls = 0;
#if POLL == 2
  unsigned seen = load_relaxed(counter);
  const unsigned started = clock();
  while (clock() - started < 150) {  // about half of a load's way to L2 and back: so the two look in turn
  }
  unsigned later = load_relaxed(counter);
  while (is_behind(seen, wanted)) {
    seen = load_relaxed(counter);
    if (!is_behind(later, wanted)) break;
    later = load_relaxed(counter);
    if (++polls % POLLS_A_CHECK) continue;
    since_ns = watch(job, number, dependency.x, wanted, since_ns);
    if (since_ns == STOPPED) return false;
  }
  fence_acquire_release();
#else
  while (is_behind(load_acquire(counter), wanted)) {
    if (++polls % POLLS_A_CHECK) continue;
    since_ns = watch(job, number, dependency.x, wanted, since_ns);
    if (since_ns == STOPPED) return false;
  }
#endif
  return true;
}

// A lane a dependency, the first 32 loaded before. Returns false where the watchdog ended a wait.
__device__ __forceinline__ bool wait_for_all(const Job& job, const Item& item, int4 dependency) {
  const int lane = threadIdx.x % 32, count = item.instruction.dependencies;
  bool good = lane >= count || wait_for(job, item.number, dependency);
  if (count > 32) {
    for (int d = lane + 32; good && d < count; d += 32) {
      good = wait_for(job, item.number, job.dependencies[item.instruction.first_dependency + d]);
    }
  }
  __syncwarp();
  return good;
}

// ---- Fetching

// Volatile, so that it is issued where it stands: before the wait.
__device__ __forceinline__ int4 load_now(const int4* at) {
  int4 v;
  asm volatile("ld.global.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}

__device__ __forceinline__ Item load_item(const Job& job, int number) {
  const u64 fetch_ns = stamp();
  const int last = static_cast<int>(job.instructions);
  const int4* at = job.program + 2 * static_cast<u64>(number < last ? number : last);
  const int4 head = load_now(at), operands = load_now(at + 1);
  return {number, fetch_ns,
          {head.x, head.y, head.z, head.w, operands.x, operands.y, operands.z, operands.w}};
}

__device__ __forceinline__ int4 load_dependency(const Job& job, const Instruction& instruction) {
  const int lane = threadIdx.x % 32;
  if (lane >= instruction.dependencies || (POLL != 1 && threadIdx.x >= 32)) return {0, 0, 0, 0};
  return load_now(job.dependencies + instruction.first_dependency + lane);
}

// Thread 0 only. The first grid's worth of numbers is given out by block.
__device__ __forceinline__ int claim(const Job& job) {
  return static_cast<int>(atomicAdd(job.queue, 1u) + gridDim.x);
}

// ---- Executing

struct Place {
  const float* input;
  float* output;
  const float* weight;
  const float* bias;
};

__device__ __forceinline__ Place place_of(const Job& job, const Instruction& instruction) {
  const u64 mine = static_cast<u64>(threadIdx.x) * VECTOR;
  const u64 weights = static_cast<u64>(instruction.layer) * job.size + instruction.first + mine;
  const bool odd = instruction.layer & 1;
  const float* source = instruction.layer == 0 ? job.start : odd ? job.buffer_0 : job.buffer_1;
  float* target = odd ? job.buffer_1 : job.buffer_0;
  return {source + instruction.input_first + mine, target + instruction.first + mine, job.weights + weights,
          job.biases + weights};
}

// Never read-only loads: another block wrote the values while this kernel ran.
__device__ __forceinline__ Floats load(const float* at) { return *reinterpret_cast<const Floats*>(at); }

__device__ __forceinline__ void store(float* at, const Floats& values) { *reinterpret_cast<Floats*>(at) = values; }

__device__ __forceinline__ Floats scale(Floats in, const Floats& weight, const Floats& bias) {
#pragma unroll
  for (int k = 0; k < VECTOR; ++k) in.value[k] = fmaf(fmaxf(in.value[k], 0.f), weight.value[k], bias.value[k]);
  return in;
}

// ---- Weights ahead. A thread copies what it will use itself, so no barrier guards the copies.

struct Stage {
  Floats weight[BLOCK], bias[BLOCK];
};

__device__ __forceinline__ void copy_ahead(const Floats* to, const float* from) {
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(4 * VECTOR) : "memory");
}

__device__ __forceinline__ void fetch_weights(const Job& job, const Instruction& instruction, Stage* stage) {
#if PREFETCH == 2
  if (instruction.opcode != STOP) {
    const Place place = place_of(job, instruction);
    copy_ahead(&stage->weight[threadIdx.x], place.weight);
    copy_ahead(&stage->bias[threadIdx.x], place.bias);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// All groups but the newest have landed.
__device__ __forceinline__ void wait_for_weights() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// ---- Records: thread 0 keeps them in registers until the instruction is published, so that storing them is not in it

struct Recorder {
  u64 used, dropped;
};

__device__ __forceinline__ unsigned multiprocessor() {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

__device__ __forceinline__ void record(const Job& job, Recorder& recorder, const Item& item, u64 wait_ns, u64 execute_ns,
                                       u64 end_ns) {
#if TIMELINE
  if (threadIdx.x != 0) return;
  if (recorder.used == job.capacity) {
    ++recorder.dropped;
    return;
  }
  u64* at = job.records + (blockIdx.x * job.capacity + recorder.used++) * 6;
  at[0] = item.fetch_ns;
  at[1] = wait_ns;
  at[2] = execute_ns;
  at[3] = end_ns;
  at[4] = item.number;
  at[5] = 1;  // written: the host clears the buffer before
#endif
}

// ---- One instruction, from its wait to its signal. False: the block has to stop, and nothing was published.
// `stage` holds the weights with PREFETCH 2.

__device__ __forceinline__ bool run(const Job& job, const Item& item, int4 dependency, const Stage* stage,
                                    Recorder& recorder, int* slot, int claimed) {
  const Place place = place_of(job, item.instruction);
#if PREFETCH == 2
  const Floats weight = stage->weight[threadIdx.x], bias = stage->bias[threadIdx.x];
#endif
  delay(job, item.number, 0);
  const u64 wait_ns = stamp();
  bool good = true;
  if (item.instruction.dependencies) {
#if POLL == 1
    good = wait_for_all(job, item, dependency);
#else
    if (threadIdx.x < 32) good = wait_for_all(job, item, dependency);
    __syncthreads();
#endif
  }
  const u64 execute_ns = stamp();
  delay(job, item.number, 1);
  // after a wait that the watchdog ended this computes nonsense, in bounds: it is never published
  const Floats in = load(place.input);
#if PREFETCH != 2
  const Floats weight = load(place.weight), bias = load(place.bias);
#endif
  delay(job, item.number, 2);
  store(place.output, scale(in, weight, bias));
  delay(job, item.number, 3);
#if QUEUE && PREFETCH
  if (threadIdx.x == 0) *slot = claimed;  // the others read it after the barrier
#endif
  if (__syncthreads_or(!good)) return false;
  delay(job, item.number, 4);
  if (threadIdx.x == 0 && item.instruction.signals >= 0) {
    release_add(job.counters + static_cast<u64>(item.instruction.signals) * COUNTER_STRIDE);
  }
  record(job, recorder, item, wait_ns, execute_ns, stamp());
  return true;
}

// Each instruction is loaded when its turn comes.
__device__ __forceinline__ void run_in_turn(const Job& job, Recorder& recorder) {
#if QUEUE
  __shared__ int slots[2];
#endif
  int number = blockIdx.x;
  for (unsigned turn = 0;; ++turn) {
    const Item item = load_item(job, number);
    if (item.instruction.opcode == STOP) return;
    const int4 dependency = load_dependency(job, item.instruction);
    if (!run(job, item, dependency, nullptr, recorder, nullptr, 0)) return;
#if QUEUE
    if (threadIdx.x == 0) slots[turn & 1] = claim(job);
    __syncthreads();
    number = slots[turn & 1];
#else
    number += gridDim.x;
#endif
  }
}

// In a turn: the instruction after next is requested, then the next one's weights and dependencies, then this one waits.
__device__ __forceinline__ void run_ahead(const Job& job, Recorder& recorder) {
#if QUEUE
  __shared__ int slots[2];
#else
  int* const slots = nullptr;
#endif
#if PREFETCH == 2
  __shared__ Stage stages[2];
#else
  Stage* const stages = nullptr;
#endif
  int upcoming = blockIdx.x + 2 * gridDim.x, second = blockIdx.x + gridDim.x, claimed = 0;
#if QUEUE
  if (threadIdx.x == 0) {
    slots[0] = claim(job);
    slots[1] = claim(job);
  }
  __syncthreads();
  second = slots[0];
  upcoming = slots[1];
  __syncthreads();
#endif
  Item now = load_item(job, blockIdx.x), next = load_item(job, second);
  int4 dependency = load_dependency(job, now.instruction);
  fetch_weights(job, now.instruction, stages);
  for (unsigned turn = 0; now.instruction.opcode != STOP; ++turn) {
    const Item far = load_item(job, upcoming);
#if QUEUE
    if (threadIdx.x == 0) claimed = claim(job);
#endif
    fetch_weights(job, next.instruction, stages + ((turn + 1) & 1));
    const int4 next_dependency = load_dependency(job, next.instruction);
#if PREFETCH == 2
    wait_for_weights();
#endif
    if (!run(job, now, dependency, stages + (turn & 1), recorder, slots + (turn & 1), claimed)) return;
    now = next;
    next = far;
    dependency = next_dependency;
#if QUEUE
    upcoming = slots[turn & 1];
#else
    upcoming += gridDim.x;
#endif
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) megakernel(const __grid_constant__ Job job) {
  const u64 started_ns = stamp();
  Recorder recorder = {0, 0};
#if PREFETCH
  run_ahead(job, recorder);
#else
  run_in_turn(job, recorder);
#endif
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
