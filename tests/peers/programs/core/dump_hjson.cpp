// Prints what our reader makes of HJSON files, a line of JSON for each:
//   dump_hjson FILE...   ->   {"value": ...} or {"error": "..."}
// A number is {"number": "1e5"}, as it was written; an object is a list of its members, so
// that their order is seen: {"object": [["key", value], ...]}.
#include <lockstep/error.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "config/hjson.h"

namespace {

using lockstep::config::HjsonNode;
using nlohmann::json;

json dump(const HjsonNode& node) {
  switch (node.kind) {
    case HjsonNode::Kind::kNull: return nullptr;
    case HjsonNode::Kind::kBool: return node.truth;
    case HjsonNode::Kind::kNumber: return {{"number", node.text}};
    case HjsonNode::Kind::kText: return node.text;
    case HjsonNode::Kind::kArray: {
      json items = json::array();
      for (const HjsonNode& item : node.items) items.push_back(dump(item));
      return items;
    }
    case HjsonNode::Kind::kObject: {
      json members = json::array();
      for (const auto& member : node.members)
        members.push_back(json::array({member.key, dump(member.value)}));
      return {{"object", members}};
    }
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    json line;
    try {
      const lockstep::config::HjsonSource source = lockstep::config::read_hjson_file(argv[i]);
      line["value"] = dump(lockstep::config::parse_hjson(source.text, source.name));
    } catch (const lockstep::Error& error) {
      line = {{"error", error.what()}};
    }
    std::printf("%s\n", line.dump().c_str());
  }
  return 0;
}
