#include "interop/deepspeed/whole_names.h"

#include <algorithm>
#include <map>

namespace lockstep::interop {
namespace {

// How far each group is named.
using Cursors = std::vector<size_t>;

// More than any honest model has between one parameter and the next.
constexpr size_t kMaxStates = 200'000;
constexpr size_t kSkip = static_cast<size_t>(-1);

struct Reached {
  int ways = 0;  // 2: two or more
  Cursors from;
  size_t group = kSkip;  // that the last parameter went to
};
using Layer = std::map<Cursors, Reached>;

void reach(Layer& layer, Cursors to, const Cursors& from, int ways, size_t group) {
  Reached& place = layer[std::move(to)];
  if (place.ways == 0) place = {0, from, group};
  place.ways = std::min(2, place.ways + ways);
}

}  // namespace

std::optional<std::vector<std::string>> name_numbered(const std::vector<ShapedName>& parameters,
                                                      const std::vector<std::vector<size_t>>& groups,
                                                      const NumberedShapes& shapes) {
  if (shapes.size() > parameters.size()) return std::nullopt;
  const size_t unnamed = parameters.size() - shapes.size();
  // Layer i: where one can be after i parameters.
  std::vector<Layer> layers(1);
  layers[0][Cursors(groups.size())].ways = 1;
  size_t states = 1;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Layer next;
    for (const auto& [cursors, reached] : layers[i]) {
      size_t named = 0;
      for (const size_t cursor : cursors) named += cursor;
      if (i - named < unnamed) reach(next, cursors, cursors, reached.ways, kSkip);
      for (size_t g = 0; g < groups.size(); ++g) {
        if (cursors[g] == groups[g].size()) continue;
        const auto& shape = shapes[groups[g][cursors[g]]];
        if (shape && *shape != parameters[i].shape) continue;
        Cursors to = cursors;
        ++to[g];
        reach(next, std::move(to), cursors, reached.ways, g);
      }
    }
    states += next.size();
    if (next.empty() || states > kMaxStates) return std::nullopt;
    layers.push_back(std::move(next));
  }
  Cursors end;
  for (const auto& group : groups) end.push_back(group.size());
  const auto found = layers.back().find(end);
  if (found == layers.back().end() || found->second.ways != 1) return std::nullopt;
  std::vector<std::string> names(shapes.size());
  for (size_t i = parameters.size(); i-- > 0;) {
    const Reached& reached = layers[i + 1].at(end);
    if (reached.group != kSkip)
      names[groups[reached.group][reached.from[reached.group]]] = parameters[i].name;
    end = reached.from;
  }
  return names;
}

}  // namespace lockstep::interop
