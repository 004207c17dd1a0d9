#include <fmt/format.h>
#include <lockstep/data.h>
#include <lockstep/error.h>
#include <lockstep/image_files.h>
#include <lockstep/images.h>

#include <lockstep/json.h>
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <random>

#include "cli/commands.h"
#include "cluster/node_resources.h"
#include "train/device.h"

namespace lockstep::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Type = ImageTransform::Type;
using Layout = ImageTransform::Layout;

struct BenchDataOptions {
  std::vector<std::string> shapes = {"cifar", "imagenet"};
  std::string data;
  std::vector<int> threads;
  std::optional<int64_t> batch_size;
  Type type = Type::kFloat32;
  Layout layout = Layout::kChannelsFirst;
  double seconds = 0.5;
  int repeats = 5;
  bool json = false;
};

// Pictures of random bytes in memory: what is measured is not a disk.
class RandomImages : public ImageSource {
 public:
  RandomImages(int64_t count, ImageView shape) : count_(count), shape_(shape) {
    image_bytes_ = static_cast<size_t>(shape.channels) * static_cast<size_t>(shape.height * shape.width);
    pixels_.resize(image_bytes_ * static_cast<size_t>(count));
    std::minstd_rand random(1);
    for (uint8_t& pixel : pixels_) pixel = static_cast<uint8_t>(random() >> 8);
  }

  int64_t size() const override { return count_; }
  int64_t label(int64_t index) const override { return index % num_classes(); }
  int64_t num_classes() const override { return 10; }
  ImageView image(int64_t index, std::vector<uint8_t>& /*scratch*/) const override {
    ImageView view = shape_;
    view.pixels = pixels_.data() + static_cast<size_t>(index) * image_bytes_;
    return view;
  }

 private:
  int64_t count_;
  ImageView shape_;
  size_t image_bytes_ = 0;
  std::vector<uint8_t> pixels_;
};

struct Workload {
  std::string name;
  std::string what;  // for a person
  int64_t batch_size = 0;
  std::shared_ptr<const ImageDataset> dataset;
};

struct BenchDataRow {
  std::string workload;
  int threads = 0;
  double images_per_s = 0;  // median over the repeats
  double lowest = 0;
  double highest = 0;
  double gigabytes_per_s = 0;  // written into batches

  double per_thread() const { return images_per_s / threads; }
};

constexpr int kSmallSide = 64;
constexpr int64_t kSmallBatch = 256;
constexpr int64_t kLargeBatch = 32;

// CIFAR's augmentation for small pictures, ImageNet's for others.
ImageTransform transform_for(ImageSize size, int channels, const BenchDataOptions& options) {
  ImageTransform transform;
  if (std::max(size.height, size.width) <= kSmallSide) {
    transform.random_crop = std::min(size.height, size.width);
    transform.padding = 4;
  } else {
    transform.resize = 256;
    transform.random_crop = 224;
  }
  transform.flip_probability = 0.5;
  if (options.type != Type::kUInt8) {
    transform.mean.assign(static_cast<size_t>(channels), 0.45F);
    transform.stddev.assign(static_cast<size_t>(channels), 0.225F);
  }
  transform.type = options.type;
  transform.layout = options.layout;
  return transform;
}

Workload make_workload(const std::string& name, std::shared_ptr<const ImageSource> source,
                       const BenchDataOptions& options) {
  std::vector<uint8_t> scratch;
  if (source->size() == 0) throw ConfigError("cli", fmt::format("there are no images in '{}'", name));
  const ImageView first = source->image(0, scratch);
  const ImageTransform transform = transform_for({first.height, first.width}, first.channels, options);
  const std::string resize = transform.resize > 0 ? fmt::format("resize {}, ", transform.resize) : "";
  const int64_t batch_size = options.batch_size.value_or(transform.resize > 0 ? kLargeBatch : kSmallBatch);
  std::string what = fmt::format("{}x{}x{}, {}crop {} of padding {}, flip{}, batches of {}", first.channels,
                                 first.height, first.width, resize, transform.random_crop, transform.padding,
                                 transform.mean.empty() ? "" : ", normalise", batch_size);
  return {name, std::move(what), batch_size,
          std::make_shared<const ImageDataset>(std::move(source), transform)};
}

