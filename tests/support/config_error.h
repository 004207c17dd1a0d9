#pragma once

#include <lockstep/error.h>

#include <functional>
#include <string>

namespace lockstep::test {

// What a ConfigError says that `body` throws.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

}  // namespace lockstep::test
