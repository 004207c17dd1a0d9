#pragma once

#include <fmt/format.h>
#include <lockstep/error.h>

#include <string_view>

namespace lockstep::base {

// Checks of conditions that only a bug in Lockstep can break; wrong input is a ConfigError. They throw
// InternalError with the file and line of the caller.

inline void check(bool condition, std::string_view what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!condition) {
    throw InternalError("internal", fmt::format("{}: at {}:{}", what, file, line));
  }
}

template <typename A, typename B>
void check_eq(const A& a, const B& b, std::string_view what, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  if (!(a == b)) {
    throw InternalError("internal", fmt::format("{}: {} != {}, at {}:{}", what, a, b, file, line));
  }
}

template <typename A, typename B>
void check_lt(const A& a, const B& b, std::string_view what, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  if (!(a < b)) {
    throw InternalError("internal", fmt::format("{}: {} is not < {}, at {}:{}", what, a, b, file, line));
  }
}

}  // namespace lockstep::base
