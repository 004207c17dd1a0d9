#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

namespace lockstep::optim {

// Steps of optimizers on flat memory, in one pass: a gradient is read once, parameter and state are read
// and written once, and a 16-bit copy of the parameter is written in the same pass.
//
// Each element is computed independently, by operations in a fixed order that every instruction set
// supports (fused multiply-adds are explicit). Results do not depend on where a range begins, on how a
// step is divided into ranges, or on the machine.
//
// LibTorch's fused Adam rounds the elements after the last whole vector of a tensor, its tail, in another
// order. Which elements these are follows from the tensor and not from the range that has them, so a shard
// gets the bits of whole tensors.

enum class FlatType : uint8_t { kFloat, kBFloat16, kHalf };
size_t size_of(FlatType type);

// Ranges of `numel` elements each, aligned to their element only. They may not overlap.
struct FlatMemory {
  size_t numel = 0;
  float* parameters = nullptr;
  const void* gradients = nullptr;
  FlatType gradient_type = FlatType::kFloat;
  // Every gradient is multiplied by this, in float32: 1 / loss scale, clipping.
  float gradient_factor = 1;
  // exp_avg of Adam and Lion, momentum of SGD (null without), sum of Adagrad.
  float* state = nullptr;
  float* second_state = nullptr;  // exp_avg_sq of Adam
  // Receives the updated parameters, rounded to 16 bits or as they are. Null: no copy.
  void* copy = nullptr;
  FlatType copy_type = FlatType::kBFloat16;

  // `count` elements from `first` on.
  FlatMemory part(size_t first, size_t count) const;
};

// Elements of a FlatMemory: begin to end, end excluded.
struct FlatSegment {
  size_t begin = 0;
  size_t end = 0;
};

// The number of elements of a tensor, in the order in memory, before its tail. The vectors of LibTorch's
// kernel have 8 elements on every CPU with AVX2, also on one with AVX-512.
constexpr int64_t before_tail(int64_t numel) { return numel - numel % 8; }

// The bits of LibTorch's _fused_adam_ and _fused_adamw_ on a CPU with AVX2, in one thread: with more threads
// LibTorch divides a tensor among them, and each part has a tail.
struct AdamRule {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_decay = false;  // AdamW
  int64_t step = 1;              // of this step; the first is 1
  bool tail = false;             // the elements are those of tails
};

// torch.optim.Adagrad. Equals DeepSpeed's if weight_decay is 0; DeepSpeed's decay affects the sum of
// squares only.
struct AdagradRule {
  double lr = 1e-2;
  double lr_decay = 0;
  double eps = 1e-10;
  double weight_decay = 0;
  int64_t step = 1;
};

// Lion with decoupled weight decay. Equals DeepSpeed's, except that an element whose update is exactly 0
// does not change: the sign of 0 is 0, as in the paper.
struct LionRule {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

// The bits of LibTorch's _fused_sgd_ on a CPU with AVX2.
struct SgdRule {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first_step = false;  // the momentum is written without being read
};

using FlatRule = std::variant<AdamRule, AdagradRule, LionRule, SgdRule>;

// One step on this thread, with the widest instructions of the CPU.
void step_range(const FlatRule& rule, const FlatMemory& memory);

// For tests: the instruction sets of this CPU, the portable one first, and a step with one of them.
enum class InstructionSet : uint8_t { kPortable, kAvx2, kAvx512 };
std::vector<InstructionSet> instruction_sets();
void step_range(const FlatRule& rule, const FlatMemory& memory, InstructionSet set);

}  // namespace lockstep::optim
