#include "support/gpu.h"

#include <dlfcn.h>
#include <lockstep/c10d.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <stdexcept>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/plugin.h"
#include "support/rank_processes.h"
#include "train/device.h"

namespace lockstep::test {
namespace {

// As torch.cuda.set_sync_debug_mode() counts.
enum SyncMode : int { kAllow = 0, kError = 2 };

// c10::cuda::warning_state(), one for the process. Its header needs the CUDA toolkit, which
// a build without the CUDA library does not have.
int& sync_mode() {
  void* const library = ::dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  void* const mode =
      library == nullptr ? nullptr : ::dlsym(library, "_ZZN3c104cuda13warning_stateEvE14warning_state_");
  if (mode == nullptr) throw std::runtime_error("libc10_cuda.so has no c10::cuda::warning_state()");
  return *static_cast<int*>(mode);
}

}  // namespace

void GpuTest::SetUp() {
  // Before anything else of LibTorch: what asks it for CUDA before the library is loaded is
  // told forever that there is none.
  try {
    device_ = train::choose_device(RankMap(), "gpu");
  } catch (const ConfigError& error) {
    FAIL() << "this test needs an NVIDIA GPU: " << error.what();
  }
  // Equal kernels for equal shapes.
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

Communicator GpuTest::alone() const {
  CommunicatorOptions options;
  options.backend = "nccl";
  options.device_index = device_.index();
  return make_communicator(c10::make_intrusive<c10d::HashStore>(), 0, 1, options);
}

void GpuTest::run_processes(int size, const std::function<void(World&)>& body) const {
  run_rank_processes(size, [&](const RankMap& map) {
    CommunicatorOptions options;
    options.backend = "gloo";
    options.timeout = std::chrono::seconds(60);
    options.connect_timeout = std::chrono::seconds(60);
    options.device_index = device_.is_cpu() ? -1 : device_.index();
    World world(map, Communicator::connect(map, options), device_);
    body(world);
  });
}

CommunicatorOptions GpuTest::nccl_options(std::chrono::milliseconds timeout) const {
  CommunicatorOptions options;
  options.backend = "nccl";
  options.timeout = timeout;
  options.connect_timeout = std::chrono::seconds(60);
  options.device_index = device_.index();
  return options;
}

RankProcesses GpuTest::sharing(RankProcesses job) {
  job.environment[comm::kShareDevice] = "1";
  return job;
}

void GpuTest::run_nccl(int size, const std::function<void(World&)>& body) const {
  run_nccl(RankProcesses{.size = size}, std::chrono::seconds(60), body);
}

void GpuTest::run_nccl(RankProcesses job, std::chrono::milliseconds timeout,
                       const std::function<void(World&)>& body) const {
  run_rank_processes(sharing(std::move(job)), [&](const RankMap& map) {
    World world(map, Communicator::connect(map, nccl_options(timeout)), device_);
    ASSERT_EQ(world.communicator().backend(), "nccl");
    body(world);
  });
}

void GpuTest::on_ranks(const World& world, const std::vector<int>& ranks,
                       const std::function<void(World&)>& body) {
  if (const std::optional<Communicator> group = world.communicator().subgroup(ranks)) {
    RankMap map = world.map();
    map.rank = map.local_rank = group->rank();
    map.world_size = map.local_world_size = group->size();
    World part(map, *group, world.device());
    body(part);
  }
  world.communicator().barrier();
}

std::filesystem::path GpuTest::shared_folder(const World& world) {
  return std::filesystem::path(world.map().rendezvous.path).parent_path();
}

NoHostWait::NoHostWait() { sync_mode() = kError; }
NoHostWait::~NoHostWait() { sync_mode() = kAllow; }

}  // namespace lockstep::test
