#include "launch/agent/stream_choice.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "base/number.h"

namespace lockstep::launcher {
namespace {

std::optional<Streams> parse_number(std::string_view text) {
  const std::optional<int64_t> number = base::parse_integer(text);
  if (text.size() != 1 || !number || *number > 3) return std::nullopt;
  return Streams{(*number & 1) != 0, (*number & 2) != 0};
}

[[noreturn]] void refuse(const std::string& flag, const std::string& text) {
  throw ConfigError("run", fmt::format("{} must be 0 (none), 1 (stdout), 2 (stderr), 3 (both) or "
                                       "LOCAL_RANK:NUMBER,... with each rank once: '{}'",
                                       flag, text));
}

}  // namespace

StreamChoice StreamChoice::parse(const std::string& flag, const std::string& text) {
  StreamChoice choice;
  if (const std::optional<Streams> all = parse_number(text)) {
    choice.all_ = *all;
    return choice;
  }
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t colon = item.find(':');
    if (colon == std::string::npos) refuse(flag, text);
    const std::optional<int64_t> rank = base::parse_integer(item.substr(0, colon));
    const std::optional<Streams> streams = parse_number(item.substr(colon + 1));
    if (!rank || *rank < 0 || *rank > std::numeric_limits<int>::max() || !streams) refuse(flag, text);
    if (!choice.by_rank_.emplace(static_cast<int>(*rank), *streams).second) refuse(flag, text);
  }
  if (choice.by_rank_.empty() || text.back() == ',') refuse(flag, text);
  return choice;
}

Streams StreamChoice::of(int local_rank) const {
  const auto found = by_rank_.find(local_rank);
  return found == by_rank_.end() ? all_ : found->second;
}

bool StreamChoice::any() const {
  return all_.out || all_.err || std::any_of(by_rank_.begin(), by_rank_.end(), [](const auto& entry) {
           return entry.second.out || entry.second.err;
         });
}

}  // namespace lockstep::launcher
