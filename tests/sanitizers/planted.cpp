// Proof that the sanitizers see our mistakes through LibTorch and only those:
//
//   planted overflow    writes one element behind a buffer of ours
//   planted race        two threads write one variable of ours while they train
//   planted cast        makes an integer of a loss that is too large for it
//   planted clean       the same work without the mistakes: must not be reported

#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>

namespace {

// Forward, backward on the engine's threads, and an operator large enough for
// OpenMP: everything in LibTorch that a rank of ours touches.
double train(int seed) {
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  double loss_sum = 0;
  for (int step = 0; step < 5; ++step) {
    auto x = torch::full({4096, 8}, 0.001 * (seed + step));
    auto loss = model->forward(x).pow(2).mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    loss_sum += loss.item<double>();
  }
  return loss_sum;
}

// `shared` is written by both threads when racy, else each writes its own.
double train_in_two_threads(bool racy) {
  double sums[2] = {0, 0};
  auto work = [&](int thread) { sums[racy ? 0 : thread] += train(thread); };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  return sums[0] + sums[1];
}

// A buffer of ours that a tensor looks at.
float write_to_buffer(int64_t past_end) {
  auto buffer = std::make_unique<float[]>(64);
  auto view = torch::from_blob(buffer.get(), {64});
  view.fill_(1);
  volatile float* element = buffer.get() + 63 + past_end;
  *element = 2;
  return view.sum().item<float>();
}

// Steps until a loss is reached, as an integer of ours.
int64_t as_integer(double loss, bool too_large) {
  volatile double value = too_large ? 1e30 + loss : loss;
  return static_cast<int64_t>(value);
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(2);
  const std::string_view mistake = argc > 1 ? argv[1] : "clean";
  const float sum = write_to_buffer(mistake == "overflow" ? 1 : 0);
  const double loss = train_in_two_threads(mistake == "race");
  const int64_t steps = as_integer(loss, mistake == "cast");
  std::printf("sum %g, loss %g, steps %lld\n", sum, loss, static_cast<long long>(steps));
  return 0;
}
