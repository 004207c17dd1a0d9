#pragma once

#include <string>

namespace lockstep::data {

// To be called in a catch block: throws a ConfigError "[data] what: cause" with the
// current exception nested in it.
[[noreturn]] void rethrow_as_config_error(const std::string& what);

}  // namespace lockstep::data
