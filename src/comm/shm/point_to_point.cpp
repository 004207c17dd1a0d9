#include "comm/shm/point_to_point.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace lockstep::comm::shm {
namespace {

void check_size(const MessageWork& work, int rank, uint64_t sent_bytes) {
  if (sent_bytes != work.bytes) {
    throw CommError(
        "shm",
        fmt::format("a message does not fit its receive: rank {} sent {} bytes with tag {}, rank {} "
                    "receives {} bytes",
                    work.peer, sent_bytes, work.tag, rank, work.bytes),
        CommError::Recovery::kFatal, work.peer);
  }
}

}  // namespace

PointToPoint::PointToPoint(const std::vector<Peer>& peers, int rank, std::shared_ptr<OwnRegions> own_regions)
    : peers_(peers), rank_(rank), own_regions_(std::move(own_regions)), num_posted_(peers.size()) {
  for (const auto& peer : peers) {
    peer_regions_.emplace_back(peer);
  }
}

void PointToPoint::start(c10::intrusive_ptr<MessageWork> work) {
  pending_.push_back(std::move(work));
  if (pending_.back()->is_send && has_precedence(pending_.size() - 1)) {
    advance_send(*pending_.back());
  }
}

bool PointToPoint::has_precedence(size_t index) const {
  const MessageWork& work = *pending_[index];
  return std::none_of(
      pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(index), [&](const auto& earlier) {
        // Posted sends are in order; unposted sends to one peer keep their order.
        return earlier->is_send == work.is_send && earlier->peer == work.peer && !earlier->done &&
               (work.is_send ? earlier->post < 0 : earlier->tag == work.tag);
      });
}

bool PointToPoint::progress() {
  bool any = false;
  for (size_t i = 0; i < pending_.size(); ++i) {
    MessageWork& work = *pending_[i];
    if (work.is_send ? (work.post >= 0 || has_precedence(i)) : has_precedence(i)) {
      any |= work.is_send ? advance_send(work) : advance_recv(work);
    }
  }
  std::erase_if(pending_, [](const auto& work) { return work->done; });
  return any;
}

bool PointToPoint::advance_send(MessageWork& work) {
  if (work.post < 0) {
    for (int i = 0; i < kPosts; ++i) {
      if (post_to(work.peer, i).number.load(std::memory_order_acquire) == Post::kFree) {
        post(work, i);
        return true;
      }
    }
    return false;
  }
  // The message is taken if the post is free or has a later message.
  if (post_to(work.peer, work.post).number.load(std::memory_order_acquire) == work.number) return false;
  if (work.staged != nullptr) {
    free_blocks_.push_back({std::move(work.staged), work.staged_bytes});
  }
  work.done = true;
  return true;
}

void PointToPoint::post(MessageWork& work, int index) {
  Post& post = post_to(work.peer, index);
  post.bytes = work.bytes;
  post.tag = work.tag;
  post.location = {};
  if (work.bytes > 0) {
    auto location = own_regions_->find(work.data, work.bytes);
    if (!location) {
      stage(work);
      location = own_regions_->find(work.staged.get(), work.bytes);
    }
    post.location = *location;
  }
  work.post = index;
  work.number = ++num_posted_[work.peer];
  post.number.store(work.number, std::memory_order_release);
}

void PointToPoint::stage(MessageWork& work) {
  const auto block =
      std::find_if(free_blocks_.begin(), free_blocks_.end(),
                   [&](const StagingBlock& candidate) { return candidate.bytes >= work.bytes; });
  if (block != free_blocks_.end()) {
    work.staged = std::move(block->memory);
    work.staged_bytes = block->bytes;
    free_blocks_.erase(block);
  } else {
    work.staged_bytes = std::max<uint64_t>(4096, std::bit_ceil(work.bytes));
    work.staged = own_regions_->allocate(work.staged_bytes, OwnRegions::Use::kMessage);
    // There is a region for each posted message, so a full table has blocks that no message uses,
    // all too small for this one.
    while (work.staged == nullptr && !free_blocks_.empty()) {
      free_blocks_.pop_back();
      work.staged = own_regions_->allocate(work.staged_bytes, OwnRegions::Use::kMessage);
    }
    base::check(work.staged != nullptr, "a message has no place in the region table");
  }
  std::memcpy(work.staged.get(), work.data, work.bytes);
}

void PointToPoint::take(Post& post, int peer, std::byte* to) {
  if (post.bytes > 0) {
    std::memcpy(to, peer_regions_[peer].resolve(post.location), post.bytes);
  }
  post.number.store(Post::kFree, std::memory_order_release);
  peer_regions_[peer].forget_freed();
}

bool PointToPoint::take_unexpected(MessageWork& work) {
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& message) {
    return message.source == work.peer && message.tag == work.tag;
  });
  if (found == unexpected_.end()) return false;
  check_size(work, rank_, found->bytes.size());
  std::copy(found->bytes.begin(), found->bytes.end(), work.data);
  unexpected_.erase(found);
  work.done = true;
  return true;
}

bool PointToPoint::advance_recv(MessageWork& work) {
  if (take_unexpected(work)) return true;
  int num_taken = 0;
  Post* oldest = oldest_post(work.peer, work.tag, num_taken);
  if (oldest == nullptr) return num_taken == kPosts && make_room(work.peer);
  // An older message may have come to a post after this rank read that post. A second pass sees it,
  // because the first has seen a younger message.
  oldest = oldest_post(work.peer, work.tag, num_taken);
  check_size(work, rank_, oldest->bytes);
  take(*oldest, work.peer, work.data);
  work.done = true;
  return true;
}

Post* PointToPoint::oldest_post(int peer, int tag, int& num_taken) {
  Post* oldest = nullptr;
  uint64_t oldest_number = 0;
  num_taken = 0;
  for (int i = 0; i < kPosts; ++i) {
    Post& post = post_from(peer, i);
    const uint64_t number = post.number.load(std::memory_order_acquire);
    num_taken += number != Post::kFree ? 1 : 0;
    if (number != Post::kFree && post.tag == tag && (oldest == nullptr || number < oldest_number)) {
      oldest = &post;
      oldest_number = number;
    }
  }
  return oldest;
}

bool PointToPoint::make_room(int peer) {
  std::vector<Post*> posts;
  for (int i = 0; i < kPosts; ++i) {
    posts.push_back(&post_from(peer, i));
  }
  std::sort(posts.begin(), posts.end(), [](const Post* a, const Post* b) {
    return a->number.load(std::memory_order_relaxed) < b->number.load(std::memory_order_relaxed);
  });
  for (Post* post : posts) {
    Unexpected message{peer, post->tag, std::vector<std::byte>(post->bytes)};
    take(*post, peer, message.bytes.data());
    unexpected_.push_back(std::move(message));
  }
  return true;
}

}  // namespace lockstep::comm::shm
