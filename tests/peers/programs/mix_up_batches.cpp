// Mixes batches: a JSON object a line on standard input and on standard output.

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <lockstep/images.h>

#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

std::vector<float> numbers_of(const at::Tensor& tensor) {
  const at::Tensor all = tensor.contiguous();
  return {all.const_data_ptr<float>(), all.const_data_ptr<float>() + all.numel()};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json task = nlohmann::json::parse(line);
    const double share = lockstep::draw_mix_up(task.at("alpha"), task.at("seed").get<uint64_t>());
    const auto labels = task.at("labels").get<std::vector<int64_t>>();
    const at::Tensor images = at::tensor(task.at("images").get<std::vector<float>>(), at::kFloat)
                                  .view({static_cast<int64_t>(labels.size()), -1});
    const lockstep::Batch batch =
        lockstep::mix_up({{images, at::tensor(labels, at::kLong)}, {}}, share, task.at("num_classes"));
    std::cout << nlohmann::json{numbers_of(batch.data()), numbers_of(batch.target())} << '\n';
  }
}
