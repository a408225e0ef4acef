// The chain as one persistent kernel without a table: block w runs elements w x BLOCK x VECTOR ... of every layer, which
// is what the table says for as many workers as blocks, so that nothing has to be fetched but weights, three layers ahead.
// What is measured here is the way from one layer to the next.
//
// SIGNAL  0 lean     as megakernel.cu: a barrier, one red.release a block; a thread polls, a barrier
//         1 warps    one red.release a warp, no barrier before it
//         2 flags    a word a block, st.release, no atomic; a warp polls all of them, a lane each
//         3 data     each value travels with its epoch, and its reader polls the value: no fence, no counter, no barrier.
//                    Waits for what it reads, not for a layer: comparable with counters a block
//         4 cluster  one cluster, barrier.cluster; values stay in shared memory and are read there by the other blocks
//         5 push     one cluster; values are stored into their reader's shared memory (st.async), whose mbarrier counts
//                    their bytes and a token from every block: a wait for the whole layer, without a fence
// AHEAD   0: weights are loaded after the wait
// The rest is megakernel.cu's.
#include "megakernel/common.cuh"

#ifndef SIGNAL
#define SIGNAL 0
#endif
#ifndef AHEAD
#define AHEAD 1
#endif

#define IN_CLUSTER (SIGNAL >= 4)

constexpr unsigned TOKEN_BYTES = 8;

struct Chain {
  const Job& job;
  unsigned me, blocks, layers, right, left;  // this block reads what `right` wrote; `left` reads what this one wrote
  unsigned run;                              // of the epochs: layer n of this run publishes run + n + 1
};

__device__ __forceinline__ Chain make_chain(const Job& job) {
  const unsigned me = blockIdx.x, blocks = gridDim.x, layers = static_cast<unsigned>(job.layers);
  const unsigned rotate = static_cast<unsigned>(job.rotate) % blocks;
  return {job, me, blocks, layers, (me + rotate) % blocks, (me + blocks - rotate) % blocks,
          static_cast<unsigned>(job.epoch) * layers};
}

__device__ __forceinline__ u64 element_of(unsigned block) {
  return (static_cast<u64>(block) * BLOCK + threadIdx.x) * VECTOR;
}

__device__ __forceinline__ bool withheld(const Chain& at, unsigned layer) {
  return layer * at.blocks + at.me == at.job.withheld;
}

__device__ __forceinline__ unsigned* word(const Job& job, unsigned number) {
  return job.counters + static_cast<u64>(number) * COUNTER_STRIDE;
}

// ---- Waiting: polls until `look` says so. Returns false where the watchdog ended it.

template <typename Look>
__device__ __forceinline__ bool poll(const Job& job, int number, int counter, const unsigned* at, unsigned wanted,
                                     Look look) {
  u64 since_ns = 0;
  unsigned polls = 0;
  while (!look()) {
    if (++polls % POLLS_A_CHECK) continue;
    since_ns = watch(job, number, counter, at, wanted, since_ns);
    if (since_ns == STOPPED) return false;
  }
  return true;
}

__device__ __forceinline__ bool wait_for_word(const Chain& at, unsigned layer, unsigned counter, unsigned wanted) {
  const unsigned* const to = word(at.job, counter);
  return poll(at.job, layer * at.blocks + at.me, counter, to, wanted,
              [&] { return !is_behind(load_acquire(to), wanted); });
}

// ---- Values with their epochs: one access of 8 or 16 bytes, which PTX says is never torn

struct Pair {
  float value;
  unsigned epoch;
};

__device__ __forceinline__ u64 packed(float value, unsigned epoch) {
  return static_cast<u64>(epoch) << 32 | __float_as_uint(value);
}

__device__ __forceinline__ Pair unpacked(u64 pair) {
  return {__uint_as_float(static_cast<unsigned>(pair)), static_cast<unsigned>(pair >> 32)};
}

__device__ __forceinline__ void load_pairs(const u64* at, u64 (&pairs)[VECTOR]) {
#if VECTOR == 1
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(pairs[0]) : "l"(at) : "memory");
#else
#pragma unroll
  for (int k = 0; k < VECTOR; k += 2) {
    asm volatile("{\n.reg .b128 both;\nld.relaxed.gpu.global.b128 both, [%2];\nmov.b128 {%0, %1}, both;\n}"
                 : "=l"(pairs[k]), "=l"(pairs[k + 1]) : "l"(at + k) : "memory");
  }
