#include "train/main_rank.h"

#include <lockstep/error.h>
#include <lockstep/world.h>

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

}  // namespace

std::string on_main_rank(const World& world, const std::function<std::string()>& work) {
  const std::string answer =
      world.communicator().broadcast_bytes(world.is_main() ? answer_of(work) : std::string(), 0);
  if (answer.at(0) == kFailed) throw ConfigError("train", answer.substr(1));
  return answer.substr(1);
}

}  // namespace lockstep::train
