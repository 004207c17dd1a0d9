// The largest GPT-like model that trains inside a limit of device memory on one rank: all
// states on the device, against stage 3 with optimizer and parameters in host memory.
// Parameters are bfloat16, the optimizer is AdamW. Prints one JSON line.
//
//   build/bin/bench/zero_capacity --memory-limit BYTES [--width 2048] [--steps 3]
//       [--max-ratio 6] [--device cuda|cpu]
//
// Width and the rest are fixed; the number of layers is what is searched for. Every try is a
// process of its own, so that none has what another one left. On a GPU the allocator has the
// limit, and activations count; on the CPU it is the most that ShardedModel::memory() says
// is on the device. Host memory bounds the second search: 16 bytes a parameter.

#include <lockstep/lockstep.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "comm/plugin.h"

namespace {

constexpr int64_t kVocabulary = 8192;
constexpr int64_t kLength = 256;
constexpr int kOutOfMemory = 3;  // exit status of a try
constexpr int kKilled = 137;     // by the kernel, when host memory was full

struct Arguments {
  std::string program;
  int64_t memory_limit = 0;
  int64_t width = 2048;
  int64_t steps = 3;
  double max_ratio = 6;
  std::string device = "cuda";
  // Of one try; 0: this process searches.
  int64_t layers = 0;
  bool offload = false;
};

// Random numbers of a whole model would take longer than its training: the same few, over
// and over, which no shape is a multiple of.
at::Tensor weight(at::IntArrayRef shape) {
  constexpr int64_t kPeriod = 65521;
  static const at::Tensor noise = torch::randn({kPeriod}).mul_(0.02).to(at::kBFloat16);
  at::Tensor result = at::empty(shape, at::kBFloat16);
  const at::Tensor flat = result.view(-1);
  const int64_t rows = flat.numel() / kPeriod;
  flat.narrow(0, 0, rows * kPeriod).view({rows, kPeriod}).copy_(noise.expand({rows, kPeriod}));
  const int64_t rest = flat.numel() - rows * kPeriod;
  flat.narrow(0, rows * kPeriod, rest).copy_(noise.narrow(0, 0, rest));
  return result;
}

struct DecoderImpl : torch::nn::Module {
  explicit DecoderImpl(int64_t width)
      : width_(width),
        heads_(std::max<int64_t>(1, width / 64)),
        attention(register_parameter("attention", weight({3 * width, width}))),
        projection(register_parameter("projection", weight({width, width}))),
        up(register_parameter("up", weight({4 * width, width}))),
        down(register_parameter("down", weight({width, 4 * width}))),
        scale(register_parameter("scale", torch::ones({2, width}, at::kBFloat16))) {}

  torch::Tensor forward(torch::Tensor x) {
    const int64_t batch = x.size(0);
    const int64_t length = x.size(1);
    const auto normal = [&](const at::Tensor& y, int64_t i) {
      return torch::layer_norm(y, {width_}, scale[i], {}, 1e-5);
    };
    const auto parts = torch::linear(normal(x, 0), attention)
                           .view({batch, length, 3, heads_, width_ / heads_})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + torch::linear(mixed.transpose(1, 2).reshape({batch, length, width_}), projection);
    return x + torch::linear(torch::gelu(torch::linear(normal(x, 1), up)), down);
  }

  int64_t width_, heads_;
  torch::Tensor attention, projection, up, down, scale;
};
using Decoder = lockstep::Sharded<DecoderImpl>;

struct EmbeddingImpl : torch::nn::Module {
  explicit EmbeddingImpl(int64_t width)
      : words(register_parameter("words", weight({kVocabulary, width}))),
        places(register_parameter("places", weight({kLength, width}))) {}
  torch::Tensor forward(torch::Tensor tokens) { return torch::embedding(words, tokens) + places; }
  torch::Tensor words, places;
};

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(int64_t width) : words(register_parameter("words", weight({kVocabulary, width}))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::linear(x, words); }
  torch::Tensor words;
};

