#include "cuda/graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

namespace lockstep::cuda {
namespace {

class Graph : public comm::DeviceGraph {
 public:
  void record(const std::function<void()>& body) override {
    graph_ = std::make_unique<at::cuda::CUDAGraph>();
    // What is cached belongs to eager steps; the record has a pool of its own.
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    // Of this thread alone: loader threads may pin memory meanwhile, and NCCL's watchdog
    // asks for events.
    graph_->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      abandon();
      throw;
    }
    graph_->capture_end();
  }

  void replay() override { graph_->replay(); }

 private:
  void abandon() {
    try {
      graph_->capture_end();
    } catch (const c10::Error&) {  // the record is broken: that is why we are here
    }
    graph_.reset();
  }

  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

}  // namespace

std::unique_ptr<comm::DeviceGraph> make_graph() { return std::make_unique<Graph>(); }

}  // namespace lockstep::cuda
