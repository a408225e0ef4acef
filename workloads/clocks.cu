// Keeps the whole GPU busy for a while, so that it leaves its idle clock, and says how fast the clock was.
#include "pdl.cuh"

extern "C" __global__ void spin(unsigned long long duration_ns, unsigned long long* seen) {
  const unsigned long long started_ns = device_time_ns();
  const long long cycles = clock64();
  while (device_time_ns() - started_ns < duration_ns) {
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    seen[0] = clock64() - cycles;
    seen[1] = device_time_ns() - started_ns;
  }
}
