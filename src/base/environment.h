#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::base {

// A snapshot of environment variables. Code that decides by the environment takes
// one of these, so that a test hands it any environment it likes.
class Environment {
 public:
  Environment() = default;
  Environment(std::initializer_list<std::pair<const std::string, std::string>> values) : values_(values) {}

  static Environment of_process();

  // Unset and empty are different: an empty variable is returned as "".
  std::optional<std::string> get(std::string_view name) const;
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  void set(std::string name, std::string value) {
    values_.insert_or_assign(std::move(name), std::move(value));
  }
  void erase(std::string_view name);
  const std::map<std::string, std::string, std::less<>>& values() const& { return values_; }
  // By value, so that a loop over the values of a temporary is safe.
  std::map<std::string, std::string, std::less<>> values() && { return std::move(values_); }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace lockstep::base
