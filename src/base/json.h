#pragma once

#include <lockstep/json.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace lockstep::base {

// Reads JSON from a file that may be truncated, changed or hostile. Everything that is wrong is a fault
// with the path of the file and the place in it.

// Accepts one JSON value with at most 64 levels of nesting, in which no object has a name twice.
Json parse_json(std::string_view text, const std::filesystem::path& path, const FileFault& fault);

// An object whose members are read by name and type. A member that is missing or has another type is a
// fault that names it.
class JsonObject {
 public:
  // place: the path of the object in the file: "tensors.w". Value and path must outlive this object.
  JsonObject(const Json& value, const std::filesystem::path& path, std::string place, FileFault fault);

  bool has(const char* key) const { return value_.contains(key); }
  int64_t integer(const char* key, int64_t least = 0) const;
  double number(const char* key) const;
  std::string text(const char* key) const;
  std::vector<int64_t> integers(const char* key, size_t most) const;
  // Arrays and objects as they are.
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
