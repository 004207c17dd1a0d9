#include "images/label_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "images/packed_images.h"

namespace lockstep::images {

LabelCheck::LabelCheck(int64_t num_classes)
    : limit_(num_classes > 0 ? num_classes : kMaxClasses), is_said_(num_classes > 0) {}

bool LabelCheck::take(int64_t label) {
  largest_ = std::max(largest_, label);
  return 0 <= label && label < limit_;
}

std::string LabelCheck::complaint(int64_t label) const {
  return fmt::format("label {} is not in 0 to {}", label, limit_ - 1);
}

int64_t LabelCheck::num_classes() const { return is_said_ ? limit_ : largest_ + 1; }

}  // namespace lockstep::images
