// Programmatic dependent launch as its two PTX instructions, and the device's clock.
// Before sm_90 the instructions do not exist: there both functions are empty, and the host must not set the attribute.
#pragma once

// Returns when every kernel before this one has finished and its writes are visible. The clobber keeps the compiler
// from moving a load of the previous kernel's output to before the wait.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// This block no longer holds back the next kernel's start. It promises nothing about this block's writes.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Nanoseconds, one clock for the whole device; on an H200 it advances in steps of 32 ns.
__device__ __forceinline__ unsigned long long device_time_ns() {
  unsigned long long time_ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time_ns)::"memory");
  return time_ns;
}