#endif
}

__device__ __forceinline__ void store_pairs(u64* at, const Floats& values, unsigned epoch) {
#if VECTOR == 1
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(at), "l"(packed(values.value[0], epoch)) : "memory");
#else
#pragma unroll
  for (int k = 0; k < VECTOR; k += 2) {
    asm volatile("{\n.reg .b128 both;\nmov.b128 both, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], both;\n}" ::"l"(at + k),
                 "l"(packed(values.value[k], epoch)), "l"(packed(values.value[k + 1], epoch)) : "memory");
  }
#endif
}

__device__ __forceinline__ u64* pairs_of(const Chain& at, unsigned layer, unsigned block) {
  return at.job.pairs + (layer & 1) * at.job.size + element_of(block);
}

__device__ __forceinline__ bool all_carry(const u64 (&pairs)[VECTOR], unsigned epoch) {
  bool there = true;
#pragma unroll
  for (int k = 0; k < VECTOR; ++k) there = there && unpacked(pairs[k]).epoch == epoch;
  return there;
}

// The values come from `right`. `left` has read what this thread's next store overwrites once its own pairs of the
// layer before are there: the loads of both are under way together.
__device__ __forceinline__ bool wait_for_pairs(const Chain& at, unsigned layer, Floats& in) {
  const u64* const from = pairs_of(at, layer - 1, at.right);
  const u64* const reader = pairs_of(at, layer - 1, at.left);
  const unsigned epoch = at.run + layer;
  const unsigned* const seen = reinterpret_cast<const unsigned*>(from) + 1;
  u64 pairs[VECTOR], others[VECTOR];
  const bool good = poll(at.job, layer * at.blocks + at.me, static_cast<int>(element_of(at.right)), seen, epoch, [&] {
    load_pairs(from, pairs);
    if (at.left == at.me) return all_carry(pairs, epoch);
    load_pairs(reader, others);
    return all_carry(pairs, epoch) && all_carry(others, epoch);
  });
#pragma unroll
  for (int k = 0; k < VECTOR; ++k) in.value[k] = unpacked(pairs[k]).value;
  return good;
}

// ---- Clusters

#if IN_CLUSTER

__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();  // aligned: the whole warp at once
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

struct alignas(16) Shared {
  Floats values[2][BLOCK];
  u64 tokens[2][32];
  u64 barriers[2];
};

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// The same place in another block's shared memory.
__device__ __forceinline__ unsigned mapped(const void* at, unsigned block) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(block));
  return there;
}

__device__ __forceinline__ Floats load_mapped(unsigned at) {
  Floats to;
#if VECTOR == 4
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to.value[0]), "=f"(to.value[1]), "=f"(to.value[2]), "=f"(to.value[3]) : "r"(at) : "memory");
#elif VECTOR == 2
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(to.value[0]), "=f"(to.value[1]) : "r"(at) : "memory");
#else
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(to.value[0]) : "r"(at) : "memory");
#endif
  return to;
}

// Stores into another block's shared memory, whose mbarrier then counts the bytes: visible to who waits for it.
__device__ __forceinline__ void push_values(unsigned to, const Floats& values, unsigned barrier) {
#if VECTOR == 4
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(values.value[0]), "f"(values.value[1]), "f"(values.value[2]), "f"(values.value[3]), "r"(barrier)
               : "memory");
#elif VECTOR == 2
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(values.value[0]), "f"(values.value[1]), "r"(barrier) : "memory");
#else
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
               "f"(values.value[0]), "r"(barrier) : "memory");
#endif
}

__device__ __forceinline__ void push_token(unsigned to, unsigned layer, unsigned barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(to),
               "l"(static_cast<u64>(layer)), "r"(barrier) : "memory");
}

