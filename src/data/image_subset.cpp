#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/images.h>

#include <algorithm>
#include <numeric>

#include "data/permutation.h"

namespace lockstep {
namespace {

class Subset : public ImageSource {
 public:
  Subset(std::shared_ptr<const ImageSource> source, std::vector<int64_t> indices)
      : source_(std::move(source)), indices_(std::move(indices)) {}

  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  int64_t label(int64_t index) const override { return source_->label(place(index)); }
  int64_t num_classes() const override { return source_->num_classes(); }
  std::span<const std::string> class_names() const override { return source_->class_names(); }
  ImageView image(int64_t index, std::vector<uint8_t>& scratch) const override {
    return source_->image(place(index), scratch);
  }

 private:
  int64_t place(int64_t index) const { return indices_[static_cast<size_t>(index)]; }

  std::shared_ptr<const ImageSource> source_;
  std::vector<int64_t> indices_;
};

void check_source(const std::shared_ptr<const ImageSource>& source) {
  if (!source) throw ConfigError("data", "there is no set of images: the pointer is null");
}

}  // namespace

std::shared_ptr<const ImageSource> image_subset(std::shared_ptr<const ImageSource> source,
                                                std::vector<int64_t> indices) {
  check_source(source);
  for (const int64_t index : indices) {
    if (index >= 0 && index < source->size()) continue;
    throw ConfigError("data", fmt::format("image {} is not in a set of {}", index, source->size()));
  }
  return std::make_shared<const Subset>(std::move(source), std::move(indices));
}

std::shared_ptr<const ImageSource> first_images(std::shared_ptr<const ImageSource> source, int64_t count) {
  check_source(source);
  if (count >= source->size()) return source;
  std::vector<int64_t> indices(static_cast<size_t>(std::max<int64_t>(0, count)));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return image_subset(std::move(source), std::move(indices));
}

ImageSplit split_images(const std::shared_ptr<const ImageSource>& source, double train_fraction,
                        uint64_t seed) {
  check_source(source);
  const int64_t size = source->size();
  const bool is_part = train_fraction > 0 && train_fraction < 1;  // NaN is neither
  const int64_t train = is_part ? static_cast<int64_t>(static_cast<double>(size) * train_fraction) : 0;
  if (train == 0 || train == size) {
    throw ConfigError("data", fmt::format("{} images cannot be cut in two by a fraction of {}: one part "
                                          "would be empty",
                                          size, train_fraction));
  }
  const std::vector<uint32_t> order = data::random_permutation(size, seed);
  const auto middle = order.begin() + train;
  return {image_subset(source, {order.begin(), middle}), image_subset(source, {middle, order.end()})};
}

}  // namespace lockstep
