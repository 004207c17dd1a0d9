#pragma once

#include <cstdint>
#include <string>

namespace lockstep::images {

// Whether labels are classes, and how many classes there are: as many as said, or, where
// nothing is said (0), one more than the largest label.
class LabelCheck {
 public:
  explicit LabelCheck(int64_t num_classes);

  // false: no such class.
  bool take(int64_t label);
  std::string complaint(int64_t label) const;
  int64_t num_classes() const;

 private:
  int64_t limit_;
  bool is_said_;
  int64_t largest_ = -1;
};

}  // namespace lockstep::images
