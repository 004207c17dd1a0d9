#include "parallel/save_shards.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <string>

#include "checkpoint/error.h"
#include "comm/agree.h"
#include "comm/communicator_internal.h"

namespace lockstep::parallel {
namespace {

using checkpoint::CheckpointError;

using RankWork = std::function<std::string()>;

std::string result_of(const comm::RankOutcome& outcome, size_t rank) {
  if (outcome.failed) throw CheckpointError(fmt::format("rank {}: {}", rank, outcome.text));
  return outcome.text;
}

// All ranks throw a CheckpointError if the work fails.
std::string from_main_rank(const Communicator& group, const RankWork& work) {
  return result_of(comm::outcome_of_main_rank(group, work), 0);
}

std::vector<std::string> from_all_ranks(const Communicator& group, const RankWork& work) {
  std::vector<std::string> results;
  for (const comm::RankOutcome& outcome : comm::outcomes_of_all_ranks(group, work)) {
    results.push_back(result_of(outcome, results.size()));
  }
  return results;
}

}  // namespace

checkpoint::Entry save_shards(const Communicator& group, checkpoint::Store* store,
                              const checkpoint::Snapshot& snapshot, checkpoint::FileSystem& files) {
  const auto sizes =
      from_all_ranks(group, [&] { return std::to_string(checkpoint::shard_bytes(snapshot.pieces)); });
  const int64_t bytes =
      std::accumulate(sizes.begin(), sizes.end(), int64_t{0},
                      [](int64_t sum, const std::string& size) { return sum + std::stoll(size); });
  std::optional<checkpoint::Draft> draft;
  const std::filesystem::path folder = from_main_rank(group, [&] {
    draft.emplace(store->begin(snapshot.step, bytes));
    return draft->folder().string();
  });
  std::string own_index;
  from_all_ranks(group, [&] {
    own_index =
        checkpoint::write_shard(files, folder, group.rank(), group.size(), snapshot.pieces).to_json().dump();
    return std::string();
  });
  // Only to rank 0: with a thousand ranks the indices are hundreds of megabytes.
  std::vector<std::string> indices = comm::gather_bytes(group, own_index, 0);
  checkpoint::Entry entry;
  from_main_rank(group, [&] {
    std::vector<checkpoint::ShardIndex> shards;
    for (std::string& index : indices) {
      shards.push_back(checkpoint::ShardIndex::from_json(Json::parse(index)));
      index = {};
    }
    entry = store->publish(std::move(*draft), std::move(shards), snapshot);
    return std::string();
  });
  return entry;
}

}  // namespace lockstep::parallel
