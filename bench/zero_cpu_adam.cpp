// Adam of 100 million elements on the CPU, one step after another. Prints one JSON line.
//
//   build/bin/bench/zero_cpu_adam adam THREADS          ms a step, our kernel, float32
//   build/bin/bench/zero_cpu_adam fused THREADS         the same with LibTorch's _fused_adam_
//   build/bin/bench/zero_cpu_adam mixed THREADS         bfloat16 gradients, unscaled, and a bfloat16 copy
//   build/bin/bench/zero_cpu_adam fused-mixed THREADS   the same with LibTorch: convert, unscale, step,
//   convert build/bin/bench/zero_cpu_adam bandwidth THREADS     GB/s that our kernel reads and writes,
//   float32 build/bin/bench/zero_cpu_adam stream THREADS        GB/s of the fastest of copy, triad and update

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adam.h>
#include <torch/torch.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "optim/flat_step.h"

namespace {

using lockstep::optim::AdamRule;
using lockstep::optim::FlatMemory;
using lockstep::optim::FlatType;

constexpr int64_t kElements = 100'000'000;
constexpr int kRepeats = 9;

// Of this thread, which does all the work where there is one: what other processes do
// meanwhile does not count. Several threads are measured by the clock on the wall.
double now_s(bool one_thread) {
  if (!one_thread) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The median after one run for the page faults.
double seconds_of(bool one_thread, const std::function<void()>& run) {
  run();
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    const double start = now_s(one_thread);
    run();
    times.push_back(now_s(one_thread) - start);
  }
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

struct Adam {
  at::Tensor parameters = at::full({kElements}, 0.5F);
  at::Tensor average = at::zeros({kElements});
  at::Tensor square = at::zeros({kElements});
  at::Tensor gradient;
  at::Tensor copy;  // where one is wanted
  at::Tensor count = at::zeros({});
  AdamRule rule = {.step = 0};

  explicit Adam(bool mixed) : gradient(at::full({kElements}, 0.25F, mixed ? at::kBFloat16 : at::kFloat)) {
    if (mixed) copy = at::zeros({kElements}, at::kBFloat16);
  }

  void step() {
    ++rule.step;
    FlatMemory memory;
    memory.numel = kElements;
    memory.parameters = parameters.data_ptr<float>();
    memory.state = average.data_ptr<float>();
    memory.second_state = square.data_ptr<float>();
    memory.gradients = gradient.data_ptr();
    if (copy.defined()) {
      memory.gradient_type = FlatType::kBFloat16;
      memory.gradient_factor = 0.5F;
      memory.copy = copy.data_ptr();
    }
    lockstep::optim::step_flat(rule, memory);
  }

  void fused_step() {
    count.add_(1);
    const at::Tensor wide = copy.defined() ? gradient.to(at::kFloat).mul_(0.5F) : gradient;
    at::_fused_adam_({parameters}, {wide}, {average}, {square}, {}, {count}, rule.lr, rule.beta1, rule.beta2,
                     rule.weight_decay, rule.eps, /*amsgrad=*/false, /*maximize=*/false);
    if (copy.defined()) copy.copy_(parameters);
  }
};

void triad(float* __restrict a, const float* __restrict b, const float* __restrict c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] = b[i] + 3 * c[i];
}

// What Adam does, without its arithmetic.
void update(float* __restrict a, float* __restrict b, float* __restrict c, const float* __restrict d,
            int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    a[i] += 3 * d[i];
    b[i] += d[i];
    c[i] += 2 * d[i];
  }
}

double stream_gb_per_s(bool one_thread) {
  std::vector<at::Tensor> arrays;
  for (int i = 0; i < 4; ++i) arrays.push_back(at::full({kElements}, static_cast<float>(i)));
  const auto array = [&](size_t number, int64_t first) { return arrays[number].data_ptr<float>() + first; };
  const auto gb_per_s = [&](const char* name, int moved, const std::function<void(int64_t, int64_t)>& part) {
    const double seconds = seconds_of(one_thread, [&] {
      constexpr int64_t kBlock = 1 << 16;
      lockstep::optim::for_blocks((kElements + kBlock - 1) / kBlock, [&](int64_t begin, int64_t end) {
        part(begin * kBlock, std::min(end * kBlock, kElements) - begin * kBlock);
      });
    });
    const double result = moved * kElements * sizeof(float) * 1e-9 / seconds;
    std::fprintf(stderr, "%s %.2f GB/s\n", name, result);
    return result;
  };
  const double copied = gb_per_s("copy", 2, [&](int64_t first, int64_t n) {
    std::memcpy(array(0, first), array(1, first), static_cast<size_t>(n) * sizeof(float));
  });
  const double added = gb_per_s("triad", 3, [&](int64_t first, int64_t n) {
    triad(array(0, first), array(1, first), array(2, first), n);
  });
  const double updated = gb_per_s("update", 7, [&](int64_t first, int64_t n) {
    update(array(0, first), array(1, first), array(2, first), array(3, first), n);
  });
  return std::max({copied, added, updated});
}

double measure(const std::string& what, bool one_thread) {
  if (what == "stream") return stream_gb_per_s(one_thread);
  const bool mixed = what.ends_with("mixed");
  Adam adam(mixed);
  const double seconds =
      seconds_of(one_thread, [&] { what.starts_with("fused") ? adam.fused_step() : adam.step(); });
  // Three arrays are read and written, the gradient is read.
  return what == "bandwidth" ? 7 * kElements * sizeof(float) * 1e-9 / seconds : seconds * 1e3;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  const char* const known[] = {"adam", "fused", "mixed", "fused-mixed", "bandwidth", "stream"};
  if (std::find(std::begin(known), std::end(known), what) == std::end(known)) {
    std::fprintf(stderr, "usage: zero_cpu_adam adam|fused|mixed|fused-mixed|bandwidth|stream THREADS\n");
    return 2;
  }
  const int threads = std::stoi(argv[2]);
  at::set_num_threads(threads);
  const bool speed = what == "bandwidth" || what == "stream";
  std::printf("{\"value\": %.4f, \"unit\": \"%s\"}\n", measure(what, threads == 1), speed ? "GB/s" : "ms");
  return 0;
}