struct GptImpl : torch::nn::Module {
  GptImpl(int64_t width, int64_t layers)
      : embedding(register_module("embedding", lockstep::Sharded<EmbeddingImpl>(width))),
        head(register_module("head", lockstep::Sharded<HeadImpl>(width))) {
    for (int64_t i = 0; i < layers; ++i) {
      decoders.push_back(register_module("decoder" + std::to_string(i), Decoder(width)));
    }
  }
  torch::Tensor loss(const torch::Tensor& tokens) {
    torch::Tensor x = embedding(tokens);
    for (Decoder& decoder : decoders) x = decoder(x);
    const torch::Tensor scores = head(x).narrow(1, 0, kLength - 1).reshape({-1, kVocabulary});
    return torch::cross_entropy_loss(scores.to(at::kFloat), tokens.narrow(1, 1, kLength - 1).reshape({-1}));
  }
  lockstep::Sharded<EmbeddingImpl> embedding;
  lockstep::Sharded<HeadImpl> head;
  std::vector<Decoder> decoders;
};
TORCH_MODULE(Gpt);

int64_t parameters_of(int64_t width, int64_t layers) {
  return layers * (12 * width * width + 2 * width) + (2 * kVocabulary + kLength) * width;
}

lockstep::ShardedOptions options_of(const Arguments& arguments, c10::Device device) {
  lockstep::ShardedOptions options;
  options.device = device;
  options.zero.stage = arguments.offload ? 3 : 0;
  if (arguments.offload) {
    options.zero.offload_optimizer.device = lockstep::OffloadDevice::kCpu;
    options.zero.offload_param.device = lockstep::OffloadDevice::kCpu;
  }
  return options;
}

// Returns what is on the device at most, by the model's own count.
int64_t train(const Arguments& arguments) {
  const bool on_gpu = arguments.device == "cuda";
  if (on_gpu) {
    if (lockstep::comm::list_cuda_devices().empty()) {
      throw lockstep::ConfigError("bench", "there is no CUDA device here: use --device cpu");
    }
    lockstep::comm::limit_cuda_memory(0, arguments.memory_limit);
  }
  const c10::Device device = on_gpu ? c10::Device(at::kCUDA, 0) : c10::Device(at::kCPU);
  torch::manual_seed(0);
  Gpt net(arguments.width, arguments.layers);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-4));
  lockstep::ShardedModel model(net.ptr(), optimizer, lockstep::Communicator(), options_of(arguments, device));
  const at::Tensor tokens = torch::randint(kVocabulary, {1, kLength}, at::kLong).to(device);
  int64_t most = 0;
  const auto count = [&] { most = std::max(most, model.memory().device()); };
  for (int64_t step = 0; step < arguments.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    model.zero_grad();
    model.prepare_forward();
    at::Tensor loss = net->loss(tokens);
    count();
    loss.backward();
    count();
    model.step();
    count();
    const double value = loss.item<double>();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "  step %ld: loss %.4f, %.2f s\n", static_cast<long>(step), value, took.count());
    if (!std::isfinite(value)) throw lockstep::ConfigError("bench", "the loss is not finite");
  }
  return most;
}

int try_here(const Arguments& arguments) {
  try {
    const int64_t most = train(arguments);
    std::fprintf(stderr, "  on the device, without activations: %ld bytes\n", static_cast<long>(most));
    return arguments.device == "cpu" && most > arguments.memory_limit ? kOutOfMemory : 0;
  } catch (const c10::OutOfMemoryError&) {
    return kOutOfMemory;
  }
}

