// The chain as one persistent kernel: every block is a worker that takes instructions from a table in ascending order,
// waits for their counters, runs them and publishes them. Ordering is the handbook's: a counter is read with
// ld.acquire.gpu and raised with red.release.gpu by one thread, after the barrier that ends the block's writes.
//
// BLOCK            threads a block
// VECTOR           floats a thread and instruction: 1, 2 or 4
// PREFETCH         0 an instruction and its weights are loaded when their turn comes, 1 instructions are loaded ahead,
//                  2 weights too, into registers; both are under way before the wait before them ends
// QUEUE            0 worker w runs w, w + grid, ...; 1 workers claim the next number from a counter
// POLL             0 the first warp polls and a barrier lets the others go; 1 every warp polls; 2 as 0, with two relaxed
//                  loads in flight and an acquire fence after them
// COUNTER_STRIDE   words from one counter to the next; 32: a line of 128 bytes each
// TIMELINE, CHAOS  1: record every instruction; 1: sleep for random times wherever order matters
#include "megakernel/common.cuh"

#ifndef PREFETCH
#define PREFETCH 2
#endif
#ifndef QUEUE
#define QUEUE 0
#endif
#ifndef POLL
#define POLL 0
#endif

constexpr int STOP = 0;  // opcodes: table.Opcode

struct Instruction {
  int opcode, signals, first_dependency, dependencies, layer, first, input_first, elements;
};

struct Item {
  int number;
  u64 fetch_ns;
  Instruction instruction;
};

// ---- Ordering

// What a dependency comes to in this run.
struct Wait {
  const unsigned* counter;
  int number;
  unsigned wanted;
};

__device__ __forceinline__ Wait wait_of(const Job& job, int4 dependency) {
  return {job.counters + static_cast<u64>(dependency.x) * COUNTER_STRIDE, dependency.x,
          static_cast<unsigned>(job.epoch) * dependency.z + dependency.y};
}

// Returns false where the watchdog ended the wait.
__device__ __forceinline__ bool wait_for(const Job& job, int number, const Wait& wait) {
  const unsigned* const counter = wait.counter;
  const unsigned wanted = wait.wanted;
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
    since_ns = watch(job, number, wait.number, counter, wanted, since_ns);
    if (since_ns == STOPPED) return false;
  }
  fence_acquire_release();
#else
  while (is_behind(load_acquire(counter), wanted)) {
    if (++polls % POLLS_A_CHECK) continue;
    since_ns = watch(job, number, wait.number, counter, wanted, since_ns);
    if (since_ns == STOPPED) return false;
  }
#endif
  return true;
}

