#include "data/failure.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <exception>

namespace lockstep::data {
namespace {

std::string cause_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

void rethrow_as_config_error(const std::string& what) {
  std::throw_with_nested(ConfigError("data", fmt::format("{}: {}", what, cause_of_current_exception())));
}

}  // namespace lockstep::data