// Whether that many layers train, in a process of its own.
bool fits(const Arguments& arguments, int64_t layers, bool offload) {
  std::fprintf(stderr, "%ld layers, %.3f billion parameters, %s\n", static_cast<long>(layers),
               static_cast<double>(parameters_of(arguments.width, layers)) * 1e-9,
               offload ? "offloaded" : "all on the device");
  const std::string command =
      "'" + arguments.program + "' --memory-limit " + std::to_string(arguments.memory_limit) + " --width " +
      std::to_string(arguments.width) + " --steps " + std::to_string(arguments.steps) + " --device " +
      arguments.device + " --layers " + std::to_string(layers) + (offload ? " --offload" : "");
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 0) return true;
  if (code == kOutOfMemory || code == kKilled) {
    std::fprintf(stderr, "  does not fit into %s\n", code == kKilled ? "host memory" : "the device");
    return false;
  }
  throw lockstep::ConfigError("bench", "a try ended with status " + std::to_string(code) + ": " + command);
}

// The most layers that fit, from a guess on: few tries where it is a good one.
int64_t search(const Arguments& arguments, int64_t guess, int64_t most, bool offload) {
  int64_t good = 0;
  int64_t bad = most + 1;
  int64_t stride = std::max<int64_t>(1, guess / 16);
  int64_t next = std::clamp<int64_t>(guess, 1, most);
  while (bad - good > 1) {
    (fits(arguments, next, offload) ? good : bad) = next;
    if (good == 0) {
      next = std::max<int64_t>(1, bad - stride);
    } else if (bad > most) {
      next = std::min(most, good + stride);
    } else {
      next = good + (bad - good) / 2;
    }
    stride *= 2;
    if (good == most) break;
  }
  return good;
}

void search_both(const Arguments& arguments) {
  const int64_t block = parameters_of(arguments.width, 1) - parameters_of(arguments.width, 0);
  const int64_t outside = parameters_of(arguments.width, 0);
  const int64_t guess = (arguments.memory_limit / 17 - outside) / block;
  const int64_t without =
      search(arguments, std::max<int64_t>(1, guess), 4 * std::max<int64_t>(1, guess), false);
  if (without == 0) throw lockstep::ConfigError("bench", "not even one layer fits: raise --memory-limit");
  const double base = static_cast<double>(parameters_of(arguments.width, without));
  const auto most = static_cast<int64_t>((base * arguments.max_ratio - static_cast<double>(outside)) /
                                         static_cast<double>(block));
  const int64_t with = search(arguments, most, most, true);
  const auto largest = static_cast<double>(parameters_of(arguments.width, with));
  std::printf(
      "{\"value\": %.4g, \"unit\": \"x\", \"parameters_with\": %.0f, \"parameters_without\": %.0f, "
      "\"layers_with\": %ld, \"layers_without\": %ld, \"width\": %ld, \"memory_limit\": %ld, \"device\": "
      "\"%s\", "
      "\"stopped_at_max_ratio\": %s}\n",
      largest / base, largest, base, static_cast<long>(with), static_cast<long>(without),
      static_cast<long>(arguments.width), static_cast<long>(arguments.memory_limit), arguments.device.c_str(),
      with == most ? "true" : "false");
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  arguments.program = argv[0];
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--offload") {
      arguments.offload = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (name == "--memory-limit")
      arguments.memory_limit = std::atoll(value.c_str());
    else if (name == "--width")
      arguments.width = std::atoll(value.c_str());
    else if (name == "--steps")
      arguments.steps = std::atoll(value.c_str());
    else if (name == "--max-ratio")
      arguments.max_ratio = std::atof(value.c_str());
    else if (name == "--layers")
      arguments.layers = std::atoll(value.c_str());
    else if (name == "--device" && (value == "cpu" || value == "cuda"))
      arguments.device = value;
    else
      throw lockstep::ConfigError("bench", "zero_capacity does not know: " + name + " " + value);
  }
  const bool usable = arguments.memory_limit > 0 && arguments.width >= 64 && arguments.width % 64 == 0 &&
                      arguments.steps > 0 && arguments.max_ratio >= 1 && arguments.layers >= 0;
  if (!usable) {
    throw lockstep::ConfigError("bench",
                                "zero_capacity --memory-limit BYTES [--width, a multiple of 64] "
                                "[--steps 3] [--max-ratio 6] [--device cuda|cpu]");
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    if (arguments.layers > 0) return try_here(arguments);
    search_both(arguments);
    return 0;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
