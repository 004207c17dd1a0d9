#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace lockstep::comm {

// Groups through which a collective travels, in this order: to the leader of the
// host, between the leaders, back from the leader.
enum class Channel { kUp, kCross, kDown };
inline constexpr size_t kNumChannels = 3;

struct Stage {
  Channel channel;
  std::function<c10::intrusive_ptr<c10d::Work>()> start;
};

// Runs collectives that are made of stages. Ranks of one channel must start its
// stages in one order, whatever the timing, so a stage waits until the stages of
// all earlier collectives on its channel have been started; different channels
// overlap. Nothing moves but inside progress(), in the calling thread.
//
// One thread at a time, abort() apart.
class Pipeline : public std::enable_shared_from_this<Pipeline> {
 public:
  // `rank_in_group` turns a rank of a channel's group, which its CommError names,
  // into a rank of the whole group.
  using RankInGroup = std::function<int(Channel channel, int rank)>;
  Pipeline(int rank, RankInGroup rank_in_group);
  ~Pipeline();

  // `finish` runs after the last stage. Throws what broke the pipeline before.
  c10::intrusive_ptr<c10d::Work> submit(c10d::OpType operation, std::vector<Stage> stages,
                                        std::chrono::milliseconds timeout, std::function<void()> finish = {});

  // Starts what can be started and finishes what is finished. Whether anything moved.
  bool progress();

  // Makes everything pending and later throw. From any thread.
  void abort() { aborted_ = true; }
  bool is_aborted() const { return aborted_; }

 private:
  class StagedWork;

  bool advance(StagedWork& work);
  // Starts a stage, or looks whether it is done.
  template <typename Step>
  auto run_step(Channel channel, Step&& step);
  void fail(std::exception_ptr failure);

  const int rank_;
  const RankInGroup rank_in_group_;
  std::deque<c10::intrusive_ptr<StagedWork>> pending_;
  std::array<uint64_t, kNumChannels> submitted_{};  // stages of each channel
  std::array<uint64_t, kNumChannels> started_{};
  std::exception_ptr failure_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace lockstep::comm
