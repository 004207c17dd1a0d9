// What the call of an exported model allocates besides what its operators allocate.

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <lockstep/exported_model.h>
#include <lockstep/model.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "support/golden.h"

namespace lockstep {
namespace {

struct AllocationCount {
  bool is_on = false;
  int64_t operators = 0;  // that are running, each of which another one called
  int64_t allocations = 0;
};
thread_local AllocationCount allocation_count;

void* count_allocation(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  if (allocation_count.is_on && allocation_count.operators == 0) ++allocation_count.allocations;
  return memory;
}

std::unique_ptr<at::ObserverContext> enter_operator(const at::RecordFunction&) {
  ++allocation_count.operators;
  return nullptr;
}

void leave_operator(const at::RecordFunction&, at::ObserverContext*) { --allocation_count.operators; }

// How often `call` allocates outside of LibTorch's operators. The calls before have made the buffers that
// later ones use.
template <typename Call>
int64_t allocations_of(const Call& call) {
  const at::CallbackHandle observer = at::addThreadLocalCallback(
      at::RecordFunctionCallback(enter_operator, leave_operator).scopes({at::RecordScope::FUNCTION}));
  call();
  call();
  allocation_count.allocations = 0;
  allocation_count.is_on = true;
  const auto result = call();
  allocation_count.is_on = false;  // autograd allocates when it frees the graph of the result
  at::removeCallback(observer);
  return allocation_count.allocations;
}

TEST(ExportedAllocations, ForwardHasNone) {
  for (const char* name : {"line", "net", "evaluated", "blocks", "counter", "waves", "copies", "odd"}) {
    SCOPED_TRACE(name);
    ExportedModel model(test::exported_file(name));
    const at::Tensor input = model->example_inputs()[0].toTensor();
    for (const bool trains : {true, false}) {
      model->train(trains);
      EXPECT_EQ(allocations_of([&] { return model->forward(input); }), 0);
    }
  }
}

// Regions, lists, integers of a program and buffers that it changes.
TEST(ExportedAllocations, RunHasThoseOfItsResultAlone) {
  for (const char* name : {"net", "blocks", "pair", "functional", "paths", "mixed", "random", "odd"}) {
    SCOPED_TRACE(name);
    ExportedModel model(test::exported_file(name));
    const std::vector<c10::IValue> inputs = model->example_inputs();
    EXPECT_EQ(allocations_of([&] { return model->run(inputs); }), 1);
  }
}

TEST(ExportedAllocations, AModelHasThoseOfItsResultAlone) {
  for (const char* name : {"net", "functional", "paths"}) {
    SCOPED_TRACE(name);
    ExportedModel exported(test::exported_file(name));
    std::vector<at::Tensor> inputs;
    for (const c10::IValue& input : exported->example_inputs()) inputs.push_back(input.toTensor());
    const Model model = exported->as_model();
    EXPECT_EQ(allocations_of([&] { return model.call(inputs); }), 1);
  }
}

}  // namespace
}  // namespace lockstep

// The standard library's other forms call these.
void* operator new(size_t bytes) { return lockstep::count_allocation(std::malloc(bytes)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto multiple = static_cast<size_t>(alignment);
  return lockstep::count_allocation(
      std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
