#pragma once

#include <unistd.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::base {

// A snapshot of environment variables. Code that depends on the environment takes one as an argument, so
// that a test can pass any environment.
class Environment {
 public:
  Environment() = default;
  Environment(std::initializer_list<std::pair<const std::string, std::string>> values) : values_(values) {}

  static Environment of_process() {
    Environment result;
    for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const size_t equals = text.find('=');
      if (equals == std::string_view::npos) continue;
      result.set(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
    }
    return result;
  }

  // nullopt: unset. An empty variable is "".
  std::optional<std::string> get(std::string_view name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  void set(std::string name, std::string value) {
    values_.insert_or_assign(std::move(name), std::move(value));
  }
  void erase(std::string_view name) {
    const auto found = values_.find(name);
    if (found != values_.end()) values_.erase(found);
  }
  const std::map<std::string, std::string, std::less<>>& values() const& { return values_; }
  // By value, so that a loop over the values of a temporary is safe.
  std::map<std::string, std::string, std::less<>> values() && { return std::move(values_); }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace lockstep::base
