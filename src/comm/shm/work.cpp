#include "comm/shm/work.h"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>

#include "comm/shm/group.h"

namespace lockstep::comm::shm {

GroupWork::GroupWork(std::shared_ptr<Group> group, c10d::OpType type, std::chrono::milliseconds timeout)
    : c10d::Work(group->rank(), type), group_(std::move(group)), timeout_(timeout) {}

bool GroupWork::isCompleted() {
  if (!done) {
    group_->poll(*this);
  }
  return done || group_->failure() != nullptr;
}

bool GroupWork::isSuccess() const { return done; }

std::exception_ptr GroupWork::exception() const { return done ? nullptr : group_->failure(); }

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  if (!done) {
    group_->wait(*this, timeout == kNoTimeout ? timeout_ : timeout);
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  wait();
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(tensors);
  return future;
}

std::string MessageWork::description() const {
  return fmt::format("{} of {} bytes {} rank {} with tag {}", is_send ? "send" : "recv", bytes,
                     is_send ? "to" : "from", peer, tag);
}

}  // namespace lockstep::comm::shm
