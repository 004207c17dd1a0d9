#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_sample_dirichlet.h>
#include <ATen/ops/full.h>
#include <ATen/ops/one_hot.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/images.h>

#include <utility>

namespace lockstep {
namespace {

// In torchvision's order of operations.
at::Tensor mixed(const at::Tensor& values, double share) {
  return values.roll(1, 0).mul_(1.0 - share).add_(values.mul(share));
}

void check_alpha(double alpha) {
  if (alpha > 0) return;
  throw ConfigError("data", fmt::format("alpha of MixUp must be above 0: {}", alpha));
}

}  // namespace

double draw_mix_up(double alpha, uint64_t seed) {
  check_alpha(alpha);
  // A Beta distribution is a Dirichlet distribution of two numbers.
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor concentration = at::full({1, 2}, alpha, at::kFloat);
  return at::_sample_dirichlet(concentration, generator).const_data_ptr<float>()[0];
}

Batch mix_up(const Batch& batch, double share, int64_t num_classes) {
  if (!(share >= 0 && share <= 1)) {
    throw ConfigError("data", fmt::format("the share of MixUp must be from 0 to 1: {}", share));
  }
  const at::Tensor& images = batch.data();
  if (!images.is_floating_point()) {
    throw ConfigError("data", "MixUp needs images of a floating type: bytes cannot be mixed");
  }
  at::Tensor labels = batch.target();
  if (labels.dim() == 1) {
    if (labels.numel() > 0 && (labels.is_floating_point() || labels.max().item<int64_t>() >= num_classes)) {
      throw ConfigError("data",
                        fmt::format("MixUp needs class indices below num_classes={} as labels", num_classes));
    }
    labels = at::one_hot(labels, num_classes);
  }
  Batch result = batch;
  result.tensors[0] = mixed(images, share);
  result.tensors[1] = mixed(labels.is_floating_point() ? labels : labels.to(at::kFloat), share);
  return result;
}

MixUpDataset::MixUpDataset(std::shared_ptr<const Dataset> images, double alpha, int64_t num_classes)
    : images_(std::move(images)), alpha_(alpha), num_classes_(num_classes) {
  check_alpha(alpha);
  if (images_ == nullptr) throw ConfigError("data", "a MixUpDataset needs images");
  if (num_classes < 1) {
    throw ConfigError("data", fmt::format("num_classes of MixUp must be at least 1: {}", num_classes));
  }
}

int64_t MixUpDataset::size() const { return images_->size(); }

Example MixUpDataset::get(int64_t index, uint64_t seed) const {
  Example sample = images_->get(index, seed);
  Batch alone;
  for (const at::Tensor& tensor : sample) alone.tensors.push_back(tensor.unsqueeze(0));
  const Batch batch = mix_up(alone, draw_mix_up(alpha_, seed), num_classes_);
  for (size_t i = 0; i < sample.size(); ++i) sample[i] = batch.tensors[i][0];
  return sample;
}

Batch MixUpDataset::get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const {
  const double share = draw_mix_up(alpha_, seeds.of(indices.front()));
  return mix_up(images_->get_batch(indices, seeds), share, num_classes_);
}

}  // namespace lockstep
