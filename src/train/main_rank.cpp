#include "train/main_rank.h"

#include <lockstep/world.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <vector>

namespace lockstep::train {
namespace {

constexpr char kDone = '+';
constexpr char kFailed = '-';

std::string answer_of(const std::function<std::string()>& work) {
  try {
    return kDone + work();
  } catch (const std::exception& error) {
    return kFailed + std::string(error.what());
  }
}

// From "[component] sentence", or any other text.
template <typename Kind>
[[noreturn]] void throw_again(const std::string& text) {
  const size_t end = text.find("] ");
  if (!text.starts_with('[') || end == std::string::npos) throw Kind("train", text);
  throw Kind(text.substr(1, end - 1), text.substr(end + 2));
}

}  // namespace

std::string on_main_rank(const World& world, const std::function<std::string()>& work) {
  const std::string answer =
      world.communicator().broadcast_bytes(world.is_main() ? answer_of(work) : std::string(), 0);
  if (answer.at(0) != kFailed) return answer.substr(1);
  if (world.is_main()) throw_again<AgreedError>(answer.substr(1));
  throw_again<SaidElsewhere>(answer.substr(1));
}

void on_every_rank(const World& world, const std::function<void()>& work) {
  std::string own(1, kDone);
  try {
    work();
  } catch (const ConfigError& error) {
    own = kFailed + std::string(error.what());
  }
  const std::vector<std::string> all = world.communicator().all_gather_bytes(own);
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string& answer = all[static_cast<size_t>(rank)];
    if (answer.at(0) != kFailed) continue;
    if (rank == world.rank()) throw_again<AgreedError>(answer.substr(1));
    throw_again<SaidElsewhere>(answer.substr(1));
  }
}

void throw_once(const World& world, const ConfigError& error, std::chrono::milliseconds patience) {
  const std::string own = error.what();
  // Ranks that are not there tell nothing.
  if (world.communicator().backend() == "fake") throw_again<ConfigError>(own);
  std::vector<std::string> all;
  try {
    // By the store first: a rank that did not fail is in another collective.
    world.communicator().meet("the end by an error", patience);
    all = world.communicator().all_gather_bytes(own, patience);
  } catch (const Error&) {
    throw_again<ConfigError>(own);
  }
  const auto first = std::find(all.begin(), all.end(), own) - all.begin();
  if (first == world.rank()) throw_again<AgreedError>(own);
  throw_again<SaidElsewhere>(own);
}

bool any_rank(const World& world, bool flag) {
  const at::Tensor answer =
      torch::full({1}, flag ? 1 : 0, torch::dtype(torch::kInt64).device(world.device()));
  world.communicator().all_reduce(answer, ReduceOp::kMax).wait();
  return answer.item<int64_t>() != 0;
}

}  // namespace lockstep::train
