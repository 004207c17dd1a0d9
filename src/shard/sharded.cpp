#include <ATen/ATen.h>
#include <lockstep/sharded.h>

namespace lockstep::shard {

void Unit::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return;
  // Runs when the output's gradient is there, before the nodes that made the output.
  output.register_hook([link = link_](const at::Tensor&) {
    if (link->watcher != nullptr) link->watcher->before_backward(link->index);
  });
}

}  // namespace lockstep::shard
