#pragma once

#include <c10/util/intrusive_ptr.h>

#include <deque>
#include <memory>
#include <vector>

#include "comm/shm/regions.h"
#include "comm/shm/work.h"

namespace lockstep::comm::shm {

// Sends and receives of one rank. A receive takes the oldest message of its source and tag; a send
// is done when its message is taken. Nothing blocks. Used by one thread at a time.
class PointToPoint {
 public:
  PointToPoint(const std::vector<Peer>& peers, int rank, std::shared_ptr<OwnRegions> own_regions);

  void start(c10::intrusive_ptr<MessageWork> work);
  // Does all that is possible now. False: nothing was. Throws CommError if a message does not fit its
  // receive.
  bool progress();

  bool idle() const { return pending_.empty(); }
  size_t num_pending() const { return pending_.size(); }
  void clear() { pending_.clear(); }

 private:
  // A message that was taken before a receive asked for it.
  struct Unexpected {
    int source;
    int tag;
    std::vector<std::byte> bytes;
  };
  struct StagingBlock {
    std::shared_ptr<std::byte> memory;
    uint64_t bytes;
  };

  Post& post_to(int peer, int index) { return peers_[rank_].home().posts[peer][index]; }
  Post& post_from(int peer, int index) { return peers_[peer].home().posts[rank_][index]; }
  bool advance_send(MessageWork& work);
  bool advance_recv(MessageWork& work);
  bool take_unexpected(MessageWork& work);
  Post* oldest_post(int peer, int tag, int& num_taken);
  void post(MessageWork& work, int index);
  void stage(MessageWork& work);
  // Takes all messages of the peer. If they use all posts and none of them fits the receive, the
  // message that does may wait behind them.
  bool make_room(int peer);
  void take(Post& post, int peer, std::byte* to);
  // Whether no earlier pending operation has to come first.
  bool has_precedence(size_t index) const;

  const std::vector<Peer>& peers_;
  int rank_;
  std::shared_ptr<OwnRegions> own_regions_;
  std::vector<PeerRegions> peer_regions_;
  std::vector<uint64_t> num_posted_;  // by peer
  std::deque<c10::intrusive_ptr<MessageWork>> pending_;
  std::deque<Unexpected> unexpected_;
  std::vector<StagingBlock> free_blocks_;
};

}  // namespace lockstep::comm::shm
