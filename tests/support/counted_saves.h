#pragma once

#include <lockstep/callbacks.h>

#include <atomic>
#include <string>

namespace lockstep::test {

// Counts the states that a training saves, and can make the writing of one of them fail.
class CountedSaves : public Callback {
 public:
  // `broken`: the save, from 1 on, that fails while it is written; 0: none does.
  explicit CountedSaves(int broken = 0) : Callback({.on = Stage::kTrainEnd}), broken_(broken) {}

  std::string name() const override { return "counted_saves"; }
  // A text that is not UTF-8 cannot be written to a manifest.
  std::string state() const override { return ++count_ == broken_ ? "\xff" : "fine"; }
  int count() const { return count_; }

 protected:
  void run(Trainer&) override {}

 private:
  const int broken_;
  mutable std::atomic<int> count_ = 0;
};

}  // namespace lockstep::test
