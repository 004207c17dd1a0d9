#include "optim/flat_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <numeric>

#include "optim/flat_step.h"
#include "support/formula.h"

namespace lockstep::optim {
namespace {

using test::formula;
using test::same_bits;

// Gradients of many magnitudes, so that every rounding has its say.
at::Tensor gradient_of(int64_t numel, int64_t step) {
  return formula({numel}, 10 + step) * at::pow(10, (formula({numel}, 50 + step) * 12).floor());
}

// What one step works on, as tensors.
struct Memory {
  at::Tensor parameters, first, second;

  explicit Memory(int64_t numel)
      : parameters(formula({numel}, 1)), first(at::zeros({numel})), second(at::zeros({numel})) {}
  Memory(at::Tensor parameters_, at::Tensor first_, at::Tensor second_)
      : parameters(std::move(parameters_)), first(std::move(first_)), second(std::move(second_)) {}
  explicit Memory(const Memory& other, int64_t offset)  // unaligned by so many elements
      : parameters(moved(other.parameters, offset)),
        first(moved(other.first, offset)),
        second(moved(other.second, offset)) {}

  static at::Tensor moved(const at::Tensor& tensor, int64_t offset) {
    return at::cat({at::zeros({offset}), tensor}).narrow(0, offset, tensor.numel());
  }

  Memory part(int64_t offset, int64_t count) const {
    return {parameters.narrow(0, offset, count), first.narrow(0, offset, count),
            second.narrow(0, offset, count)};
  }

  FlatMemory flat(const at::Tensor& gradient) const {
    FlatMemory memory;
    memory.numel = static_cast<size_t>(parameters.numel());
    memory.parameters = parameters.data_ptr<float>();
    memory.state = first.data_ptr<float>();
    memory.second_state = second.data_ptr<float>();
    memory.gradients = gradient.const_data_ptr();
    if (gradient.scalar_type() == at::kBFloat16) memory.gradient_type = FlatType::kBFloat16;
    if (gradient.scalar_type() == at::kHalf) memory.gradient_type = FlatType::kHalf;
    return memory;
  }

  bool operator==(const Memory& other) const {
    return same_bits(parameters, other.parameters) && same_bits(first, other.first) &&
           same_bits(second, other.second);
  }
};

std::vector<std::pair<std::string, FlatRule>> rules() {
  return {{"Adam", AdamRule{}},
          {"Adam with decay", AdamRule{.weight_decay = 0.1}},
          {"AdamW", AdamRule{.beta1 = 0.3, .weight_decay = 0.1, .decoupled_decay = true}},
          {"a tail of Adam", AdamRule{.weight_decay = 0.1, .tail = true}},
          {"Adagrad", AdagradRule{.lr_decay = 0.1}},
          {"Adagrad with decay", AdagradRule{.weight_decay = 0.1}},
          {"Lion", LionRule{}},
          {"Lion with decay", LionRule{.weight_decay = 0.1}},
          {"SGD", SgdRule{.lr = 0.1}},
          {"SGD with decay", SgdRule{.lr = 0.1, .weight_decay = 0.1}},
          {"SGD with momentum", SgdRule{.lr = 0.1, .momentum = 0.9, .dampening = 0.2}},
          {"SGD with Nesterov", SgdRule{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}}};
}

FlatRule at_step(FlatRule rule, int64_t step) {
  if (auto* adam = std::get_if<AdamRule>(&rule)) adam->step = step;
  if (auto* adagrad = std::get_if<AdagradRule>(&rule)) adagrad->step = step;
  if (auto* sgd = std::get_if<SgdRule>(&rule)) sgd->first_step = step == 1;
  return rule;
}

constexpr int64_t kSteps = 3;
const std::vector<int64_t> kSizes{0, 1, 7, 63, 1025, 1000003};

TEST(FlatKernels, EveryInstructionSetHasTheSameBits) {
  for (const auto& [name, rule] : rules()) {
    for (const int64_t numel : {0, 1, 7, 63, 3001}) {
      Memory portable(numel);
      std::map<InstructionSet, Memory> others;
      for (const InstructionSet set : instruction_sets()) others.emplace(set, Memory(numel));
      for (int64_t step = 1; step <= kSteps; ++step) {
        const at::Tensor gradient = gradient_of(numel, step);
        step_range(at_step(rule, step), portable.flat(gradient), InstructionSet::kPortable);
        for (auto& [set, memory] : others) step_range(at_step(rule, step), memory.flat(gradient), set);
      }
      for (const auto& [set, memory] : others) {
        EXPECT_TRUE(memory == portable) << name << " of " << numel << " by set " << static_cast<int>(set);
      }
    }
  }
}

TEST(FlatKernels, ThreadsAndCutsAndAlignmentChangeNothing) {
  const int threads_before = at::get_num_threads();
  for (const auto& [name, rule] : rules()) {
    for (const int64_t numel : kSizes) {
      Memory whole(numel);
      Memory threaded(numel);
      Memory moved(whole, 1);
      Memory cut(numel);
      for (int64_t step = 1; step <= kSteps; ++step) {
        const FlatRule now = at_step(rule, step);
        const at::Tensor gradient = gradient_of(numel, step);
        step_range(now, whole.flat(gradient));
        at::set_num_threads(1 + static_cast<int>(step));
        step_flat(now, threaded.flat(gradient));
        step_range(now, moved.flat(Memory::moved(gradient, 3)));
        const size_t head = static_cast<size_t>(numel) / 3;
        const FlatMemory all = cut.flat(gradient);
        step_range(now, all.part(head, all.numel - head));
        step_range(now, all.part(0, head));
      }
      EXPECT_TRUE(threaded == whole) << name << " of " << numel << " in threads";
      EXPECT_TRUE(moved == whole) << name << " of " << numel << " unaligned";
      EXPECT_TRUE(cut == whole) << name << " of " << numel << " in two parts";
    }
  }
  at::set_num_threads(threads_before);
}

TEST(FlatKernels, WideGradientsAndCopiesAreThoseOfConvertedTensors) {
  for (const auto& [name, rule] : rules()) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t numel : {1, 7, 63, 1025, 5000}) {
        const at::Tensor gradient = (formula({numel}, 3) * 8).to(type);
        Memory converted(numel);
        Memory direct(numel);
        const FlatRule now = at_step(rule, 1);
        step_range(now, converted.flat(gradient.to(at::kFloat) * 0.37F));
        for (const auto copy_type : {at::kFloat, at::kBFloat16, at::kHalf}) {
          Memory memory(numel);
          at::Tensor copy = at::zeros({numel}, copy_type);
          FlatMemory flat = memory.flat(gradient);
          flat.gradient_factor = 0.37F;
          flat.copy = copy.mutable_data_ptr();
          flat.copy_type = copy_type == at::kFloat      ? FlatType::kFloat
                           : copy_type == at::kBFloat16 ? FlatType::kBFloat16
                                                        : FlatType::kHalf;
          step_flat(now, flat);
          EXPECT_TRUE(memory == converted) << name << " of " << numel << " " << type << " " << copy_type;
          EXPECT_TRUE(same_bits(copy, memory.parameters.to(copy_type)))
              << name << " of " << numel << " " << type << " " << copy_type;
        }
      }
    }
  }
}

