// Activations that are computed again in backward: alone, and over ranks as threads.

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/models.h>
#include <lockstep/sharded.h>
#include <pthread.h>
#include <torch/torch.h>

#include "support/config_error.h"
#include "support/formula.h"
#include "support/group_case.h"
#include "train/measured_memory.h"

namespace lockstep {
namespace {

using test::error_of;
using test::formula;
using test::run_group;
using test::same_bits;
using test::set_parameters;
using testing::HasSubstr;

struct DropoutUnitImpl : torch::nn::Module {
  DropoutUnitImpl(int64_t width, double dropout)
      : fc(register_module("fc", torch::nn::Linear(width, width))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}
  torch::Tensor forward(torch::Tensor x) { return drop(torch::tanh(fc(x))); }
  torch::nn::Linear fc;
  torch::nn::Dropout drop;
};
using DropoutUnit = Sharded<DropoutUnitImpl>;

// Two tensors, one of them optional, and a number in; two tensors out. A unit inside.
struct TupleBlockImpl : torch::nn::Module {
  TupleBlockImpl(int64_t width, double dropout)
      : in(register_module("in", torch::nn::Linear(width, width))),
        inner(register_module("inner", DropoutUnit(width, dropout))),
        out(register_module("out", torch::nn::Linear(width, width))) {}
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x, std::optional<torch::Tensor> skip,
                                                   double factor) {
    torch::Tensor y = torch::gelu(in(x)) * factor;
    if (skip) y = y + *skip;
    y = inner(y);
    return {torch::tanh(out(y)), y};
  }
  torch::nn::Linear in;
  DropoutUnit inner;
  torch::nn::Linear out;
};
using TupleBlock = Sharded<TupleBlockImpl>;

struct TupleNetImpl : torch::nn::Module {
  explicit TupleNetImpl(int64_t width = 8, int count = 3, double dropout = 0) {
    for (int i = 0; i < count; ++i) {
      blocks.push_back(register_module(fmt::format("block{}", i), TupleBlock(width, dropout)));
    }
    last = register_module("last", torch::nn::Linear(width, 2));
    set_parameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) {
    std::optional<torch::Tensor> skip;
    for (TupleBlock& block : blocks) std::tie(x, skip) = block->forward(x, skip, 0.5);
    return last(x + *skip);
  }
  std::vector<TupleBlock> blocks;
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(TupleNet);

void expect_same_gradients(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto left = a.named_parameters();
  const auto right = b.named_parameters();
  for (size_t i = 0; i < left.size(); ++i) {
    ASSERT_TRUE(right[i].value().grad().defined()) << left[i].key();
    EXPECT_TRUE(same_bits(left[i].value().grad(), right[i].value().grad())) << left[i].key();
  }
}

TEST(ActivationCheckpoint, GivesTheSameGradients) {
  for (const bool input_needs_gradient : {false, true}) {
    TupleNet plain, checkpointed;
    set_activation_checkpointing(*checkpointed);
    torch::Tensor a = formula({4, 8}, 1).set_requires_grad(input_needs_gradient);
    torch::Tensor b = formula({4, 8}, 1).set_requires_grad(input_needs_gradient);
    const torch::Tensor expected = plain(a);
    const torch::Tensor output = checkpointed(b);
    EXPECT_TRUE(same_bits(output, expected));
    expected.square().mean().backward();
    output.square().mean().backward();
    expect_same_gradients(*plain, *checkpointed);
    if (input_needs_gradient) EXPECT_TRUE(same_bits(a.grad(), b.grad()));
  }
}

// One weight under two names of one unit: both uses count, each of them once.
struct TiedUnitImpl : torch::nn::Module {
  TiedUnitImpl()
      : encoder(register_parameter("encoder", formula({8, 8}, 3))),
        decoder(register_parameter("decoder", encoder)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::matmul(torch::tanh(torch::matmul(x, encoder)), decoder.t());
  }
  torch::Tensor encoder, decoder;
};

TEST(ActivationCheckpoint, CountsATiedWeightOnce) {
  TiedUnitImpl plain;
  ASSERT_EQ(plain.parameters().size(), 2u) << "under both names";
  Sharded<TiedUnitImpl> checkpointed;
  set_activation_checkpointing(*checkpointed);
  plain.forward(formula({4, 8}, 1)).square().mean().backward();
  checkpointed->forward(formula({4, 8}, 1)).square().mean().backward();
  EXPECT_TRUE(same_bits(checkpointed->encoder.grad(), plain.encoder.grad()));
}

TEST(ActivationCheckpoint, DropsTheSameElements) {
  TupleNet plain(16, 3, 0.5), checkpointed(16, 3, 0.5);
  set_activation_checkpointing(*checkpointed);
  const auto run = [](TupleNet& net) {
    torch::manual_seed(7);
    net(formula({8, 16}, 1)).square().mean().backward();
    return torch::rand({3});  // backward leaves the stream where forward has left it
  };
  const torch::Tensor expected = run(plain);
  EXPECT_TRUE(same_bits(run(checkpointed), expected));
  expect_same_gradients(*plain, *checkpointed);
}

TEST(ActivationCheckpoint, RunsUnderTheSameAutocast) {
  TupleNet plain, checkpointed;
  set_activation_checkpointing(*checkpointed);
  const auto run = [](TupleNet& net) {
    torch::Tensor loss;
    {
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::increment_nesting();
      loss = net(formula({4, 8}, 1)).to(at::kFloat).square().mean();
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
    }
    loss.backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return loss;
  };
  EXPECT_TRUE(same_bits(run(plain), run(checkpointed)));
  expect_same_gradients(*plain, *checkpointed);
}

TEST(ActivationCheckpoint, LeavesFrozenParametersAlone) {
  TupleNet plain, checkpointed;
  set_activation_checkpointing(*checkpointed);
  for (TupleNet* net : {&plain, &checkpointed}) {
    (*net)->blocks[1]->in->weight.set_requires_grad(false);
    (*net)(formula({4, 8}, 1)).square().mean().backward();
  }
  EXPECT_FALSE(checkpointed->blocks[1]->in->weight.grad().defined());
  EXPECT_TRUE(same_bits(plain->blocks[0]->in->weight.grad(), checkpointed->blocks[0]->in->weight.grad()));
}

TEST(ActivationCheckpoint, RunsOnceWithoutGradients) {
  TupleNet net;
  set_activation_checkpointing(*net);
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(net(formula({4, 8}, 1)).requires_grad());
}

TEST(ActivationCheckpoint, ChecksWhatBackwardNeeds) {
  TupleNet net;
  set_activation_checkpointing(*net);
  torch::Tensor x = formula({4, 8}, 1);
  torch::Tensor output = net(x).sum();
  output.backward({}, /*retain_graph=*/true);
  const torch::Tensor once = net->last->weight.grad().clone();
  output.backward();  // the graph was kept
  EXPECT_TRUE(torch::equal(net->last->weight.grad(), once * 2));
  EXPECT_ANY_THROW(output.backward());
  // An input that has changed since.
  output = net(x).sum();
  x.add_(1);
  EXPECT_ANY_THROW(output.backward());
  EXPECT_THAT(error_of([&] { net(x).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true); }),
              HasSubstr("no gradients of gradients"));
  EXPECT_THAT(error_of([] { set_activation_checkpointing(*torch::nn::Linear(1, 1)); }),
              HasSubstr("the model has none"));
}

TEST(ActivationCheckpoint, WorksOnFunctions) {
  torch::Tensor weight = formula({8, 8}, 2).set_requires_grad(true);
  torch::Tensor x = formula({4, 8}, 1).set_requires_grad(true);
  int calls = 0;
  const auto function = [&](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
    ++calls;
    return {inputs[0], torch::tanh(inputs[0].matmul(weight)), torch::argmax(inputs[0], 1)};
  };
  const auto outputs = recompute_in_backward(function, {x, torch::Tensor()}, {weight});
  EXPECT_TRUE(outputs[0].requires_grad());  // handed through
  EXPECT_FALSE(outputs[2].requires_grad());
  (outputs[0].sum() + outputs[1].sum()).backward();
  EXPECT_EQ(calls, 2);
  const torch::Tensor gradient = weight.grad().clone();
  const torch::Tensor input_gradient = x.grad().clone();
  weight.mutable_grad().reset();
  x.mutable_grad().reset();
  (x.sum() + torch::tanh(x.matmul(weight)).sum()).backward();
  EXPECT_TRUE(same_bits(gradient, weight.grad()));
  EXPECT_TRUE(torch::allclose(input_gradient, x.grad()));
}

TEST(ActivationCheckpoint, KeepsLessMemory) {
  const auto live_after_forward = [](bool checkpoint) {
    TupleNet net(32, 8);
    if (checkpoint) set_activation_checkpointing(*net);
    const torch::Tensor x = torch::zeros({256, 32});
    const train::CountedMemory memory;
    const torch::Tensor output = net(x);
    return memory.live_bytes();
  };
  const int64_t kept = live_after_forward(false);
  const int64_t forgotten = live_after_forward(true);
  // Two tensors a block in place of eight.
  EXPECT_LT(forgotten, kept / 2);
  EXPECT_GE(forgotten, int64_t{2} * 8 * 256 * 32 * 4);

  const auto peak = [](bool checkpoint) {
    TupleNet net(32, 8);
    if (checkpoint) set_activation_checkpointing(*net);
    return train::measure_activations(Model(net), {32}, at::kFloat).of(256);
  };
  EXPECT_LT(peak(true), peak(false) * 3 / 4);
}

// What `lockstep plan` says of activations is what a larger batch takes.
TEST(ActivationMemory, IsThatOfALargerBatch) {
  for (const bool checkpoint : {false, true}) {
    const Model model = models::vision_transformer({.image_size = 32,
                                                    .patch_size = 16,
                                                    .layers = 3,
                                                    .heads = 2,
                                                    .hidden_size = 16,
                                                    .mlp_size = 64,
                                                    .classes = 10});
    if (checkpoint) set_activation_checkpointing(*model.module());
    const int64_t told = train::measure_activations(model, {3, 32, 32}, at::kFloat).of(64);
    const train::CountedMemory memory;
    model(torch::zeros({64, 3, 32, 32})).sum().backward();
    int64_t gradients = 0;
    for (const auto& parameter : model.module()->parameters()) {
      gradients += static_cast<int64_t>(parameter.grad().nbytes());
    }
    EXPECT_LE(told, memory.peak_bytes() * 1.2) << checkpoint;
    // Kernels take working memory by the number of threads, which a small model shows most.
    EXPECT_GE(told, (memory.peak_bytes() - gradients) * 0.8) << checkpoint;
  }
}

TEST(ActivationCheckpoint, OverRanksAtEveryStage) {
  for (const int ranks : {1, 2}) {
    run_group({"gloo", std::vector<int>(static_cast<size_t>(ranks), 0)}, [&](Communicator& group) {
      const auto batch = [&](int step) { return formula({4, 8}, 10 * step + group.rank()); };
      TupleNet whole;
      DataParallel reference(whole, group);
      torch::optim::SGD plain(whole->parameters(), 0.1);
      const auto train = [&](auto& model, TupleNet& net, const std::function<void()>& update) {
        for (int step = 0; step < 3; ++step) {
          model.zero_grad();
          model.prepare_forward();
          net(batch(step)).square().mean().backward();
          update();
        }
      };
      train(reference, whole, [&] { plain.step(); });

      TupleNet copy;
      set_activation_checkpointing(*copy);
      DataParallel checkpointed(copy, group);
      torch::optim::SGD optimizer(copy->parameters(), 0.1);
      train(checkpointed, copy, [&] { optimizer.step(); });
      for (size_t i = 0; i < whole->parameters().size(); ++i) {
        EXPECT_TRUE(same_bits(copy->parameters()[i], whole->parameters()[i])) << "DataParallel " << i;
      }
      for (int stage = 0; stage <= 3; ++stage) {
        for (const int64_t threshold : {0, 50}) {
          TupleNet net;
          set_activation_checkpointing(*net);
          torch::optim::SGD own(net->parameters(), 0.1);
          ShardedModel model(
              net.ptr(), own, group,
              {.zero = {.stage = stage, .bucket_cap_bytes = 512, .persistence_threshold = threshold}});
          train(model, net, [&] { model.step(); });
          const auto scope = model.gather_parameters();
          for (size_t i = 0; i < whole->parameters().size(); ++i) {
            EXPECT_TRUE(same_bits(net->parameters()[i], whole->parameters()[i])) << stage << " " << i;
          }
        }
      }
    });
  }
}

// By recursion its end would need more stack than the thread has.
TEST(ActivationCheckpoint, FreesALongGraph) {
  at::Tensor x = torch::ones({1}, at::requires_grad());
  const TensorFunction same = [](const std::vector<at::Tensor>& inputs) { return inputs; };
  for (int i = 0; i < 20'000; ++i) x = recompute_in_backward(same, {x}, {})[0];
  EXPECT_TRUE(x.requires_grad());
  pthread_attr_t small;
  ASSERT_EQ(pthread_attr_init(&small), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&small, 512 << 10), 0);
  pthread_t thread;
  const auto free_graph = [](void* tensor) -> void* {
    static_cast<at::Tensor*>(tensor)->reset();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &small, free_graph, &x), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&small);
  EXPECT_FALSE(x.defined());
}

// The unit that comes next in forward is not gathered again when activations are computed
// again.
TEST(ActivationCheckpoint, NeedsNoMoreBuffersAtStage3) {
  run_group({"gloo", {0, 0}}, [](Communicator& group) {
    const auto buffers = [&](bool checkpoint) {
      TupleNet net(8, 6);
      if (checkpoint) set_activation_checkpointing(*net);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      ShardedModel model(net.ptr(), optimizer, group, {.zero = {.stage = 3, .persistence_threshold = 0}});
      for (int step = 0; step < 3; ++step) {
        model.zero_grad();
        model.prepare_forward();
        net(formula({4, 8}, group.rank())).square().mean().backward();
        model.step();
      }
      return model.memory().buffers;
    };
    EXPECT_LE(buffers(true), buffers(false));
  });
}

}  // namespace
}  // namespace lockstep
