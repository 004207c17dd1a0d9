// ShardedModel with optimizer state and parameters in host memory or in files, with ranks as
// threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <filesystem>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "parallel/model_snapshot.h"
#include "support/block_net.h"
#include "support/config_error.h"
#include "support/formula.h"
#include "support/group_case.h"
#include "support/sharded_training.h"
#include "support/temporary_folder.h"
#include "train/measured_memory.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::error_of;
using test::formula;
using test::GroupCase;
using test::make_adagrad;
using test::MakeOptimizer;
using test::run_group;
using test::same_bits;
using test::SavedParts;
using test::TemporaryFolder;
using test::UnknownOptimizer;
using testing::HasSubstr;

using Parameters = std::vector<at::Tensor>;

std::unique_ptr<torch::optim::Optimizer> make_adamw(Parameters parameters) {
  return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                               torch::optim::AdamWOptions(0.02).weight_decay(0.1));
}
std::unique_ptr<torch::optim::Optimizer> make_adam_kernel(Parameters parameters) {
  return make_cpu_adam(parameters, {.lr = 0.02, .weight_decay = 0.1});
}
std::unique_ptr<torch::optim::Optimizer> make_lion_kernel(Parameters parameters) {
  return make_lion(parameters, {.lr = 0.003, .weight_decay = 0.1});
}
std::unique_ptr<torch::optim::Optimizer> make_damped_sgd(Parameters parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.2));
}
std::unique_ptr<torch::optim::Optimizer> make_rmsprop(Parameters parameters) {
  return std::make_unique<torch::optim::RMSprop>(
      std::move(parameters), torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}

// What is where.
struct Kind {
  const char* name;
  OffloadDevice optimizer;
  OffloadDevice parameters;
};
constexpr Kind kNone{"none", OffloadDevice::kNone, OffloadDevice::kNone};
constexpr Kind kCpu{"cpu", OffloadDevice::kCpu, OffloadDevice::kNone};
constexpr Kind kCpuAll{"cpu_all", OffloadDevice::kCpu, OffloadDevice::kCpu};
constexpr Kind kNvme{"nvme", OffloadDevice::kNvme, OffloadDevice::kNone};
constexpr Kind kNvmeAll{"nvme_all", OffloadDevice::kNvme, OffloadDevice::kCpu};

// Small buckets and no small parameters: all paths are taken.
ShardedOptions options_of(int stage, const Kind& kind, const std::filesystem::path& folder) {
  ShardedOptions options{.zero = {.stage = stage, .bucket_cap_bytes = 300, .persistence_threshold = 9}};
  options.zero.offload_optimizer.device = kind.optimizer;
  options.zero.offload_optimizer.nvme_path = folder;
  options.zero.offload_param.device = kind.parameters;
  options.zero.aio.block_size = 4096;
  return options;
}

// Twelve samples a step, whatever the number of ranks.
at::Tensor share_of(const Communicator& group, int step, at::ScalarType dtype) {
  const int64_t count = 12 / group.size();
  return formula({12, 3}, 50 + step).to(dtype).narrow(0, count * group.rank(), count);
}

void train(ShardedModel& model, BlockNet& net, int from, int to) {
  for (int step = from; step < to; ++step) {
    model.zero_grad();
    model.prepare_forward();
    const at::Tensor input = share_of(model.communicator(), step, net->in->weight.scalar_type());
    net->forward(input).square().mean().backward();
    model.clip_grad_norm(0.5);
    model.step();
  }
}

struct OffloadRun {
  Kind kind = kNone;
  int stage = 3;
  int ranks = 1;
  at::ScalarType dtype = at::kFloat;
  MakeOptimizer make = make_adamw;
  int from = 0;
  int to = 5;
};

using WeightMap = std::map<std::string, at::Tensor>;

WeightMap run(const OffloadRun& what, const SavedParts* start = nullptr, SavedParts* end = nullptr) {
  const TemporaryFolder folder;
  WeightMap weights;
  run_group({"shm", std::vector<int>(static_cast<size_t>(what.ranks), 0)}, [&](Communicator& group) {
    BlockNet net;
    net->to(what.dtype);
    const auto optimizer = what.make(net->parameters());
    ShardedModel model(net.ptr(), *optimizer, group, options_of(what.stage, what.kind, folder.path()));
    if (start != nullptr) start->give(model);
    train(model, net, what.from, what.to);
    if (end != nullptr) end->take(model);
    const auto scope = model.gather_parameters();
    if (group.rank() > 0) return;
    for (const auto& item : net->named_parameters()) weights[item.key()] = item.value().detach().clone();
  });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  return weights;
}

void expect_same_bits(const WeightMap& a, const WeightMap& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, expected] : a) EXPECT_TRUE(same_bits(b.at(name), expected)) << what << ": " << name;
}

