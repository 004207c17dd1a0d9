#include "train/batch_source.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "optim/precision.h"

namespace lockstep::train {
namespace {

int64_t batch_size_of(const Loader& loader, int world_size, const TrainConfig& config) {
  if (config.batch_size) return *config.batch_size;
  if (!config.global_batch_size) return loader.options().batch_size;
  const int64_t parts = world_size * config.accumulate_steps;
  if (*config.global_batch_size % parts != 0) {
    throw ConfigError(
        "train",
        fmt::format("global_batch_size {} does not divide by {} rank(s) times accumulate_steps {}: set "
                    "it to a multiple of {}",
                    *config.global_batch_size, world_size, config.accumulate_steps, parts));
  }
  return *config.global_batch_size / parts;
}

std::string why_empty(const Loader& loader, int world_size) {
  if (loader.dataset_size() == 0) return "the dataset is empty";
  return fmt::format(
      "{} samples over {} rank(s) do not fill a batch of {}, and drop_last leaves out the rest",
      loader.dataset_size(), world_size, loader.options().batch_size);
}

}  // namespace

BatchSource::BatchSource(const DataSource& data, int rank, int world_size, const TrainConfig& config)
    : rank_(rank), world_size_(world_size) {
  if (data.empty()) {
    num_batches_ = config.max_batches.value_or(1);
    return;
  }
  num_batches_ = std::numeric_limits<int64_t>::max();
  if (data.loader() != nullptr) add("", *data.loader(), config);
  for (const auto& [name, loader] : data.loaders()) add(name, *loader, config);
  named_ = !data.loaders().empty();
  if (endless_ && num_batches_ == std::numeric_limits<int64_t>::max()) num_batches_ = 1;
  if (config.max_batches)
    num_batches_ = endless_ ? *config.max_batches : std::min(num_batches_, *config.max_batches);
}

void BatchSource::add(const std::string& name, const Loader& whole, const TrainConfig& config) {
  const int64_t batch_size = batch_size_of(whole, world_size_, config);
  Loader loader = batch_size == whole.options().batch_size
                      ? whole.shard(rank_, world_size_, ShardKind::kTrain)
                      : whole.with_batch_size(batch_size).shard(rank_, world_size_, ShardKind::kTrain);
  if (loader.num_batches() == 0) {
    throw ConfigError(
        "train", fmt::format("nothing to train on{}: {}", name.empty() ? "" : fmt::format(" in '{}'", name),
                             why_empty(loader, world_size_)));
  }
  loader.load_state({.seed = loader.options().seed + static_cast<int64_t>(config.seed)});
  if (whole.options().endless) {
    endless_ = true;
  } else {
    num_batches_ = std::min(num_batches_, loader.num_batches());
  }
  streams_.push_back({name, std::move(loader)});
}

void BatchSource::begin_epoch(int64_t epoch) {
  if (!resuming_) position_ = 0;
  for (Stream& stream : streams_) {
    if (!stream.loader.options().endless) {
      stream.epoch.emplace(stream.loader.epoch(epoch));
      stream.taken = 0;
    } else if (!stream.epoch) {
      stream.epoch.emplace(stream.loader.stream(stream.loader.state().epoch));
    }
  }
  resuming_ = false;
}

bool BatchSource::next(Batch& batch) {
  // Checked before any batch is taken: if one loader has ended, the others keep their batch.
  if (at_end()) return false;
  batch = Batch();
  for (Stream& stream : streams_) {
    Batch* part = stream.epoch->next();
    if (part == nullptr) return false;
    ++stream.taken;
    add_part(batch, named_, stream.name, *part);
  }
  ++position_;
  return true;
}

int64_t BatchSource::batches_left() const {
  int64_t left = num_batches_ - position_;
  for (const Stream& stream : streams_) {
    if (!stream.loader.options().endless) left = std::min(left, stream.epoch->num_batches() - stream.taken);
  }
  return std::max<int64_t>(left, 0);
}

void BatchSource::finish_epoch(int64_t next_epoch) {
  position_ = 0;
  for (Stream& stream : streams_) {
    if (stream.loader.options().endless) continue;
    stream.epoch.reset();
    stream.loader.load_state({stream.loader.state().seed, next_epoch, 0});
  }
}

std::map<std::string, SamplerState> BatchSource::state() const {
  std::map<std::string, SamplerState> states;
  for (const Stream& stream : streams_) states[stream.name] = stream.loader.state();
  return states;
}

void BatchSource::load_state(const std::map<std::string, SamplerState>& states, int64_t batches_done) {
  position_ = batches_done;
  for (Stream& stream : streams_) {
    const auto found = states.find(stream.name);
    if (found == states.end()) {
      throw ConfigError("train",
                        fmt::format("the checkpoint holds no position in the data '{}'", stream.name));
    }
    stream.loader.load_state(found->second);
    // The saved run may have had another batch size or world size.
    const LoaderOptions& options = stream.loader.options();
    if (!options.endless) position_ = found->second.position / (options.batch_size * world_size_);
  }
  resuming_ = true;
}

void add_part(Batch& batch, bool named, const std::string& name, Batch& part) {
  if (named) {
    batch.parts.push_back({name, std::move(part)});
  } else {
    batch = std::move(part);
  }
}

Batch to_device(const Batch& batch, c10::Device device, c10::ScalarType dtype) {
  Batch moved = batch;
  for (at::Tensor& tensor : moved.tensors) {
    // Moved first and converted on the device: a conversion in host memory would be into pageable
    // memory, and its copy would make the host wait. Class indices and the like stay integers.
    tensor = optim::convert_input(tensor.to(device, /*non_blocking=*/true), dtype);
  }
  for (BatchPart& part : moved.parts) part.batch = to_device(part.batch, device, dtype);
  return moved;
}

std::string describe(const Batch& batch) {
  std::vector<std::string> parts;
  for (const at::Tensor& tensor : batch.tensors) {
    parts.push_back(
        fmt::format("{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", ")));
  }
  for (const BatchPart& part : batch.parts) {
    parts.push_back(fmt::format("{}: {}", part.name, describe(part.batch)));
  }
  return parts.empty() ? "no data" : fmt::format("{}", fmt::join(parts, ", "));
}

namespace {

bool is_on_host(const Batch& batch) {
  return std::any_of(batch.tensors.begin(), batch.tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.is_cpu(); }) ||
         std::any_of(batch.parts.begin(), batch.parts.end(),
                     [](const BatchPart& part) { return is_on_host(part.batch); });
}

}  // namespace

DeviceCopy::DeviceCopy(c10::Device device, c10::ScalarType dtype) : device_(device), dtype_(dtype) {
  if (!device.is_cuda()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  copied_.emplace(device.type());
}

Batch DeviceCopy::operator()(const Batch& batch) {
  if (!stream_ || !is_on_host(batch)) return to_device(batch, device_, dtype_);
  const c10::Stream user = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  Batch moved = batch;
  {
    const c10::StreamGuard guard(*stream_);
    start(moved, user);
    copied_->record(*stream_);
  }
  copied_->block(user);
  // Tensors that are already on the device belong to the user's stream: they are converted there.
  return to_device(moved, device_, dtype_);
}

// Runs under a stream guard: memory and work belong to the copying stream.
void DeviceCopy::start(Batch& batch, const c10::Stream& user) const {
  for (at::Tensor& tensor : batch.tensors) {
    if (!tensor.is_cpu()) continue;
    tensor = optim::convert_input(tensor.to(device_, /*non_blocking=*/true), dtype_);
    // The host releases the batch while the step still reads it: the next copy must not reuse its
    // memory before that.
    tensor.record_stream(user);
  }
  for (BatchPart& part : batch.parts) start(part.batch, user);
}

}  // namespace lockstep::train
