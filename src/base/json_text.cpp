#include "base/json_text.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <set>

namespace lockstep::base {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxQuotedBytes = 200;

using nlohmann::json;

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

json parse_json(std::string_view text, const std::filesystem::path& path, FileFault fault) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) fail_file(fault, path, fmt::format("JSON nested more than {} deep", kMaxDepth));
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      fail_file(fault, path, fmt::format("a name is there twice: {}", parsed.get<std::string>()));
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    fail_file(fault, path, fmt::format("no JSON: {}", error.what()));
  }
}

JsonObject::JsonObject(const json& value, const std::filesystem::path& path, std::string place,
                       FileFault fault)
    : value_(value), path_(path), place_(std::move(place)), fault_(fault) {
  if (!value_.is_object()) fail_file(fault_, path_, fmt::format("{}: not an object", place_));
}

int64_t JsonObject::integer(const char* key, int64_t least) const {
  const json& value = member(key);
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
  const json& values = array(key);
  if (values.size() > most) fail(key, fmt::format("{} entries where {} is the most", values.size(), most));
  std::vector<int64_t> result;
  result.reserve(values.size());
  for (const json& value : values) {
    // A number beyond int64_t comes out negative.
    if (!value.is_number_integer() || value.get<int64_t>() < 0) fail(key, "an entry is not a count");
    result.push_back(value.get<int64_t>());
  }
  return result;
}

const json& JsonObject::array(const char* key) const {
  if (!member(key).is_array()) fail(key, "not an array");
  return member(key);
}

const json& JsonObject::object(const char* key) const {
  if (!member(key).is_object()) fail(key, "not an object");
  return member(key);
}

std::string JsonObject::place(std::string_view key) const {
  return place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
}

void JsonObject::fail(std::string_view key, std::string_view reason) const {
  fail_file(fault_, path_, fmt::format("{}: {}", place(key), reason));
}

const json& JsonObject::member(const char* key) const {
  const auto found = value_.find(key);
  if (found == value_.end()) fail(key, "missing");
  return *found;
}

}  // namespace lockstep::base