// A step of LibTorch's kernel. `count` is that of the steps before it.
void run_fused_adam(const AdamRule& rule, const Memory& memory, const at::Tensor& gradient,
                    const at::Tensor& count) {
  const auto run = [&](auto kernel) {
    kernel(at::TensorList{memory.parameters}, at::TensorList{gradient}, at::TensorList{memory.first},
           at::TensorList{memory.second}, at::TensorList{}, at::TensorList{count}, rule.lr, rule.beta1,
           rule.beta2, rule.weight_decay, rule.eps, false, false, std::optional<at::Tensor>(),
           std::optional<at::Tensor>());
  };
  count.add_(1);
  if (rule.decoupled_decay) {
    run([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    run([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  }
}

std::vector<AdamRule> adam_rules() {
  std::vector<AdamRule> rules;
  for (const bool decoupled : {false, true}) {
    for (const double weight_decay : {0.0, 0.1}) {
      for (const double beta1 : {0.9, 0.3}) {
        rules.push_back({.beta1 = beta1, .weight_decay = weight_decay, .decoupled_decay = decoupled});
      }
    }
  }
  return rules;
}

constexpr int64_t kAdamSteps = 20;

// With more threads LibTorch gives each part of a tensor a tail.
class FlatAdamTest : public testing::Test {
 protected:
  FlatAdamTest() { at::set_num_threads(1); }
  ~FlatAdamTest() override { at::set_num_threads(before_); }

 private:
  const int before_ = at::get_num_threads();
};

TEST_F(FlatAdamTest, HasTheBitsOfLibTorchsFusedKernel) {
  for (AdamRule rule : adam_rules()) {
    for (const int64_t numel : {1, 7, 8, 9, 23, 4096, 4103, 16387}) {
      const Memory own(numel);
      const Memory theirs(numel);
      const at::Tensor count = at::zeros({});
      for (rule.step = 1; rule.step <= kAdamSteps; ++rule.step) {
        const at::Tensor gradient = gradient_of(numel, rule.step);
        step_flat(rule, own.flat(gradient), StepsTails().tails_of(own.parameters));
        run_fused_adam(rule, theirs, gradient, count);
      }
      EXPECT_TRUE(own == theirs) << numel << " " << rule.decoupled_decay << " " << rule.weight_decay << " "
                                 << rule.beta1;
    }
  }
}

// Shards with parts of tensors, cut before, inside and after their tails, on both sides of the blocks of
// threads.
TEST_F(FlatAdamTest, AShardHasTheBitsOfWholeTensors) {
  const std::vector<int64_t> sizes{16381, 5, 1, 16, 30003};
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const std::vector<int64_t> cuts{0, 3, 16378, 16384, 16388, 16403, 32768, total - 2, total};
  for (AdamRule rule : adam_rules()) {
    const Memory sharded(total);
    const Memory whole(total);
    std::vector<at::Tensor> counts;
    for (size_t i = 0; i < sizes.size(); ++i) counts.push_back(at::zeros({}));
    for (rule.step = 1; rule.step <= 3; ++rule.step) {
      const at::Tensor gradient = gradient_of(total, rule.step);
      const FlatMemory memory = sharded.flat(gradient);
      std::vector<FlatSegment> tails;
      int64_t offset = 0;
      for (size_t i = 0; i < sizes.size(); ++i) {
        run_fused_adam(rule, whole.part(offset, sizes[i]), gradient.narrow(0, offset, sizes[i]), counts[i]);
        tails.push_back(
            {static_cast<size_t>(offset + before_tail(sizes[i])), static_cast<size_t>(offset + sizes[i])});
        offset += sizes[i];
      }
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto begin = static_cast<size_t>(cuts[i]);
        const auto end = static_cast<size_t>(cuts[i + 1]);
        std::vector<FlatSegment> own;
        for (const FlatSegment& tail : tails) {
          const FlatSegment inside{std::max(tail.begin, begin), std::min(tail.end, end)};
          if (inside.begin < inside.end) own.push_back({inside.begin - begin, inside.end - begin});
        }
        step_flat(rule, memory.part(begin, end - begin), own);
      }
    }
    EXPECT_TRUE(sharded == whole) << rule.decoupled_decay << " " << rule.weight_decay << " " << rule.beta1;
  }
}

// LibTorch takes whole vectors of 16 here, or of 8; both round alike.
constexpr int64_t kWhole = 4096;

TEST(FlatKernels, SgdHasTheBitsOfLibTorchsFusedKernel) {
  for (const auto& rule : {SgdRule{.lr = 0.1, .weight_decay = 0.1}, SgdRule{.lr = 0.1, .momentum = 0.9},
                           SgdRule{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1},
                           SgdRule{.lr = 0.1, .momentum = 0.9, .nesterov = true}}) {
    Memory own(kWhole);
    const Memory theirs(kWhole);
    for (int64_t step = 1; step <= 10; ++step) {
      const at::Tensor gradient = gradient_of(kWhole, step);
      step_flat(at_step(rule, step), own.flat(gradient));
      const std::vector<at::Tensor> momenta =
          rule.momentum == 0 ? std::vector<at::Tensor>() : std::vector<at::Tensor>{theirs.first};
      at::_fused_sgd_({theirs.parameters}, {gradient}, momenta, rule.weight_decay, rule.momentum, rule.lr,
                      rule.dampening, rule.nesterov, /*maximize=*/false, step == 1);
    }
    EXPECT_TRUE(own == theirs) << rule.momentum << " " << rule.dampening << " " << rule.nesterov;
  }
}

TEST(FlatKernels, RulesComeFromTheOptionsOfAGroup) {
  using namespace torch::optim;  // NOLINT
  const auto adam =
      std::get<AdamRule>(*flat_rule(AdamOptions(0.2).betas({0.5, 0.6}).eps(0.1).weight_decay(0.3), 7));
  EXPECT_EQ(std::tie(adam.lr, adam.beta1, adam.beta2, adam.eps, adam.weight_decay, adam.step),
            std::make_tuple(0.2, 0.5, 0.6, 0.1, 0.3, 7));
  EXPECT_FALSE(adam.decoupled_decay);
  EXPECT_TRUE(std::get<AdamRule>(*flat_rule(AdamWOptions(), 1)).decoupled_decay);
  EXPECT_FALSE(flat_rule(AdamOptions().amsgrad(true), 1).has_value());
  EXPECT_FALSE(flat_rule(LBFGSOptions(), 1).has_value());
  const auto sgd = std::get<SgdRule>(
      *flat_rule(SGDOptions(0.2).momentum(0.5).dampening(0.6).weight_decay(0.3).nesterov(true), 1));
  EXPECT_EQ(std::tie(sgd.lr, sgd.momentum, sgd.dampening, sgd.weight_decay),
            std::make_tuple(0.2, 0.5, 0.6, 0.3));
  EXPECT_TRUE(sgd.nesterov && sgd.first_step);
  EXPECT_FALSE(std::get<SgdRule>(*flat_rule(SGDOptions(0.2), 2)).first_step);
}

TEST(FlatKernels, LionLeavesAnElementWithoutUpdateWhereItIs) {
  Memory memory(4);
  const at::Tensor before = memory.parameters.clone();
  const at::Tensor gradient = at::tensor({0.0F, -0.0F, 1.0F, -1.0F});
  step_range(LionRule{.lr = 0.5}, memory.flat(gradient));
  EXPECT_TRUE(same_bits(memory.parameters, before - at::tensor({0.0F, 0.0F, 0.5F, -0.5F})));
}

}  // namespace
}  // namespace lockstep::optim
