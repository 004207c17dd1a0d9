// Prints the order of DistributedSampler for the live comparison with PyTorch.
//
//   print_sampler [weighted] < CASES
//
// A case is a line "n world_size shuffle seed epoch drop_last"; the answer is one line
// per rank: the indices, or for n > 1000 "count sum checksum", checksum being the sum
// of index * (place modulo 1000003) modulo 2^64.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/data.h>

#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int64_t kFullListLimit = 1000;

void print_rank(const lockstep::DistributedSampler& sampler) {
  if (sampler.dataset_size() <= kFullListLimit) {
    fmt::print("{}\n", fmt::join(sampler.indices(), " "));
    return;
  }
  uint64_t sum = 0;
  uint64_t checksum = 0;
  for (int64_t i = 0; i < sampler.size(); ++i) {
    const auto index = static_cast<uint64_t>(sampler.index(i));
    sum += index;
    checksum += index * static_cast<uint64_t>(i % 1000003);
  }
  fmt::print("{} {} {}\n", sampler.size(), sum, checksum);
}

// A case is a line "samples seed epoch replacement weight..."; the answer is the order.
int print_weighted_orders() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    int64_t samples = 0;
    int64_t seed = 0;
    int64_t epoch = 0;
    bool replacement = true;
    words >> samples >> seed >> epoch >> replacement;
    const std::vector<double> weights{std::istream_iterator<double>(words), {}};
    fmt::print("{}\n",
               fmt::join(lockstep::weighted_order(weights, samples, replacement).draw(seed, epoch), " "));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string("weighted")) return print_weighted_orders();
  int64_t size = 0;
  lockstep::SamplerOptions options;
  int64_t epoch = 0;
  while (std::cin >> size >> options.world_size >> options.shuffle >> options.seed >> epoch >>
         options.drop_last) {
    for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
      lockstep::DistributedSampler sampler(size, options);
      sampler.set_epoch(epoch);
      print_rank(sampler);
    }
  }
}