// A lane a dependency, the first 32 loaded before. Returns false where the watchdog ended a wait.
__device__ __forceinline__ bool wait_for_all(const Job& job, const Item& item, const Wait& wait) {
  const int lane = threadIdx.x % 32, count = item.instruction.dependencies;
  bool good = lane >= count || wait_for(job, item.number, wait);
  if (count > 32) {
    for (int d = lane + 32; good && d < count; d += 32) {
      good = wait_for(job, item.number, wait_of(job, job.dependencies[item.instruction.first_dependency + d]));
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

__device__ __forceinline__ const int4* item_at(const Job& job, int number) {
  const int last = static_cast<int>(job.instructions);
  return job.program + 2 * static_cast<u64>(number < last ? number : last);
}

__device__ __forceinline__ Item load_item(const int4* at, int number) {
  const u64 fetch_ns = stamp();
  const int4 head = load_now(at), operands = load_now(at + 1);
  return {number, fetch_ns,
          {head.x, head.y, head.z, head.w, operands.x, operands.y, operands.z, operands.w}};
}

// This lane's, or the table's first where it has none: so that loading needs no branch.
__device__ __forceinline__ const int4* dependency_at(const Job& job, const Instruction& instruction) {
  const int lane = threadIdx.x % 32;
  return job.dependencies + (lane < instruction.dependencies ? instruction.first_dependency + lane : 0);
}

// Thread 0 only: how many were claimed before; the first grid's worth of numbers is given out by block, so this claim's
// number is that many further. In PTX and without the addition: both would make the assembler wait here for the answer.
__device__ __forceinline__ int claim(const Job& job) {
  int before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(job.queue) : "memory");
  return before;
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

// ---- Weights ahead

struct Weights {
  Floats weight, bias;
};

// STOP's operands are 0: its weights are layer 0's, and nobody uses them.
__device__ __forceinline__ Weights fetch_weights(const Place& place) {
#if PREFETCH == 2
  return {load_ahead(place.weight), load_ahead(place.bias)};
#else
  return {};
#endif
}

// ---- One instruction, from its wait to its signal. False: the block has to stop, and nothing was published.
// `weights` are there with PREFETCH 2.

__device__ __forceinline__ bool run(const Job& job, const Item& item, const Place& place, const Wait& wait,
                                    const Weights& weights, Recorder& recorder, int* slot, int claimed) {
  delay(job, item.number, 0);
  const u64 wait_ns = stamp();
  bool good = true;
  if (item.instruction.dependencies) {
#if POLL == 1
    good = wait_for_all(job, item, wait);
#else
    if (threadIdx.x < 32) good = wait_for_all(job, item, wait);
    __syncthreads();
#endif
  }
  const u64 execute_ns = stamp();
  delay(job, item.number, 1);
  // after a wait that the watchdog ended this computes nonsense, in bounds: it is never published
  const Floats in = load(place.input);
#if PREFETCH == 2
  const Floats weight = weights.weight, bias = weights.bias;
#else
  const Floats weight = load(place.weight), bias = load(place.bias);
#endif
  delay(job, item.number, 2);
  store(place.output, scale(in, weight, bias));
  delay(job, item.number, 3);
#if QUEUE && PREFETCH
  if (threadIdx.x == 0) *slot = claimed + gridDim.x;  // the others read it after the barrier
#endif
  if (__syncthreads_or(!good)) return false;
  delay(job, item.number, 4);
  if (threadIdx.x == 0 && item.instruction.signals >= 0) {
    release_add(job.counters + static_cast<u64>(item.instruction.signals) * COUNTER_STRIDE);
  }
  record(job, recorder, item.number, item.fetch_ns, wait_ns, execute_ns, stamp());
  return true;
}

// Each instruction is loaded when its turn comes.
__device__ __forceinline__ void run_in_turn(const Job& job, Recorder& recorder) {
#if QUEUE
  __shared__ int slots[2];
#endif
  int number = blockIdx.x;
  for (unsigned turn = 0;; ++turn) {
    const Item item = load_item(item_at(job, number), number);
    if (item.instruction.opcode == STOP) return;
    const int4 dependency = load_now(dependency_at(job, item.instruction));
    if (!run(job, item, place_of(job, item.instruction), wait_of(job, dependency), {}, recorder, nullptr,
             0)) return;
#if QUEUE
    if (threadIdx.x == 0) slots[turn & 1] = claim(job) + gridDim.x;
    __syncthreads();
    number = slots[turn & 1];
#else
    number += gridDim.x;
#endif
  }
}

// In a turn: the next one's weights and dependencies are requested, then the instruction after it, then this one waits.
__device__ __forceinline__ void run_ahead(const Job& job, Recorder& recorder) {
#if QUEUE
  __shared__ int slots[2];
#else
  int* const slots = nullptr;
#endif
  int upcoming = blockIdx.x + 2 * gridDim.x, second = blockIdx.x + gridDim.x, claimed = 0;
#if QUEUE
  if (threadIdx.x == 0) {
    slots[0] = claim(job) + gridDim.x;
    slots[1] = claim(job) + gridDim.x;
  }
  __syncthreads();
  second = slots[0];
  upcoming = slots[1];
  __syncthreads();
#endif
  const int first = blockIdx.x;
  Item now = load_item(item_at(job, first), first), next = load_item(item_at(job, second), second);
  int4 dependency = load_now(dependency_at(job, now.instruction));
  Place place = place_of(job, now.instruction);
  Weights weights = fetch_weights(place);
  for (unsigned turn = 0; now.instruction.opcode != STOP; ++turn) {
    // Addresses first, then all loads, and no use of a loaded register before the wait: the assembler counts these
    // loads in one scoreboard, so that a use of any of them waits for all, the newest too.
    const Wait wait = wait_of(job, dependency);
    const Place next_place = place_of(job, next.instruction);
    const int4* const next_dependency_at = dependency_at(job, next.instruction);
    const int4* const far_at = item_at(job, upcoming);
    const Weights next_weights = fetch_weights(next_place);
    const int4 next_dependency = load_now(next_dependency_at);
    const Item far = load_item(far_at, upcoming);
#if QUEUE
    if (threadIdx.x == 0) claimed = claim(job);
#endif
    if (!run(job, now, place, wait, weights, recorder, slots + (turn & 1), claimed)) return;
    now = next;
    next = far;
    place = next_place;
    dependency = next_dependency;
    weights = next_weights;
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
  record_block(job, recorder, started_ns);
}
