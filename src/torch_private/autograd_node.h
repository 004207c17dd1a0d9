#pragma once

// Nodes of autograd's graph. LibTorch up to 2.12 owns them by std::shared_ptr with a special deleter,
// from 2.13 on by c10::intrusive_ptr. The type of Edge::function shows which.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep::torch_private {

using NodePtr = decltype(torch::autograd::Edge::function);

// Makes a T, which derives from Node, with the owner type of the graph. A long graph is freed without
// recursion.
template <typename T, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    // Found by the namespace of its argument: later versions have no such function.
    const auto free_node = [](auto* node) { deleteNode(node); };
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), free_node);
  } else {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace lockstep::torch_private
