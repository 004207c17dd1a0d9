// Microseconds of an all-reduce between CPU ranks of this host over shared memory:
//
//   shm_all_reduce [ranks]
//
// Ranks are processes. "shared" tensors come from the group's allocateTensor,
// "ordinary" ones from the heap.

#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "comm/shm/shm_backend.h"

namespace {

using Clock = std::chrono::steady_clock;

double median_us(c10d::Backend& backend, const at::Tensor& tensor, int repetitions) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    const auto begin = Clock::now();
    backend.allreduce(tensors, options)->wait();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
  return times[repetitions / 2];
}

void run_rank(const char* path, int rank, int size) {
  torch::set_num_threads(1);
  auto store = c10::make_intrusive<c10d::FileStore>(path, size);
  auto backend = lockstep::comm::make_shm_backend(store, rank, size, std::chrono::seconds(60));
  if (rank == 0) {
    std::printf("%10s %12s %12s\n", "bytes", "shared us", "ordinary us");
  }
  for (int64_t bytes :
       {4, 256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}) {
    const int repetitions = static_cast<int>(std::clamp<int64_t>((256 << 20) / bytes, 20, 5000));
    auto shared = backend->allocateTensor(bytes / 4, at::TensorOptions(at::kFloat));
    shared.fill_(rank);
    auto ordinary = torch::full({bytes / 4}, rank);
    const double shared_us = median_us(*backend, shared, repetitions);
    const double ordinary_us = median_us(*backend, ordinary.to(at::kFloat), repetitions);
    if (rank == 0) {
      std::printf("%10ld %12.2f %12.2f\n", static_cast<long>(bytes), shared_us, ordinary_us);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  char path[] = "/tmp/lockstep_bench_XXXXXX";
  close(mkstemp(path));
  int rank = 0;
  for (int child = 1; child < size; ++child) {
    if (fork() == 0) {  // before LibTorch has started any thread
      rank = child;
      break;
    }
  }
  run_rank(path, rank, size);
  if (rank == 0) {
    while (wait(nullptr) > 0) {
    }
    unlink(path);
  }
}
