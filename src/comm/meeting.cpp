// How ranks find out that one of them waits where the others do not come.
//
// Said through the store, not through the backend: whoever does not come is in another
// collective, and what a backend makes of two different ones is anybody's guess.

#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <lockstep/json.h>
#include <algorithm>
#include <thread>

#include "comm/communicator_impl.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kPollInterval{2};

std::string key_of(const std::string& meeting, int rank) { return fmt::format("{}/{}", meeting, rank); }

std::vector<int> missing_ranks(c10d::Store& store, const std::string& meeting, int size) {
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!store.check({key_of(meeting, rank)})) missing.push_back(rank);
  }
  return missing;
}

// Says who did not come, nobody where all did, unless somebody has said it: ranks look at
// different moments, and all go by what the first of them saw.
void settle(c10d::Store& store, const std::string& outcome, const std::vector<int>& missing) {
  store.compareSet(outcome, std::string(), Json(missing).dump());
}

std::string refusal(const std::string& purpose, const std::vector<int>& missing, int own_rank,
                    std::chrono::milliseconds patience) {
  if (std::find(missing.begin(), missing.end(), own_rank) != missing.end()) {
    return fmt::format(
        "{}: this rank came after the others had given up: every rank has to call it at the "
        "same place of the program",
        purpose);
  }
  return fmt::format(
      "{}: rank{} {} did not come within {} s: every rank has to call it at the same place of the program, "
      "not rank 0 alone",
      purpose, missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
      std::chrono::duration<double>(patience).count());
}

}  // namespace

void Communicator::Impl::wait_for_all(const std::string& purpose, const std::string& meeting,
                                      Milliseconds patience) const {
  c10d::Store& store = *request_.store;
  const std::string outcome = meeting + "/outcome";
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!store.check({outcome})) {
    if (std::chrono::steady_clock::now() > deadline) {
      settle(store, outcome, missing_ranks(store, meeting, size()));
      break;
    }
    if (lifeline_ && lifeline_->first_departure(Milliseconds(0))) {
      throw CommError("comm", "a rank left before all were there", CommError::Recovery::kRebuild);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  const std::vector<uint8_t> bytes = store.get(outcome);
  const auto missing = Json::parse(std::string(bytes.begin(), bytes.end())).get<std::vector<int>>();
  if (!missing.empty()) throw ConfigError("comm", refusal(purpose, missing, rank(), patience));
}

void Communicator::Impl::meet(const std::string& purpose, Milliseconds patience) {
  if (size() == 1) return;
  c10d::Store& store = *request_.store;
  const int index = num_meetings_[purpose]++;
  const auto name = [&](int index_of) { return fmt::format("meeting/{}/{}", purpose, index_of); };
  const std::string meeting = name(index);
  try {
    // Whoever is here has left the last but one, and so has everybody else.
    if (index >= 2) store.deleteKey(key_of(name(index - 2), rank()));
    store.set(key_of(meeting, rank()), "");
    if (store.add(meeting + "/count", 1) == size()) settle(store, meeting + "/outcome", {});
    wait_for_all(purpose, meeting, patience);
  } catch (const ConfigError&) {
    throw;
  } catch (...) {
    std::rethrow_exception(explain(std::current_exception(), "meet", patience));
  }
}

void Communicator::meet(const std::string& purpose, std::chrono::milliseconds patience) const {
  impl_->meet(purpose, patience);
}

}  // namespace lockstep
