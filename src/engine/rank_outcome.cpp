#include "engine/rank_outcome.h"

#include <exception>

namespace lockstep::engine {
namespace {

std::string outcome_text(const RankWork& work) {
  nlohmann::json outcome;
  try {
    outcome["result"] = work();
  } catch (const std::exception& error) {
    outcome["error"] = error.what();
  }
  // Errors may hold bytes that are no UTF-8.
  return outcome.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

nlohmann::json outcome_of_main_rank(const Communicator& group, const RankWork& work) {
  return nlohmann::json::parse(group.broadcast_bytes(group.rank() == 0 ? outcome_text(work) : std::string()));
}

std::vector<nlohmann::json> outcomes_of_all_ranks(const Communicator& group, const RankWork& work) {
  std::vector<nlohmann::json> outcomes;
  for (const std::string& text : group.all_gather_bytes(outcome_text(work))) {
    outcomes.push_back(nlohmann::json::parse(text));
  }
  return outcomes;
}

}  // namespace lockstep::engine
