#include <lockstep/communicator.h>

#include "comm/communicator_impl.h"
#include "comm/device_wait.h"

namespace lockstep {

std::shared_ptr<Work::Impl> Communicator::Impl::new_work(std::string_view operation, Timeout timeout) {
  auto work = std::make_shared<Work::Impl>();
  work->group = shared_from_this();
  work->operation = operation;
  work->timeout = comm::bounded(timeout.value_or(request_.options.timeout));
  // A backend whose operations run on after wait() tells it itself.
  if (size() > 1 && !transport_.failure) work->told.start(operation);
  return work;
}

void Communicator::Impl::finish_observed(Work& work, comm::Call call,
                                         std::chrono::steady_clock::time_point began) const {
  work.wait();
  comm::wait_for_device(device());
  call.time = std::chrono::steady_clock::now() - began;
  observer_->called(call);
}

void Work::wait() {
  if (impl_ == nullptr) {
    return;
  }
  if (impl_->failure) {
    std::rethrow_exception(impl_->failure);
  }
  if (impl_->work == nullptr) {
    return;
  }
  impl_->told.resume(impl_->operation);
  try {
    impl_->work->wait(impl_->wait_timeout);
    impl_->group->throw_if_failed(impl_->operation, impl_->timeout);
  } catch (...) {
    impl_->failure = impl_->group->explain(std::current_exception(), impl_->operation, impl_->timeout);
    std::rethrow_exception(impl_->failure);
  }
  impl_->work = nullptr;
  impl_->told.finish();
}

void Work::set_aside() {
  if (impl_ != nullptr) impl_->told.pause();
}

bool Work::done() {
  return impl_ == nullptr || impl_->failure || impl_->work == nullptr || impl_->work->isCompleted();
}

}  // namespace lockstep