// Thread 0: this barrier's next phase ends when values and tokens of one layer are there.
__device__ __forceinline__ void expect_layer(const Chain& at, u64* barrier) {
  const unsigned bytes = BLOCK * VECTOR * 4 + TOKEN_BYTES * at.blocks;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ bool has_ended(u64* barrier, unsigned parity) {
  unsigned ended;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
               "selp.u32 %0, 1, 0, p;\n}"
               : "=r"(ended) : "r"(shared_address(barrier)), "r"(parity) : "memory");
  return ended;
}

__device__ __forceinline__ void start_cluster(const Chain& at, Shared& shared) {
#if SIGNAL == 5
  if (threadIdx.x == 0) {
    for (int k = 0; k < 2; ++k) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&shared.barriers[k])) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int k = 0; k < 2; ++k) expect_layer(at, &shared.barriers[k]);
  }
  cluster_arrive();
  cluster_wait();
#endif
}

#endif

// ---- One layer: wait, take the input, publish

#if IN_CLUSTER
#define SHARED_PARAMETER , Shared& shared
#define SHARED_ARGUMENT , shared
#else
#define SHARED_PARAMETER
#define SHARED_ARGUMENT
#endif

// The input of `layer` once all that it needs is there; `execute_ns` is when that was. False where the watchdog ended
// the wait of this thread: its input is nonsense, from in bounds.
__device__ __forceinline__ bool take(const Chain& at, unsigned layer, Floats& in, u64& execute_ns SHARED_PARAMETER) {
  const Job& job = at.job;
  const int number = layer * at.blocks + at.me;
  bool good = true;
  if (layer == 0) {
    execute_ns = stamp();
    in = load(job.start + element_of(at.right));
    return true;
  }
  const unsigned before = layer - 1;
#if SIGNAL == 3
  good = wait_for_pairs(at, layer, in);
  execute_ns = stamp();
#elif SIGNAL == 4
  cluster_wait();
  execute_ns = stamp();
  in = load_mapped(mapped(&shared.values[before & 1][threadIdx.x], at.right));
#elif SIGNAL == 5
  u64* const barrier = &shared.barriers[before & 1];
  good = poll(job, number, before, nullptr, 1, [&] { return has_ended(barrier, before / 2 & 1); });
  execute_ns = stamp();
  if (good && threadIdx.x == 0) expect_layer(at, barrier);
  in = shared.values[before & 1][threadIdx.x];
#else
#if SIGNAL == 2
  if (threadIdx.x < 32) {
    for (unsigned block = threadIdx.x; good && block < at.blocks; block += 32) {
      good = wait_for_word(at, layer, block, at.run + layer);
    }
  }
#else
  const unsigned a_layer = SIGNAL == 1 ? at.blocks * (BLOCK / 32) : at.blocks;
  if (threadIdx.x == 0) good = wait_for_word(at, layer, before, (static_cast<unsigned>(job.epoch) + 1) * a_layer);
#endif
#if SIGNAL == 1
  good = !__syncthreads_or(!good);
#else
  __syncthreads();
#endif
  execute_ns = stamp();
  in = load((before & 1 ? job.buffer_1 : job.buffer_0) + element_of(at.right));
#endif
  delay(job, number, 1);
  return good;
}

// The values of `layer` become visible to those that wait for it. `good`: what `take` said; false: this thread, and with
// barriers between them its whole block, has to stop, and has told nobody that it is done.
__device__ __forceinline__ bool publish(const Chain& at, unsigned layer, const Floats& out, bool good SHARED_PARAMETER) {
  const Job& job = at.job;
  const int number = layer * at.blocks + at.me;
  const bool silent = withheld(at, layer);
  float* const output = (layer & 1 ? job.buffer_1 : job.buffer_0) + element_of(at.me);
  delay(job, number, 2);
#if SIGNAL == 1
  if (!good) return false;
  store(output, out);
  __syncwarp();
  delay(job, number, 3);
  if (threadIdx.x % 32 == 0 && !silent) release_add(word(job, layer));
#elif SIGNAL < 3
  store(output, out);
  if (__syncthreads_or(!good)) return false;
  delay(job, number, 3);
  if (threadIdx.x == 0 && !silent) {
    if (SIGNAL == 0) release_add(word(job, layer));
    if (SIGNAL == 2) store_release(word(job, at.me), at.run + layer + 1);
  }
#else
  const bool last = layer + 1 == at.layers;
  if (last) store(output, out);
#if SIGNAL == 3
  if (good && !silent) store_pairs(pairs_of(at, layer, at.me), out, at.run + layer + 1);
  return good;
#elif SIGNAL == 4
  shared.values[layer & 1][threadIdx.x] = out;
  cluster_arrive();
#else
  if (last) return true;
  u64* const barrier = &shared.barriers[layer & 1];
  push_values(mapped(&shared.values[layer & 1][threadIdx.x], at.left), out, mapped(barrier, at.left));
  // a token says: this whole block has read its input, and pushed
  if (__syncthreads_or(!good)) return false;
  delay(job, number, 3);
  if (threadIdx.x < at.blocks && !silent) {
    push_token(mapped(&shared.tokens[layer & 1][at.me], threadIdx.x), layer, mapped(barrier, threadIdx.x));
  }
#endif
#endif
  return true;
}