std::vector<Kind> kinds_of(int stage) {
  if (stage < 3) return {kCpu};
  return {kCpu, kCpuAll, kNvme, kNvmeAll};
}

class ShardedOffloadTest : public testing::TestWithParam<std::tuple<int, int, at::ScalarType>> {
 protected:
  OffloadRun plain(MakeOptimizer make) const {
    const auto& [stage, ranks, dtype] = GetParam();
    return {.kind = kNone, .stage = stage, .ranks = ranks, .dtype = dtype, .make = make};
  }
};

// Optimizers that take the same kernels with and without.
TEST_P(ShardedOffloadTest, TrainsBitForBitAsWithoutOffload) {
  std::vector<std::pair<const char*, MakeOptimizer>> optimizers = {{"lion", make_lion_kernel},
                                                                   {"rmsprop", make_rmsprop}};
  if (std::get<2>(GetParam()) == at::kFloat) optimizers.emplace_back("adam", make_adam_kernel);
  for (const auto& [name, make] : optimizers) {
    OffloadRun what = plain(make);
    const WeightMap expected = run(what);
    for (const Kind& kind : kinds_of(what.stage)) {
      what.kind = kind;
      expect_same_bits(expected, run(what), std::string(name) + " " + kind.name);
    }
  }
}

// The others take our kernels, which round differently, wherever their state is.
TEST_P(ShardedOffloadTest, TakesTheKernelsOfTheClass) {
  const double tolerance = std::get<2>(GetParam()) == at::kFloat ? 1e-5 : 2e-2;
  for (const MakeOptimizer make : {make_adamw, make_damped_sgd, make_adagrad}) {
    OffloadRun what = plain(make);
    const WeightMap expected = run(what);
    WeightMap first;
    for (const Kind& kind : kinds_of(what.stage)) {
      what.kind = kind;
      const WeightMap weights = run(what);
      for (const auto& [name, tensor] : expected) {
        EXPECT_TRUE(torch::allclose(weights.at(name), tensor, tolerance, tolerance)) << kind.name << name;
      }
      if (first.empty()) first = weights;
      expect_same_bits(first, weights, kind.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ShardedOffloadTest,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(1, 2, 3),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return "stage" + std::to_string(std::get<0>(info.param)) + "_ranks" +
                                  std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) == at::kFloat ? "_float32" : "_bfloat16");
                         });

// From every place to every other, with another number of ranks.
TEST(ShardedOffload, ResumesWhereverTheStateWas) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    OffloadRun what{.kind = kCpu, .stage = 3, .ranks = 2, .dtype = dtype, .make = make_lion_kernel, .to = 8};
    const WeightMap straight = run(what);
    for (const Kind& from : {kNone, kCpu, kCpuAll, kNvme, kNvmeAll}) {
      SavedParts saved;
      run({.kind = from, .stage = 3, .ranks = 2, .dtype = dtype, .make = make_lion_kernel, .to = 4}, nullptr,
          &saved);
      for (const Kind& to : {kNone, kCpu, kCpuAll, kNvme, kNvmeAll}) {
        const std::string pair = std::string(from.name) + " to " + to.name;
        what = {
            .kind = to, .stage = 3, .ranks = 2, .dtype = dtype, .make = make_lion_kernel, .from = 4, .to = 8};
        expect_same_bits(straight, run(what, &saved), pair);
        what.ranks = 3;
        const WeightMap other = run(what, &saved);
        const double tolerance = dtype == at::kFloat ? 1e-5 : 5e-2;
        for (const auto& [name, tensor] : straight) {
          EXPECT_TRUE(torch::allclose(other.at(name), tensor, tolerance, tolerance)) << pair << ": " << name;
        }
      }
    }
  }
}

