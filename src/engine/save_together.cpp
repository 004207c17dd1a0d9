#include "engine/save_together.h"

#include <fmt/format.h>

#include <numeric>

#include "checkpoint/error.h"
#include "comm/communicator_impl.h"
#include "engine/rank_outcome.h"

namespace lockstep::engine {
namespace {

using checkpoint::CheckpointError;

Json result_of(const Json& outcome, size_t rank) {
  if (!outcome.contains("error")) return outcome.at("result");
  throw CheckpointError(fmt::format("rank {}: {}", rank, outcome.at("error").get<std::string>()));
}

Json from_main_rank(const Communicator& group, const RankWork& work) {
  return result_of(outcome_of_main_rank(group, work), 0);
}

std::vector<Json> from_all_ranks(const Communicator& group, const RankWork& work) {
  std::vector<Json> results;
  for (const Json& outcome : outcomes_of_all_ranks(group, work)) {
    results.push_back(result_of(outcome, results.size()));
  }
  return results;
}

}  // namespace

checkpoint::Entry save_together(const Communicator& group, checkpoint::Store* store,
                                const checkpoint::Snapshot& snapshot, checkpoint::FileSystem& files) {
  const auto sizes = from_all_ranks(group, [&] { return Json(checkpoint::shard_bytes(snapshot.pieces)); });
  const int64_t bytes =
      std::accumulate(sizes.begin(), sizes.end(), int64_t{0},
                      [](int64_t sum, const auto& size) { return sum + size.template get<int64_t>(); });
  std::optional<checkpoint::Draft> draft;
  const std::filesystem::path folder = from_main_rank(group, [&] {
                                         draft.emplace(store->begin(snapshot.step, bytes));
                                         return Json(draft->folder().string());
                                       }).get<std::string>();
  std::string own_index;
  from_all_ranks(group, [&] {
    own_index =
        checkpoint::write_shard(files, folder, group.rank(), group.size(), snapshot.pieces).to_json().dump();
    return Json(nullptr);
  });
  // To rank 0 alone: with a thousand ranks the indices are hundreds of megabytes.
  std::vector<std::string> indices = comm::gather_bytes(group, own_index, 0);
  checkpoint::Entry entry;
  from_main_rank(group, [&] {
    std::vector<checkpoint::ShardIndex> shards;
    for (std::string& index : indices) {
      shards.push_back(checkpoint::ShardIndex::from_json(Json::parse(index)));
      index = {};
    }
    entry = store->publish(std::move(*draft), std::move(shards), snapshot);
    return Json(nullptr);
  });
  return entry;
}

}  // namespace lockstep::engine
