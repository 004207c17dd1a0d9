#pragma once

#include <lockstep/error.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "config/hjson.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

inline std::string json_of(const config::HjsonNode& node) {
  using Kind = config::HjsonNode::Kind;
  std::string result;
  switch (node.kind) {
    case Kind::kNull: return "null";
    case Kind::kBool: return node.truth ? "true" : "false";
    case Kind::kNumber: return node.text;
    case Kind::kText: return nlohmann::json(node.text).dump();
    case Kind::kArray:
      for (const config::HjsonNode& item : node.items) result += (result.empty() ? "" : ",") + json_of(item);
      return "[" + result + "]";
    case Kind::kObject:
      for (const config::HjsonMember& member : node.members) {
        result +=
            (result.empty() ? "" : ",") + nlohmann::json(member.key).dump() + ":" + json_of(member.value);
      }
      return "{" + result + "}";
  }
  return result;
}

// "NAME:12:3: ...": every refusal names a place.
inline bool names_a_place(std::string_view text, std::string_view name) {
  if (!text.starts_with(name)) return false;
  text.remove_prefix(name.size());
  for (int number = 0; number < 2; ++number) {
    if (text.size() < 2 || text[0] != ':' || std::isdigit(static_cast<unsigned char>(text[1])) == 0)
      return false;
    text.remove_prefix(1);
    while (!text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0) text.remove_prefix(1);
  }
  return text.starts_with(": ");
}

// A document that is read reads the same when it is written as JSON.
inline bool takes_hjson(std::string_view bytes) {
  try {
    const std::string written = json_of(config::parse_hjson(bytes, "fuzz"));
    require(json_of(config::parse_hjson(written, "again")) == written, "it reads the same again");
    // What was an HJSON number is one of JSON, and no text breaks its quotes.
    require(nlohmann::json::accept(written) || written.find_first_of("eE") != std::string::npos,
            "it is JSON when it is written");
    return true;
  } catch (const ConfigError& error) {
    require(names_a_place(error.what(), "[config] fuzz"), error.what());
    return false;
  }
}

}  // namespace lockstep::fuzz