TEST(ShardedOffload, SavesTheSameStateFromEverywhere) {
  SavedParts expected;
  run({.kind = kCpu, .ranks = 2, .dtype = at::kBFloat16}, nullptr, &expected);
  EXPECT_TRUE(expected.has_masters);
  for (const Kind& kind : {kCpuAll, kNvme, kNvmeAll}) {
    SavedParts saved;
    run({.kind = kind, .ranks = 2, .dtype = at::kBFloat16}, nullptr, &saved);
    EXPECT_EQ(saved.values, expected.values);
    ASSERT_EQ(saved.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : expected.tensors) {
      EXPECT_TRUE(same_bits(saved.tensors.at(name), tensor)) << kind.name << " " << name;
    }
  }
}

// Who keeps the state in a file because memory is short has none for all of it.
TEST(ShardedOffload, SavesAndLoadsAFileOfStatesPartByPart) {
  using Unit = Sharded<torch::nn::LinearImpl>;
  const TemporaryFolder disk;
  const TemporaryFolder checkpoints("/dev/shm");
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) net->push_back(Unit(128, 128));
  net->to(at::kBFloat16);
  const auto optimizer = make_adamw(net->parameters());
  ShardedOptions options = options_of(3, kNvme, disk.path());
  options.zero.bucket_cap_bytes = 70'000;
  ShardedModel model(net.ptr(), *optimizer, Communicator(), options);
  model.prepare_forward();
  net->forward(formula({2, 128}, 0).to(at::kBFloat16)).square().mean().backward();
  model.step();
  const int64_t state = model.memory().nvme;
  EXPECT_GT(state, 1'500'000);
  checkpoint::Store store(checkpoints.path());
  std::filesystem::path saved;
  {
    const train::CountedMemory memory;
    checkpoint::Snapshot snapshot{.step = 1};
    parallel::add_shards(snapshot, *net, model, /*is_main=*/true);
    saved = store.save(snapshot).path;
    EXPECT_LT(memory.peak_bytes(), state / 8);
  }
  const checkpoint::Reader reader(saved);
  reader.verify();
  const auto expect_saved = [&](const std::vector<ShardedModel::Part>& parts, const std::string& prefix) {
    EXPECT_FALSE(parts.empty());
    for (const ShardedModel::Part& part : parts) {
      EXPECT_TRUE(same_bits(reader.read(prefix + part.name).view(-1), part.data)) << part.name;
    }
  };
  expect_saved(model.master_parts(), "lockstep/master/");
  expect_saved(model.optimizer_parts().parts, "lockstep/optimizer/");

  const at::Tensor input = formula({2, 128}, 1).to(at::kBFloat16);
  const auto step = [&] {
    model.zero_grad();
    model.prepare_forward();
    net->forward(input).square().mean().backward();
    model.step();
  };
  step();
  {
    const train::CountedMemory memory;
    parallel::restore_weight_shards(reader, *net, model);
    parallel::restore_optimizer_shards(reader, model);
    EXPECT_LT(memory.peak_bytes(), state / 4);
  }
  expect_saved(model.master_parts(), "lockstep/master/");
  expect_saved(model.optimizer_parts().parts, "lockstep/optimizer/");
}

