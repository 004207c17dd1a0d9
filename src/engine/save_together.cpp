#include "engine/save_together.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>

#include "checkpoint/error.h"

namespace lockstep::engine {
namespace {

using checkpoint::CheckpointError;

// What a rank's work came to, so that it can be told to the others.
nlohmann::json attempt(const std::function<nlohmann::json()>& work) {
  try {
    return {{"result", work()}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

// Errors may hold bytes that are no UTF-8.
std::string to_text(const nlohmann::json& outcome) {
  return outcome.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void throw_if_failed(const nlohmann::json& outcome, int rank) {
  if (!outcome.contains("error")) return;
  throw CheckpointError(fmt::format("rank {}: {}", rank, outcome.at("error").get<std::string>()));
}

nlohmann::json from_main_rank(const Communicator& group, const std::function<nlohmann::json()>& work) {
  std::string text;
  if (group.rank() == 0) text = to_text(attempt(work));
  const nlohmann::json outcome = nlohmann::json::parse(group.broadcast_bytes(std::move(text)));
  throw_if_failed(outcome, 0);
  return outcome.at("result");
}

std::vector<nlohmann::json> from_all_ranks(const Communicator& group,
                                           const std::function<nlohmann::json()>& work) {
  std::vector<nlohmann::json> results;
  for (const std::string& text : group.all_gather_bytes(to_text(attempt(work)))) {
    const nlohmann::json outcome = nlohmann::json::parse(text);
    throw_if_failed(outcome, static_cast<int>(results.size()));
    results.push_back(outcome.at("result"));
  }
  return results;
}

}  // namespace

checkpoint::Entry save_together(const Communicator& group, checkpoint::Store* store,
                                const checkpoint::Snapshot& snapshot) {
  const auto sizes =
      from_all_ranks(group, [&] { return nlohmann::json(checkpoint::shard_bytes(snapshot.pieces)); });
  const int64_t bytes =
      std::accumulate(sizes.begin(), sizes.end(), int64_t{0},
                      [](int64_t sum, const auto& size) { return sum + size.template get<int64_t>(); });
  std::optional<checkpoint::Draft> draft;
  const std::filesystem::path folder = from_main_rank(group, [&] {
                                         draft.emplace(store->begin(snapshot.step, bytes));
                                         return nlohmann::json(draft->folder().string());
                                       }).get<std::string>();
  const auto indices = from_all_ranks(group, [&] {
    return checkpoint::write_shard(checkpoint::real_files(), folder, group.rank(), group.size(),
                                   snapshot.pieces)
        .to_json();
  });
  checkpoint::Entry entry;
  from_main_rank(group, [&] {
    std::vector<checkpoint::ShardIndex> shards;
    for (const nlohmann::json& index : indices) shards.push_back(checkpoint::ShardIndex::from_json(index));
    entry = store->publish(std::move(*draft), shards, snapshot);
    return nlohmann::json(nullptr);
  });
  return entry;
}

}  // namespace lockstep::engine
