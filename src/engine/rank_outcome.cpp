#include "engine/rank_outcome.h"

#include <exception>

namespace lockstep::engine {
namespace {

std::string outcome_text(const RankWork& work) {
  Json outcome;
  try {
    outcome["result"] = work();
  } catch (const std::exception& error) {
    outcome["error"] = error.what();
  }
  // Errors may hold bytes that are no UTF-8.
  return outcome.dump(Json::Print{.replace_invalid = true});
}

}  // namespace

Json outcome_of_main_rank(const Communicator& group, const RankWork& work) {
  return Json::parse(group.broadcast_bytes(group.rank() == 0 ? outcome_text(work) : std::string()));
}

std::vector<Json> outcomes_of_all_ranks(const Communicator& group, const RankWork& work) {
  std::vector<Json> outcomes;
  for (const std::string& text : group.all_gather_bytes(outcome_text(work))) {
    outcomes.push_back(Json::parse(text));
  }
  return outcomes;
}

}  // namespace lockstep::engine
