#include "train/main_rank.h"

#include <lockstep/error.h>
#include <lockstep/world.h>
#include <torch/torch.h>

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

// "[component] sentence", or any other text.
[[noreturn]] void throw_again(const std::string& text) {
  const size_t end = text.find("] ");
  if (!text.starts_with('[') || end == std::string::npos) throw ConfigError("train", text);
  throw ConfigError(text.substr(1, end - 1), text.substr(end + 2));
}

}  // namespace

std::string on_main_rank(const World& world, const std::function<std::string()>& work) {
  const std::string answer =
      world.communicator().broadcast_bytes(world.is_main() ? answer_of(work) : std::string(), 0);
  if (answer.at(0) == kFailed) throw_again(answer.substr(1));
  return answer.substr(1);
}

bool any_rank(const World& world, bool flag) {
  const at::Tensor answer =
      torch::full({1}, flag ? 1 : 0, torch::dtype(torch::kInt64).device(world.device()));
  world.communicator().all_reduce(answer, ReduceOp::kMax).wait();
  return answer.item<int64_t>() != 0;
}

}  // namespace lockstep::train
