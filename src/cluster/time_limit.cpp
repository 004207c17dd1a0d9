#include "cluster/time_limit.h"

#include <cstdint>
#include <vector>

#include "base/number.h"

namespace lockstep::cluster {
namespace {

constexpr int64_t kMaxSeconds = int64_t{10} * 365 * 24 * 3600;

std::optional<int64_t> parse_part(std::string_view text) {
  const std::optional<int64_t> value = base::parse_integer(text);
  if (!value || *value < 0 || *value > kMaxSeconds || text.front() == '-') return std::nullopt;
  return value;
}

// Numbers between colons; nullopt where one is broken.
std::optional<std::vector<int64_t>> parse_parts(std::string_view text) {
  std::vector<int64_t> parts;
  while (true) {
    const size_t colon = text.find(':');
    const std::optional<int64_t> part = parse_part(text.substr(0, colon));
    if (!part) return std::nullopt;
    parts.push_back(*part);
    if (colon == std::string_view::npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

// The weight of the first part in seconds; each following one is 60 times lighter.
int64_t sum(const std::vector<int64_t>& parts, int64_t weight) {
  int64_t seconds = 0;
  for (const int64_t part : parts) {
    seconds += part * weight;
    weight /= 60;
  }
  return seconds;
}

std::optional<int64_t> parse_seconds(std::string_view text) {
  const size_t dash = text.find('-');
  const bool has_days = dash != std::string_view::npos && dash > 0;
  const std::optional<int64_t> days = has_days ? parse_part(text.substr(0, dash)) : 0;
  if (!days) return std::nullopt;
  if (has_days) text.remove_prefix(dash + 1);
  const std::optional<std::vector<int64_t>> parts = parse_parts(text);
  if (!parts || parts->size() > 3) return std::nullopt;
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 3600;
  return *days * 24 * kHour + sum(*parts, has_days || parts->size() == 3 ? kHour : kMinute);
}

}  // namespace

std::optional<std::chrono::seconds> parse_time_limit(std::string_view text) {
  const std::optional<int64_t> seconds = parse_seconds(text);
  if (!seconds || *seconds < 1 || *seconds > kMaxSeconds) return std::nullopt;
  return std::chrono::seconds(*seconds);
}

}  // namespace lockstep::cluster
