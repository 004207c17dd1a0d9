#include "checkpoint/deepspeed/parameter_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "checkpoint/pickle.h"

namespace lockstep::checkpoint {
namespace {

int64_t round_up(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

// Whether `there` elements are `needed` elements and padding to an even number a rank.
bool fits(int64_t needed, int64_t there, int64_t ranks) {
  return there >= needed && round_up(needed, 2 * ranks) == round_up(there, 2 * ranks);
}

void add_total(int64_t& total, int64_t more) {
  if (__builtin_add_overflow(total, more, &total) || total > (int64_t{1} << 60)) {
    throw PickleError("its parameters have more elements than can be");
  }
}

// How many parameters of each group are named.
using Cursors = std::vector<size_t>;

// More states than a real model needs.
constexpr size_t kMaxStates = 200'000;
constexpr size_t kSkip = static_cast<size_t>(-1);

struct Reached {
  int ways = 0;  // 2: two or more
  Cursors from;
  size_t group = kSkip;  // of the last parameter
};
using Layer = std::map<Cursors, Reached>;

void reach(Layer& layer, Cursors to, const Cursors& from, int ways, size_t group) {
  Reached& place = layer[std::move(to)];
  if (place.ways == 0) place = {0, from, group};
  place.ways = std::min(2, place.ways + ways);
}

}  // namespace

std::vector<FlatParameter> layout_of_stage_1_and_2(const std::vector<std::vector<ShapedName>>& groups,
                                                   const FlatLengths& lengths) {
  std::vector<FlatParameter> result;
  for (size_t flat = 0; flat < groups.size(); ++flat) {
    int64_t needed = 0;
    int64_t there = 0;
    for (const ShapedName& parameter : groups[flat]) add_total(needed, parameter.numel());
    for (const auto& rank : lengths) add_total(there, rank.at(flat));
    if (!fits(needed, there, static_cast<int64_t>(lengths.size()))) {
      throw PickleError(
          fmt::format("the parameters of group {} have {} elements, and the files of {} ranks {}", flat,
                      needed, lengths.size(), there));
    }
    size_t rank = 0;
    int64_t position = 0;  // in the rank's shard
    for (const ShapedName& parameter : groups[flat]) {
      FlatParameter& made = result.emplace_back(FlatParameter{parameter.name, parameter.shape, flat, {}});
      for (int64_t left = parameter.numel(); left > 0;) {
        const int64_t count = std::min(left, lengths[rank][flat] - position);
        if (count > 0) made.segments.push_back({rank, flat, position, count});
        left -= count;
        position += count;
        if (position == lengths[rank][flat] && left > 0) {
          ++rank;
          position = 0;
        }
      }
    }
  }
  return result;
}

std::vector<FlatParameter> layout_of_stage_3(const std::vector<std::vector<ShapedName>>& groups,
                                             const FlatLengths& lengths) {
  const auto ranks = static_cast<int64_t>(lengths.size());
  if (std::any_of(lengths.begin(), lengths.end(), [&](const auto& rank) { return rank != lengths[0]; })) {
    throw PickleError("its ranks have flat groups of different lengths");
  }
  const std::vector<int64_t>& flats = lengths[0];
  std::vector<FlatParameter> result;
  size_t flat = 0;
  int64_t position = 0;
  for (const auto& group : groups) {
    for (const ShapedName& parameter : group) {
      const int64_t numel = parameter.numel();
      const int64_t part = numel / ranks + (numel % ranks == 0 ? 0 : 1);
      while (flat < flats.size() && position == flats[flat] && part > 0) ++flat, position = 0;
      if (part > 0 && (flat == flats.size() || part > flats[flat] - position)) {
        throw PickleError(
            fmt::format("'{}' has {} elements a rank, and its flat group fewer", parameter.name, part));
      }
      FlatParameter& made = result.emplace_back(FlatParameter{parameter.name, parameter.shape, flat, {}});
      for (int64_t rank = 0; rank < ranks && rank * part < numel; ++rank) {
        made.segments.push_back(
            {static_cast<size_t>(rank), flat, position, std::min(part, numel - rank * part)});
      }
      position += part;
    }
  }
  while (flat < flats.size() && position == flats[flat]) ++flat, position = 0;
  if (flat < flats.size()) {
    throw PickleError(fmt::format("flat group {} has {} elements a rank, of which its parameters take {}",
                                  flat, flats[flat], position));
  }
  return result;
}

std::optional<std::vector<std::string>> name_numbered(const std::vector<ShapedName>& parameters,
                                                      const std::vector<std::vector<size_t>>& groups,
                                                      const NumberedShapes& shapes) {
  if (shapes.size() > parameters.size()) return std::nullopt;
  const size_t unnamed = parameters.size() - shapes.size();
  // Layer i: the states that are possible after i parameters.
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

}  // namespace lockstep::checkpoint
