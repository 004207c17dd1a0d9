#include "base/json_text.h"

#include <fmt/format.h>
#include <lockstep/error.h>

namespace lockstep::base {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxQuotedBytes = 200;

// Names from a hostile file go into messages: short, and without control characters.
std::string quoted(std::string_view text) {
  std::string result(text.substr(0, kMaxQuotedBytes));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return result;
}

[[noreturn]] void fail_file(FileFault fault, const std::filesystem::path& path, std::string_view reason) {
  fault(path, quoted(reason));
  throw InternalError("internal", "a fault of a file throws");
}

}  // namespace

Json parse_json(std::string_view text, const std::filesystem::path& path, FileFault fault) {
  try {
    return Json::parse(text, {.max_depth = kMaxDepth, .unique_names = true});
  } catch (const JsonError& error) {
    fail_file(fault, path, fmt::format("no JSON: {}", error.what()));
  }
}

JsonObject::JsonObject(const Json& value, const std::filesystem::path& path, std::string place,
                       FileFault fault)
    : value_(value), path_(path), place_(std::move(place)), fault_(fault) {
  if (!value_.is_object()) fail_file(fault_, path_, fmt::format("{}: not an object", place_));
}

int64_t JsonObject::integer(const char* key, int64_t least) const {
  const Json& value = member(key);
  if (!value.is_number_integer()) fail(key, "not an integer");
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) fail(key, "too large");
  const auto result = value.get<int64_t>();
  if (result < least) fail(key, fmt::format("{} is less than {}", result, least));
  return result;
}

double JsonObject::number(const char* key) const {
  if (!member(key).is_number()) fail(key, "not a number");
  return member(key).get<double>();
}

std::string JsonObject::text(const char* key) const {
  if (!member(key).is_string()) fail(key, "not a string");
  return member(key).get<std::string>();
}

std::vector<int64_t> JsonObject::integers(const char* key, size_t most) const {
  const Json& values = array(key);
  if (values.size() > most) fail(key, fmt::format("{} entries where {} is the most", values.size(), most));
  std::vector<int64_t> result;
  result.reserve(values.size());
  for (const Json& value : values) {
    // A number beyond int64_t comes out negative.
    if (!value.is_number_integer() || value.get<int64_t>() < 0) fail(key, "an entry is not a count");
    result.push_back(value.get<int64_t>());
  }
  return result;
}

const Json& JsonObject::array(const char* key) const {
  if (!member(key).is_array()) fail(key, "not an array");
  return member(key);
}

const Json& JsonObject::object(const char* key) const {
  if (!member(key).is_object()) fail(key, "not an object");
  return member(key);
}

std::string JsonObject::place(std::string_view key) const {
  return place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
}

void JsonObject::fail(std::string_view key, std::string_view reason) const {
  fail_file(fault_, path_, fmt::format("{}: {}", place(key), reason));
}

const Json& JsonObject::member(const char* key) const {
  const Json* const found = value_.find(key);
  if (found == nullptr) fail(key, "missing");
  return *found;
}

}  // namespace lockstep::base
