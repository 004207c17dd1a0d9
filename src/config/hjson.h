#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/text_cursor.h"

namespace lockstep::config {

// HJSON: JSON as people write it. Comments (#, //, /* */), commas that are missing at a
// line's end or one too many before a bracket, keys and texts without quotes, texts in
// single, double or three quotes, and a document without its outer braces. Plain JSON is
// a part of it. Read as hjson-py does, which is what DeepSpeed reads its files with, but
// for what that one takes by accident; see docs/deepspeed.md.

struct HjsonMember;

// A value of a document, with the place where it begins.
struct HjsonNode {
  enum class Kind { kObject, kArray, kText, kNumber, kBool, kNull };

  Kind kind = Kind::kNull;
  TextPlace place;
  std::string text;                  // of a text; of a number, as it was written
  bool truth = false;                // of true and false
  bool quoted = false;               // a text; one without quotes reaches to its line's end
  std::vector<HjsonMember> members;  // of an object, in their order; no key twice
  std::vector<HjsonNode> items;      // of an array

  // The value of a key of an object; null where there is none.
  const HjsonNode* find(std::string_view key) const;
};

struct HjsonMember {
  std::string key;
  TextPlace place;  // of the key
  HjsonNode value;
};

// The object that a text is; an empty text is an empty one. `name` is the file's name in
// messages. ConfigError "[config] name:line:column: ..." says what was expected, and what
// was there instead; a key that is there twice is an error with both places.
HjsonNode parse_hjson(std::string_view text, std::string_view name);

// "an object", "a number": for messages.
std::string_view kind_name(HjsonNode::Kind kind);

}  // namespace lockstep::config