std::vector<Workload> workloads_of(const BenchDataOptions& options) {
  if (!options.data.empty()) {
    return {make_workload(options.data, open_images(options.data, Split::kTrain), options)};
  }
  std::vector<Workload> workloads;
  for (const std::string& shape : options.shapes) {
    const bool cifar = shape == "cifar";
    const ImageView view = cifar ? ImageView{nullptr, 3, 32, 32, ImageView::Layout::kPlanar}
                                 : ImageView{nullptr, 3, 375, 500, ImageView::Layout::kInterleaved};
    workloads.push_back(
        make_workload(shape, std::make_shared<RandomImages>(cifar ? 10'000 : 64, view), options));
  }
  return workloads;
}

// What the affinity mask and the control group leave of the machine.
int own_cpus() { return cluster::usable_cpus(cluster::affinity_cpus().size(), cluster::cpu_quota()); }

// 1, 2, 4, ... and all.
std::vector<int> default_threads() {
  const int all = own_cpus();
  std::vector<int> threads;
  for (int n = 1; n < all; n *= 2) threads.push_back(n);
  threads.push_back(all);
  return threads;
}

// Images a second for about `seconds`, from an epoch that is under way.
double measure_once(Loader::Epoch& batches, double seconds) {
  const Clock::time_point start = Clock::now();
  int64_t images = 0;
  std::chrono::duration<double> passed{};
  while (passed.count() < seconds) {
    images += batches.next()->size();
    passed = Clock::now() - start;
  }
  return static_cast<double>(images) / passed.count();
}

BenchDataRow measure(const Workload& workload, int threads, const BenchDataOptions& options) {
  Loader loader(workload.dataset,
                {.batch_size = workload.batch_size, .shuffle = true, .num_workers = threads});
  Loader::Epoch batches = loader.stream();
  measure_once(batches, options.seconds / 5);  // warm-up
  std::vector<double> speeds;
  for (int i = 0; i < options.repeats; ++i) speeds.push_back(measure_once(batches, options.seconds));
  std::sort(speeds.begin(), speeds.end());
  BenchDataRow row{workload.name, threads, speeds[speeds.size() / 2], speeds.front(), speeds.back()};
  auto image_bytes = static_cast<double>(bytes_of(options.type));
  for (const int64_t side : workload.dataset->image_shape()) image_bytes *= static_cast<double>(side);
  row.gigabytes_per_s = row.images_per_s * image_bytes / 1e9;
  return row;
}

void print_table(const std::vector<Workload>& workloads, const std::vector<BenchDataRow>& rows) {
  for (const Workload& workload : workloads) {
    fmt::print("{}: {}\n{:>8}{:>14}{:>24}{:>18}{:>12}\n", workload.name, workload.what, "threads", "images/s",
               "min..max", "images/s/thread", "GB/s");
    for (const BenchDataRow& row : rows) {
      if (row.workload != workload.name) continue;
      fmt::print("{:>8}{:>14.0f}{:>24}{:>18.0f}{:>12.2f}\n", row.threads, row.images_per_s,
                 fmt::format("{:.0f}..{:.0f}", row.lowest, row.highest), row.per_thread(),
                 row.gigabytes_per_s);
    }
  }
}

void print_json(const std::vector<BenchDataRow>& rows) {
  Json result = {{"cores", own_cpus()}, {"rows", Json::array()}};
  for (const BenchDataRow& row : rows) {
    result["rows"].push_back({{"images", row.workload},
                              {"threads", row.threads},
                              {"images_per_s", row.images_per_s},
                              {"lowest_images_per_s", row.lowest},
                              {"highest_images_per_s", row.highest},
                              {"images_per_s_per_thread", row.per_thread()},
                              {"gigabytes_per_s", row.gigabytes_per_s}});
  }
  fmt::print("{}\n", result.dump(2));
}

void bench_data(const BenchDataOptions& options) {
  train::keep_freed_memory();  // as a training program does
  const std::vector<int> threads = options.threads.empty() ? default_threads() : options.threads;
  const std::vector<Workload> workloads = workloads_of(options);
  std::vector<BenchDataRow> rows;
  for (const Workload& workload : workloads) {
    for (const int n : threads) rows.push_back(measure(workload, n, options));
  }
  options.json ? print_json(rows) : print_table(workloads, rows);
}

template <typename Value>
std::vector<std::string> names_of(const std::map<std::string, Value>& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  return names;
}

}  // namespace

// Images per second that a loader delivers, by threads: with CIFAR's augmentation, with ImageNet's resize and
// crop, or from the user's own files.
int run_bench_data(int argc, const char* const* argv) {
  const std::map<std::string, Type> types = {{"float32", Type::kFloat32},
                                             {"float16", Type::kFloat16},
                                             {"bfloat16", Type::kBFloat16},
                                             {"uint8", Type::kUInt8}};
  const std::map<std::string, Layout> layouts = {{"channels_first", Layout::kChannelsFirst},
                                                 {"channels_last", Layout::kChannelsLast}};
  BenchDataOptions options;
  std::string type = "float32", layout = "channels_first";
  config::OptionTable("Measures images per second, from bytes to batches, by threads.", config::kNoVariables)
      .add("images", options.shapes, "synthetic ones", {.choices = {"cifar", "imagenet"}, .several = true})
      .add("data", options.data, "a folder or file of images instead")
      .add("threads", options.threads,
           "left out: 1, 2, 4, ... and one for each CPU that this process may use",
           {.several = true, .minimum = 1, .maximum = 4096})
      .add("batch_size", options.batch_size, "images per batch; left out: 256, of large images 32",
           {.minimum = 1, .maximum = 1 << 20})
      .add("type", type, "of the values in a batch", {.choices = names_of(types)})
      .add("layout", layout, "of a batch", {.choices = names_of(layouts)})
      .add("seconds", options.seconds, "of each measurement", {.minimum = 0.01, .maximum = 3600})
      .add("repeats", options.repeats, "measurements of each row", {.minimum = 1, .maximum = 1000})
      .add("json", options.json, "print JSON", {.negatable = false})
      .parse(argc, argv);
  options.type = types.at(type);
  options.layout = layouts.at(layout);
  bench_data(options);
  return kExitSuccess;
}

}  // namespace lockstep::cli
