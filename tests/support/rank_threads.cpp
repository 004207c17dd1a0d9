#include "support/rank_threads.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <thread>

namespace lockstep::test {
namespace {

struct Outcome {
  std::vector<std::exception_ptr> errors;
  int first_failed_rank = -1;
};

// LibTorch's vector functions (MKL) compute with less accuracy while another thread makes the first call of
// the process: tanh() then differs by 1e-5. Ranks that are processes cannot meet that.
void call_vector_functions_once() {
  [[maybe_unused]] static const at::Tensor first_call = at::tanh(at::zeros({64}));
}

Outcome run(int num_ranks, const RankFunction& function) {
  call_vector_functions_once();
  auto store = c10::make_intrusive<c10d::HashStore>();
  Outcome outcome;
  outcome.errors.resize(num_ranks);
  std::atomic<int> first_failed_rank{-1};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        function(rank, store);
      } catch (...) {
        int nobody = -1;
        first_failed_rank.compare_exchange_strong(nobody, rank);
        outcome.errors[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  outcome.first_failed_rank = first_failed_rank;
  return outcome;
}

}  // namespace

void run_ranks(int num_ranks, const RankFunction& function) {
  auto outcome = run(num_ranks, function);
  if (outcome.first_failed_rank >= 0) {
    std::rethrow_exception(outcome.errors[outcome.first_failed_rank]);
  }
}

std::vector<std::exception_ptr> try_ranks(int num_ranks, const RankFunction& function) {
  return run(num_ranks, function).errors;
}

}  // namespace lockstep::test
