#pragma once

#include <lockstep/json.h>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

// JSON from a file that may be cut, changed or hostile.

// Throws the error of the layer that reads the file; does not return.
using FileFault = void (*)(const std::filesystem::path& path, const std::string& reason);

// Throws unless the text is one JSON value, nested 64 deep at most, in which no object
// has a key twice.
Json parse_json(std::string_view text, const std::filesystem::path& path, FileFault fault);

// An object whose members are taken by name and type; a missing or wrong one is an
// error that names it.
class JsonObject {
 public:
  // `place` is where in the file it is: "tensors.w". Value and path outlive it.
  JsonObject(const Json& value, const std::filesystem::path& path, std::string place, FileFault fault);

  bool has(const char* key) const { return value_.contains(key); }
  int64_t integer(const char* key, int64_t least = 0) const;
  double number(const char* key) const;
  std::string text(const char* key) const;
  std::vector<int64_t> integers(const char* key, size_t most) const;
  // An array or an object.
  const Json& array(const char* key) const;
  const Json& object(const char* key) const;

  std::string place(std::string_view key) const;
  [[noreturn]] void fail(std::string_view key, std::string_view reason) const;

 private:
  const Json& member(const char* key) const;

  const Json& value_;
  const std::filesystem::path& path_;
  std::string place_;
  FileFault fault_;
};

}  // namespace lockstep::base