// ---- Weights ahead, through shared memory: loads into registers would share the assembler's scoreboard with the polls,
// which would then wait for the newest of them. A thread copies what it will use itself, so no barrier guards the copies.

constexpr unsigned STAGES = 4;

struct Stage {
  Floats weight[BLOCK], bias[BLOCK];
};

__device__ __forceinline__ void copy_ahead(const Floats* to, const float* from) {
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(4 * VECTOR) : "memory");
}

// Requests the weights of the next layer that was not requested yet, if there is one.
struct Fetcher {
  const float* weight;
  const float* bias;
  u64 size;
  unsigned left;

  __device__ __forceinline__ void fetch(Stage& stage) {
    if (left) {
      copy_ahead(&stage.weight[threadIdx.x], weight);
      copy_ahead(&stage.bias[threadIdx.x], bias);
      weight += size;
      bias += size;
      --left;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
};

// In a turn: the weights three layers ahead are requested, this layer's taken out of shared memory, then it waits.
__device__ __forceinline__ void run_chain(const Chain& at, Recorder& recorder SHARED_PARAMETER) {
#if AHEAD
  __shared__ Stage stages[STAGES];
#endif
  const u64 mine = element_of(at.me);
  Fetcher fetcher = {at.job.weights + mine, at.job.biases + mine, at.job.size, at.layers};
#if AHEAD
  for (unsigned stage = 0; stage + 1 < STAGES; ++stage) fetcher.fetch(stages[stage]);
#endif
#pragma unroll 1
  for (unsigned first = 0; first < at.layers; first += STAGES) {
#pragma unroll
    for (unsigned turn = 0; turn < STAGES; ++turn) {
      const unsigned layer = first + turn;
      if (layer >= at.layers) return;
      const u64 fetch_ns = stamp();
#if AHEAD
      fetcher.fetch(stages[(turn + STAGES - 1) % STAGES]);
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
      const Floats weight = stages[turn].weight[threadIdx.x], bias = stages[turn].bias[threadIdx.x];
#endif
      delay(at.job, layer * at.blocks + at.me, 0);
      const u64 wait_ns = stamp();
      u64 execute_ns;
      Floats in;
      const bool good = take(at, layer, in, execute_ns SHARED_ARGUMENT);
#if !AHEAD
      const u64 here = static_cast<u64>(layer) * at.job.size + mine;
      const Floats weight = load_ahead(at.job.weights + here), bias = load_ahead(at.job.biases + here);
#endif
      if (!publish(at, layer, scale(in, weight, bias), good SHARED_ARGUMENT)) return;
      record(at.job, recorder, layer * at.blocks + at.me, fetch_ns, wait_ns, execute_ns, stamp());
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) lockstep(const __grid_constant__ Job job) {
  const u64 started_ns = stamp();
  Recorder recorder = {0, 0};
  const Chain at = make_chain(job);
#if IN_CLUSTER
  __shared__ Shared shared;
  start_cluster(at, shared);
#endif
  run_chain(at, recorder SHARED_ARGUMENT);
#if SIGNAL == 4
  cluster_wait();  // the last layer's arrival
#endif
#if SIGNAL == 5
  cluster_arrive();  // nobody leaves while others may still store into its shared memory
  cluster_wait();
#endif
  record_block(job, recorder, started_ns);
}
