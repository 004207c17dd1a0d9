#pragma once

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <exception>
#include <string>

namespace lockstep::data {

// Call it in a catch block: throws ConfigError "[data] what: cause" with the current exception
// nested in it.
[[noreturn]] inline void rethrow_as_config_error(const std::string& what) {
  std::string cause;
  try {
    throw;
  } catch (const c10::Error& error) {
    cause = error.what_without_backtrace();
  } catch (const std::exception& error) {
    cause = error.what();
  } catch (...) {
    cause = "an exception that is no std::exception";
  }
  std::throw_with_nested(ConfigError("data", fmt::format("{}: {}", what, cause)));
}

}  // namespace lockstep::data
