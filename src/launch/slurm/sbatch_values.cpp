#include "launch/slurm/sbatch_values.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>
#include <optional>

#include "base/number.h"
#include "cluster/time_limit.h"

namespace lockstep::launcher {
namespace {

constexpr int kMaxCount = 1 << 20;
constexpr size_t kMaxValueBytes = 4096;  // sbatch's own buffer holds 8192 bytes
constexpr int64_t kMaxTask = 4000000;    // Slurm's largest array index
constexpr int64_t kMaxSignalTime = 65535;

[[noreturn]] void fail(std::string_view flag, std::string_view rule, std::string_view value) {
  throw ConfigError("slurm", fmt::format("{} {}: '{}'", flag, rule, value));
}

// Digits only: no sign, unlike base::parse_integer.
std::optional<int64_t> parse_digits(std::string_view text, int64_t lowest, int64_t highest) {
  if (text.empty() || !std::isdigit(static_cast<unsigned char>(text.front()))) return std::nullopt;
  const std::optional<int64_t> value = base::parse_integer(text);
  if (!value || *value < lowest || *value > highest) return std::nullopt;
  return value;
}

// N, N-M or N-M:STEP.
bool is_array_item(std::string_view item) {
  const size_t dash = item.find('-');
  const std::optional<int64_t> first = parse_digits(item.substr(0, dash), 0, kMaxTask);
  if (!first) return false;
  if (dash == std::string_view::npos) return true;
  std::string_view rest = item.substr(dash + 1);
  const size_t colon = rest.find(':');
  const std::optional<int64_t> last = parse_digits(rest.substr(0, colon), *first, kMaxTask);
  if (!last) return false;
  return colon == std::string_view::npos || parse_digits(rest.substr(colon + 1), 1, kMaxTask).has_value();
}

bool is_array(std::string_view text) {
  const size_t percent = text.find('%');
  if (percent != std::string_view::npos && !parse_digits(text.substr(percent + 1), 1, kMaxTask)) return false;
  text = text.substr(0, percent);
  while (true) {
    const size_t comma = text.find(',');
    if (!is_array_item(text.substr(0, comma))) return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

bool is_signal_name(std::string_view name) {
  if (parse_digits(name, 1, SIGRTMAX)) return true;
  if (name.substr(0, 3) == "SIG") name.remove_prefix(3);
  for (int number = 1; number < NSIG; ++number) {
    const char* known = ::sigabbrev_np(number);
    if (known != nullptr && name == known) return true;
  }
  return false;
}

}  // namespace

bool is_line(std::string_view value) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  return !value.empty() && value.size() <= kMaxValueBytes &&
         std::none_of(value.begin(), value.end(), is_control);
}

int parse_count(std::string_view flag, const std::string& value) {
  const std::optional<int64_t> count = parse_digits(value, 1, kMaxCount);
  if (!count) fail(flag, fmt::format("must be a whole number from 1 to {}", kMaxCount), value);
  return static_cast<int>(*count);
}

void check_count(std::string_view flag, int value) { parse_count(flag, std::to_string(value)); }

void check_line(std::string_view flag, const std::string& value) {
  if (!is_line(value))
    fail(flag, fmt::format("must be one line of 1 to {} bytes without control characters", kMaxValueBytes),
         value);
}

void check_name(std::string_view flag, const std::string& value) {
  check_line(flag, value);
  if (value.find(' ') != std::string::npos || value.front() == '-')
    fail(flag, "must be a name, or names with commas between them, without spaces", value);
}

void check_time(std::string_view flag, const std::string& value) {
  if (value == "UNLIMITED" || cluster::parse_time_limit(value)) return;
  fail(flag,
       "must be minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, "
       "days-hours:minutes:seconds or UNLIMITED, and more than 0",
       value);
}

void check_memory(std::string_view flag, const std::string& value) {
  std::string_view digits = value;
  if (!digits.empty() && std::strchr("KMGTkmgt", digits.back()) != nullptr) digits.remove_suffix(1);
  if (!parse_digits(digits, 0, int64_t{1} << 40))
    fail(flag, "must be a whole number of MiB, or one with the suffix K, M, G or T; 0 is the whole node",
         value);
}

void check_array(std::string_view flag, const std::string& value) {
  if (!is_array(value))
    fail(
        flag,
        fmt::format("must be indices (0 to {}) and ranges with commas between them, a range as FIRST-LAST or "
                    "FIRST-LAST:STEP, and at the end %LIMIT for the most tasks at once",
                    kMaxTask),
        value);
}

void check_signal(std::string_view flag, const std::string& value) {
  if (value.substr(0, 2) == "B:")
    fail(flag, "must not begin with B:, which sends it to the batch shell and not to the ranks", value);
  const size_t at = value.find('@');
  const std::string_view name = std::string_view(value).substr(0, at);
  const bool time_is_right =
      at == std::string::npos || parse_digits(std::string_view(value).substr(at + 1), 0, kMaxSignalTime);
  if (!is_signal_name(name) || !time_is_right)
    fail(
        flag,
        fmt::format("must be a signal's name or number, then @SECONDS before the end (0 to {}) if wanted, as "
                    "USR1@120",
                    kMaxSignalTime),
        value);
}

int parse_gpus(std::string_view flag, const std::string& value) {
  const size_t colon = value.rfind(':');
  const std::string_view count = std::string_view(value).substr(colon == std::string::npos ? 0 : colon + 1);
  const std::optional<int64_t> number = parse_digits(count, 1, 1024);
  const std::string type = colon == std::string::npos ? "any" : value.substr(0, colon);
  if (!number || type.empty() || type.find_first_of(" ,:=") != std::string::npos)
    fail(flag, "must be a number from 1 to 1024, or TYPE:NUMBER as a100:4", value);
  check_line(flag, value);
  return static_cast<int>(*number);
}

}  // namespace lockstep::launcher