TEST(ShardedOffload, SaysWhatIsWhere) {
  const TemporaryFolder folder;
  run_group({"shm", {0, 0}}, [&](Communicator& group) {
    const auto memory_of = [&](const Kind& kind) {
      BlockNet net;
      net->to(at::kBFloat16);
      const auto optimizer = make_adamw(net->parameters());
      ShardedOptions options = options_of(3, kind, folder.path());
      options.zero.persistence_threshold = 0;
      ShardedModel model(net.ptr(), *optimizer, group, options);
      train(model, net, 0, 2);
      return model.memory();
    };
    const auto none = memory_of(kNone);
    EXPECT_EQ(none.host + none.nvme, 0);
    EXPECT_EQ(none.device(), none.total());
    EXPECT_EQ(none.optimizer, 2 * none.master);
    const auto cpu = memory_of(kCpu);
    EXPECT_EQ(cpu.nvme, 0);
    EXPECT_EQ(cpu.host, none.master + none.optimizer + none.gradients);
    EXPECT_EQ(cpu.device(), none.parameters + none.buffers);
    const auto all = memory_of(kCpuAll);
    EXPECT_EQ(all.device(), none.buffers);
    const auto nvme = memory_of(kNvmeAll);
    EXPECT_EQ(nvme.nvme, none.master + none.optimizer);
    EXPECT_GT(nvme.host, none.gradients + none.parameters);
    EXPECT_EQ(nvme.device(), none.buffers);
  });
}

TEST(ShardedOffload, WrittenParametersReachTheState) {
  const TemporaryFolder folder;
  for (const Kind& kind : {kCpu, kCpuAll, kNvme, kNvmeAll}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      run_group({"shm", {0, 0}}, [&](Communicator& group) {
        BlockNet net;
        net->to(dtype);
        const auto optimizer = make_adamw(net->parameters());
        ShardedModel model(net.ptr(), *optimizer, group, options_of(3, kind, folder.path()));
        train(model, net, 0, 1);
        {
          const auto scope = model.gather_parameters();
          const torch::NoGradGuard no_grad;
          for (const auto& parameter : net->parameters()) parameter.fill_(0.25);
        }
        for (const auto& owned : model.master_parts()) {
          // Digits that 16 bits do not have stay where the value was 0.25 before.
          EXPECT_TRUE(owned.data.to(dtype).eq(0.25).all().item<bool>()) << kind.name << " " << owned.name;
        }
        train(model, net, 1, 2);
      });
    }
  }
}

TEST(ShardedOffload, EveryPipelineIsTheSameStep) {
  const TemporaryFolder folder;
  const WeightMap expected = run({.kind = kCpu, .dtype = at::kBFloat16});
  for (const int64_t buffers : {1, 2, 4}) {
    for (const auto& [reads, writes] :
         {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
      Communicator alone;
      BlockNet net;
      net->to(at::kBFloat16);
      const auto optimizer = make_adamw(net->parameters());
      ShardedOptions options = options_of(3, kNvme, folder.path());
      options.zero.offload_optimizer.buffer_count = buffers;
      options.zero.offload_optimizer.pipeline_read = reads;
      options.zero.offload_optimizer.pipeline_write = writes;
      ShardedModel model(net.ptr(), *optimizer, alone, options);
      train(model, net, 0, 5);
      const auto scope = model.gather_parameters();
      for (const auto& item : net->named_parameters()) {
        EXPECT_TRUE(same_bits(item.value(), expected.at(item.key()))) << buffers << reads << writes;
      }
    }
  }
}

TEST(ShardedOffload, AddsUpMicroBatches) {
  const TemporaryFolder folder;
  const auto weights_of = [&](const Kind& kind) {
    Communicator alone;
    BlockNet net;
    const auto optimizer = make_rmsprop(net->parameters());
    ShardedModel model(net.ptr(), *optimizer, alone, options_of(3, kind, folder.path()));
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      for (int micro = 0; micro < 2; ++micro) {
        model.prepare_forward();
        net->forward(share_of(alone, 2 * step + micro, at::kFloat)).square().mean().backward();
      }
      model.step();
    }
    const auto scope = model.gather_parameters();
    WeightMap weights;
    for (const auto& item : net->named_parameters()) weights[item.key()] = item.value().detach().clone();
    return weights;
  };
  const WeightMap expected = weights_of(kNone);
  for (const Kind& kind : {kCpu, kCpuAll, kNvme, kNvmeAll})
    expect_same_bits(expected, weights_of(kind), kind.name);
}

