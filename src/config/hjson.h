#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/text_cursor.h"

namespace lockstep::config {

// HJSON extends JSON for people: comments (#, //, /* */), optional commas at line ends and before closing
// brackets, unquoted keys and strings, single, double or triple quotes, and optional outer braces. Every
// JSON document is HJSON. This reader follows hjson-py, with which DeepSpeed reads its files;
// docs/deepspeed.md lists the differences.

struct HjsonMember;

// A value of a document and the place of its first character.
struct HjsonNode {
  enum class Kind { kObject, kArray, kText, kNumber, kBool, kNull };

  Kind kind = Kind::kNull;
  TextPlace place;
  std::string text;                  // of a string; of a number, as written
  bool truth = false;                // of true and false
  bool quoted = false;               // of a string; an unquoted one reaches to the end of its line
  std::vector<HjsonMember> members;  // of an object, in the order of the document; keys are unique
  std::vector<HjsonNode> items;      // of an array

  // The value of a key; null: no such key.
  const HjsonNode* find(std::string_view key) const;
};

struct HjsonMember {
  std::string key;
  TextPlace place;  // of the key
  HjsonNode value;
};

// Parses a document, whose root must be an object; an empty text is an empty object. `name` is the name
// of the file in messages. ConfigError "[config] name:line:column: ..." names what was expected and what
// was found; for a duplicate key it names both places.
HjsonNode parse_hjson(std::string_view text, std::string_view name);

// For messages: "an object", "a number".
std::string_view kind_name(HjsonNode::Kind kind);

// The text of a document and its name in messages.
struct HjsonSource {
  std::string name;
  std::string text;
};

// ConfigError: the file cannot be read, is not a regular file, or is larger than kMaxTextBytes.
HjsonSource read_hjson_file(const std::filesystem::path& path);

// Reads an argument of a command line: a path or, if no such file exists, the document in URL-safe base64,
// with or without padding. ConfigError: it is neither.
HjsonSource read_hjson_argument(const std::string& path_or_base64);

}  // namespace lockstep::config
