#include "interop/deepspeed/flat_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "interop/pickle.h"

namespace lockstep::interop {
namespace {

int64_t round_up(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

// Whether `needed` elements make up `there`, but for padding to an even number a rank.
bool fits(int64_t needed, int64_t there, int64_t ranks) {
  return there >= needed && round_up(needed, 2 * ranks) == round_up(there, 2 * ranks);
}

void add_total(int64_t& total, int64_t more) {
  if (__builtin_add_overflow(total, more, &total) || total > (int64_t{1} << 60)) {
    throw PickleError("its parameters have more elements than can be");
  }
}

}  // namespace

std::vector<FlatParameter> layout_of_groups(const std::vector<std::vector<ShapedName>>& groups,
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
    int64_t position = 0;  // in the rank's part
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

std::vector<FlatParameter> layout_of_parts(const std::vector<std::vector<ShapedName>>& groups,
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

}  // namespace lockstep::interop
