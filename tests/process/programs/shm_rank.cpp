// One rank of a shared-memory group that some other rank of is killed:
//
//   shm_rank STORE_FILE RANK SIZE TIMEOUT_MS SCENARIO
//
// Says "ready" when it has joined. Then, by scenario: wait (ranks but the last
// all-reduce at once, the last reads its standard input), between (all read a line
// first), loop (all all-reduce and check the sums until something fails). A
// CommError is said as "error FAILED_RANK TEXT".

#include <lockstep/error.h>
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "comm/shm/shm_backend.h"

namespace {

void say(const std::string& line) { std::cout << line << std::endl; }

void all_reduce(c10d::Backend& backend, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  backend.allreduce(tensors)->wait();
}

void loop(c10d::Backend& backend, int size) {
  constexpr int64_t kNumel = 1 << 20;
  const at::Tensor tensors[] = {backend.allocateTensor(kNumel, at::TensorOptions(at::kFloat)),
                                torch::empty({kNumel}), torch::empty({100})};
  for (int i = 0;; ++i) {
    const auto& tensor = tensors[i % 3];
    tensor.fill_(1);
    all_reduce(backend, tensor);
    if (!tensor.eq(size).all().item<bool>()) {
      throw std::runtime_error("wrong sum");
    }
    if (i == 10) {
      say("looping");
    }
  }
}

void run(const std::string& scenario, c10d::Backend& backend, int rank, int size) {
  std::string line;
  if (scenario == "loop") {
    loop(backend, size);
  }
  if (scenario == "between" || rank == size - 1) {
    std::getline(std::cin, line);
  }
  all_reduce(backend, torch::ones({100}));
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  if (argc != 6) {
    return 2;
  }
  const int rank = std::stoi(argv[2]);
  const int size = std::stoi(argv[3]);
  auto store = c10::make_intrusive<c10d::FileStore>(argv[1], size);
  auto backend = lockstep::comm::make_shm_backend(store, rank, size, std::chrono::seconds(30));
  backend->setTimeout(std::chrono::milliseconds(std::stoi(argv[4])));
  say("ready");
  try {
    run(argv[5], *backend, rank, size);
  } catch (const lockstep::CommError& error) {
    say("error " + std::to_string(error.failed_rank().value_or(-1)) + " " + error.what());
  }
}
