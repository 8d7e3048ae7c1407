#include <hip/hip_runtime.h>
#include <cstdio>

__global__ void twice(float *numbers) { numbers[threadIdx.x] *= 2; }

int main() {
  float *numbers;
  hipError_t found = hipMalloc(&numbers, 64 * sizeof(float));
  if (found == hipSuccess) {
    twice<<<1, 64>>>(numbers);
    found = hipDeviceSynchronize();
  }
  std::printf("%s: %s\n", hipGetErrorName(found), hipGetErrorString(found));
  return found != hipSuccess;
}
