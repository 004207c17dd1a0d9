#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>

namespace lockstep::shard {

// Copies between a device and host memory that run beside the computation, on a stream of
// their own. Where the device is the CPU they are plain copies, done when they return.
//
// One thread at a time.
class CopyLane {
 public:
  explicit CopyLane(c10::Device device);

  // The end of a copy. A default one is done.
  class Mark {
   public:
    // The current stream waits; this thread does not.
    void wait_on_device() const;
    // This thread waits.
    void wait() const;

   private:
    friend class CopyLane;
    std::shared_ptr<c10::Event> event_;
    std::optional<c10::Device> device_;
  };

  // Starts when the current stream has done what it was given so far. Who changes `from` or
  // reads `to` waits for the mark; memory of the device may be let go at once.
  Mark copy(const at::Tensor& to, const at::Tensor& from);
  // All copies so far are done.
  void finish();

  bool is_plain() const { return !stream_; }

 private:
  Mark mark() const;
  void follow_current() const;

  const c10::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace lockstep::shard
