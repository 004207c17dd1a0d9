#pragma once

// c10d: names that differ between the versions of LibTorch.

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace lockstep::torch_private {

// NCCL's sum of each contribution times `factor`. c10d's function for it has another name from LibTorch
// 2.13 on, where the old name of the supplement is an alias of the new one.
inline c10d::ReduceOp premultiplied_sum(double factor) {
  c10d::ReduceOp op;
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(factor);
  return op;
}

// From LibTorch 2.14 on c10d calls its collectives on one tensor all_gather_single,
// reduce_scatter_single and all_to_all_single; _allgather_base, _reduce_scatter_base and
// alltoall_base are deprecated names, which call the new ones.
template <typename Backend>
concept HasSingleNames = requires {
  &Backend::all_gather_single;
};

// A backend of LibTorch whose new names call the old ones: a class that derives from this overrides
// the old names and is called by both.
template <HasSingleNames Base>
class OldNames : public Base {
 public:
  using Base::Base;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override {
    return this->_allgather_base(output, input, options);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return Base::all_gather_single(output, input, options);
  }

  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    return this->_reduce_scatter_base(output, input, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return Base::reduce_scatter_single(output, input, options);
  }

  WorkPtr all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override {
    return this->alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return Base::all_to_all_single(output, input, output_splits, input_splits, options);
  }
};

template <typename Base>
struct WithOldNamesOf {
  using Type = Base;
};
template <HasSingleNames Base>
struct WithOldNamesOf<Base> {
  using Type = OldNames<Base>;
};

// Base class of our backends that override a backend of LibTorch by the old names.
template <typename Base>
using WithOldNames = typename WithOldNamesOf<Base>::Type;

}  // namespace lockstep::torch_private
