#include "optim/for_blocks.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

namespace lockstep::optim {

// The loop of an iterator over one byte a block: that one LibTorch has compiled.
void for_blocks(int64_t blocks, const std::function<void(int64_t begin, int64_t end)>& body) {
  if (blocks <= 1) {
    if (blocks == 1) body(0, 1);
    return;
  }
  const at::Tensor marks = at::empty({blocks}, at::kByte);
  const char* first = static_cast<const char*>(marks.const_data_ptr());
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .check_all_same_dtype(false)
                                    .resize_outputs(false)
                                    .add_owned_output(marks)
                                    .build();
  iterator.for_each(
      [&](char** data, const int64_t* /*strides*/, int64_t count) {
        const int64_t begin = data[0] - first;
        body(begin, begin + count);
      },
      /*grain_size=*/1);
}

}  // namespace lockstep::optim
