#include "deepspeed/comms_names.h"

#include <array>
#include <utility>

namespace lockstep::deepspeed {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kOperations = {{
    {"all_reduce", "all_reduce"},
    {"all_reduce_coalesced", "all_reduce"},
    {"all_gather", "all_gather"},
    {"all_gather_into_tensor", "all_gather"},
    {"reduce_scatter", "reduce_scatter"},
    {"reduce_scatter_tensor", "reduce_scatter"},
    {"all_to_all", "all_to_all"},
    {"all_to_all_single", "all_to_all"},
    {"broadcast", "broadcast"},
    {"gather", "gather"},
    {"scatter", "scatter"},
    {"barrier", "barrier"},
}};

}  // namespace

std::optional<std::string_view> operation_of(std::string_view name) {
  for (const auto& [known, operation] : kOperations) {
    if (known == name) return operation;
  }
  return std::nullopt;
}

std::vector<std::string> operation_names() {
  std::vector<std::string> names;
  for (const auto& [known, operation] : kOperations) names.emplace_back(known);
  return names;
}

}  // namespace lockstep::deepspeed