TEST(ShardedOffload, ScalesGradientsInTheStep) {
  const TemporaryFolder folder;
  for (const MakeOptimizer make : {make_lion_kernel, make_rmsprop}) {
    const auto weights_of = [&](const Kind& kind) {
      BlockNet net;
      net->to(at::kBFloat16);
      const auto optimizer = make(net->parameters());
      ShardedModel model(net.ptr(), *optimizer, Communicator(), options_of(3, kind, folder.path()));
      for (int step = 0; step < 3; ++step) {
        model.zero_grad();
        model.prepare_forward();
        net->forward(share_of(Communicator(), step, at::kBFloat16)).square().mean().backward();
        model.step(at::full({}, 0.3));
      }
      const auto scope = model.gather_parameters();
      WeightMap weights;
      for (const auto& item : net->named_parameters()) weights[item.key()] = item.value().detach().clone();
      return weights;
    };
    const WeightMap expected = weights_of(kNone);
    for (const Kind& kind : {kCpu, kNvmeAll}) expect_same_bits(expected, weights_of(kind), kind.name);
  }
}

TEST(ShardedOffload, RefusesWhatDoesNotGoTogether) {
  const TemporaryFolder folder;
  BlockNet net;
  const auto optimizer = make_adamw(net->parameters());
  const auto refusal = [&](const ShardedOptions& options) {
    return error_of([&] { ShardedModel(net.ptr(), *optimizer, Communicator(), options); });
  };
  EXPECT_THAT(refusal(options_of(0, kCpu, folder.path())),
              HasSubstr("zero.offload_optimizer.device cpu needs zero.stage 1, 2 or 3, and it is 0"));
  EXPECT_THAT(refusal(options_of(2, kNvme, folder.path())),
              HasSubstr("zero.offload_optimizer.device nvme needs zero.stage 3, and it is 2"));
  EXPECT_THAT(refusal(options_of(3, kNvme, "")), HasSubstr("needs zero.offload_optimizer.nvme_path"));
  EXPECT_THAT(refusal(options_of(2, kCpuAll, folder.path())),
              HasSubstr("zero.offload_param.device cpu needs zero.stage 3, and it is 2"));
  EXPECT_THAT(
      refusal(options_of(3, {"", OffloadDevice::kNone, OffloadDevice::kCpu}, folder.path())),
      HasSubstr("zero.offload_param.device cpu needs zero.offload_optimizer.device too, and it is none"));
  EXPECT_THAT(refusal(options_of(3, {"", OffloadDevice::kCpu, OffloadDevice::kNvme}, folder.path())),
              HasSubstr("parameters are offloaded to host memory only: use cpu"));
  ShardedOptions options = options_of(3, kNvme, folder.path());
  options.zero.aio.block_size = 1000;
  EXPECT_THAT(refusal(options), HasSubstr("aio.block_size must be a multiple of 4096: 1000"));
  options = options_of(3, kNvme, folder.path());
  options.zero.offload_optimizer.buffer_count = 0;
  EXPECT_THAT(refusal(options), HasSubstr("buffer_count must be at least 1: 0"));
}

// The model is what it was, and nothing is left.
TEST(ShardedOffload, TellsBeforeTheFirstStepThatThereIsNoDisk) {
  const TemporaryFolder folder;
  BlockNet net;
  const BlockNet untouched;
  const auto optimizer = make_adamw(net->parameters());
  const auto refusal = [&](const std::filesystem::path& path) {
    return error_of([&] { ShardedModel(net.ptr(), *optimizer, Communicator(), options_of(3, kNvme, path)); });
  };
  EXPECT_THAT(refusal(folder.path() / "none"), HasSubstr("is not a folder; make it"));
  EXPECT_THAT(refusal("/proc"), HasSubstr("cannot be made in '/proc'"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(net->parameters()[i], untouched->parameters()[i]));
  }
  UnknownOptimizer unknown(net->parameters(), torch::optim::SGDOptions(0.1));
  ShardedOptions options = options_of(3, kNvme, folder.path());
  options.allow_untested_optimizer = true;
  EXPECT_THAT(error_of([&] { ShardedModel(net.ptr(), unknown, Communicator(), options); }),
              HasSubstr("how much state this class keeps is not known"));
}

}  // namespace
}  // namespace lockstep
