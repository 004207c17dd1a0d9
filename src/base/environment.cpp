#include "base/environment.h"

#include <unistd.h>

namespace lockstep::base {

Environment Environment::of_process() {
  Environment result;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      result.set(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
    }
  }
  return result;
}

std::optional<std::string> Environment::get(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void Environment::erase(std::string_view name) {
  const auto found = values_.find(name);
  if (found != values_.end()) values_.erase(found);
}

}  // namespace lockstep::base
