#include "exported/archive.h"

#include <ATen/Parallel.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "base/file.h"
#include "checkpoint/for_each_index.h"
#include "checkpoint/torch_archive.h"

namespace lockstep::exported {
namespace {

using caffe2::serialize::PyTorchStreamReader;

// More than a program of a million nodes takes.
constexpr size_t kMaxJsonBytes = size_t{1} << 31;
// What a thread reads at a time. A file with less is read by one thread.
constexpr int64_t kPartBytes = 4 << 20;
constexpr int kMaxReaders = 8;  // as many as a reader of checkpoints has

class ArchiveReader {
 public:
  ArchiveReader(const std::filesystem::path& path, ReadTensors tensors)
      : file_(std::make_shared<const base::InputFile>(path, base::cannot_read("exported"))),
        reads_tensors_(tensors == ReadTensors::kYes) {}

  Archive read();

 private:
  // Tensors of one record share its memory.
  using Records = std::map<std::string, std::pair<at::ScalarType, at::Tensor>>;
  // A part of the file for the memory of a tensor. All of them together are a row of bytes, in which this
  // one begins at `first`.
  struct PlannedRead {
    char* memory = nullptr;
    uint64_t offset = 0;
    int64_t first = 0;
    int64_t bytes = 0;
  };

  std::string model_name() const;
  std::string text(const std::string& record);
  std::vector<Payload> payloads(const std::string& folder, const std::string& config);
  at::Tensor tensor(const std::string& name, const Json& meta, Records& records);
  at::Tensor record(const std::string& name, at::ScalarType dtype, Records& records);
  void read_planned() const;

  std::shared_ptr<const base::InputFile> file_;
  std::unique_ptr<PyTorchStreamReader> zip_;
  std::unordered_set<std::string> names_;
  bool reads_tensors_;
  std::vector<PlannedRead> planned_;
  int64_t planned_bytes_ = 0;
};

std::string ArchiveReader::model_name() const {
  constexpr std::string_view kFolder = "models/";
  constexpr std::string_view kEnding = ".json";
  std::vector<std::string> found;
  for (const std::string& name : names_) {
    if (!name.starts_with(kFolder) || !name.ends_with(kEnding)) continue;
    found.push_back(name.substr(kFolder.size(), name.size() - kFolder.size() - kEnding.size()));
  }
  if (found.empty()) {
    if (names_.count("serialized_exported_program.json") > 0) {
      throw ProgramError(
          "it has the format of PyTorch before 2.8: export the model again with PyTorch 2.11 to 2.15");
    }
    throw ProgramError(names_.count("data.pkl") > 0
                           ? "it is a file of torch.save or torch.jit.save, not of torch.export.save"
                           : "it has no exported program: torch.export.save did not write it");
  }
  if (std::find(found.begin(), found.end(), "model") != found.end()) return "model";
  if (found.size() > 1) {
    throw ProgramError(fmt::format("it has {} models, and none is named 'model'", found.size()));
  }
  return found.front();
}

std::string ArchiveReader::text(const std::string& record) {
  if (names_.count(record) == 0) throw ProgramError(fmt::format("its record '{}' is missing", record));
  return checkpoint::read_record(*zip_, record, std::min(static_cast<size_t>(file_->bytes()), kMaxJsonBytes));
}

at::Tensor ArchiveReader::record(const std::string& name, at::ScalarType dtype, Records& records) {
  const auto found = records.find(name);
  if (found != records.end()) {
    if (found->second.first != dtype) {
      throw ProgramError(fmt::format("its record '{}' has two dtypes", name));
    }
    return found->second.second;
  }
  if (names_.count(name) == 0) throw ProgramError(fmt::format("its record '{}' is missing", name));
  const checkpoint::RecordPlace place = checkpoint::place_of_record(*zip_, *file_, name);
  const auto item_bytes = static_cast<uint64_t>(c10::elementSize(dtype));
  if (place.bytes % item_bytes != 0) {
    throw ProgramError(fmt::format("its record '{}' has {} bytes, which is no number of elements of {}", name,
                                   place.bytes, c10::toString(dtype)));
  }
  const auto options = at::TensorOptions().dtype(dtype).device(reads_tensors_ ? at::kCPU : at::kMeta);
  at::Tensor flat = at::empty({static_cast<int64_t>(place.bytes / item_bytes)}, options);
  if (reads_tensors_ && place.bytes > 0) {
    const auto bytes = static_cast<int64_t>(place.bytes);
    planned_.push_back({static_cast<char*>(flat.data_ptr()), place.offset, planned_bytes_, bytes});
    planned_bytes_ += bytes;
  }
  records.emplace(name, std::pair(dtype, flat));
  return flat;
}

// Several threads read, because the page faults of new memory take longer than the copy.
void ArchiveReader::read_planned() const {
  const auto parts = static_cast<size_t>((planned_bytes_ + kPartBytes - 1) / kPartBytes);
  checkpoint::for_each_index(parts, std::min(at::get_num_threads(), kMaxReaders), [&](size_t part) {
    const int64_t begin = static_cast<int64_t>(part) * kPartBytes;
    for (const PlannedRead& read : planned_) {
      const int64_t from = std::max(begin, read.first);
      const int64_t to = std::min(begin + kPartBytes, read.first + read.bytes);
      if (from >= to) continue;
      const int64_t skipped = from - read.first;
      const auto bytes = static_cast<size_t>(to - from);
      if (file_->read_some(read.memory + skipped, bytes, read.offset + static_cast<uint64_t>(skipped)) !=
          bytes) {
        throw ProgramError("it is cut off");
      }
    }
  });
}

at::Tensor ArchiveReader::tensor(const std::string& name, const Json& meta, Records& records) {
  checkpoint::TensorReference reference;
  reference.dtype = dtype_numbered(meta.at("dtype"));
  const auto sizes = [&](const char* member) {
    std::vector<int64_t> values;
    for (const Json& size : meta.at(member)) values.push_back(size_of(size));
    return values;
  };
  reference.sizes = sizes("sizes");
  reference.strides = sizes("strides");
  reference.offset = size_of(meta.at("storage_offset"));
  if (reference.sizes.size() != reference.strides.size() || reference.sizes.size() > 64) {
    throw ProgramError("a tensor of it has sizes and strides that do not fit each other");
  }
  if (meta.at("layout") != Json(7)) throw ProgramError("a tensor of it is not strided");
  const auto extent = checkpoint::extent_of(reference);
  if (!extent) throw ProgramError("the sizes of a tensor of it overflow");
  const at::Tensor flat = record(name, reference.dtype, records);
  // A tensor that was expanded has dimensions with strides of 0, and is larger than its memory.
  checkpoint::TensorReference stored = reference;
  for (size_t i = 0; i < stored.sizes.size(); ++i) {
    if (stored.strides[i] == 0) stored.sizes[i] = std::min<int64_t>(stored.sizes[i], 1);
  }
  const bool fits = extent->reach <= flat.nbytes() &&
                    checkpoint::extent_of(stored)->bytes <= static_cast<uint64_t>(file_->bytes());
  if (!fits) {
    throw ProgramError(
        fmt::format("a tensor reaches to byte {} of its record of {}", extent->reach, flat.nbytes()));
  }
  return flat.as_strided(reference.sizes, reference.strides, reference.offset).detach();
}

std::vector<Payload> ArchiveReader::payloads(const std::string& folder, const std::string& config) {
  const Json root = Json::parse(text(folder + config), {.max_depth = 32, .unique_names = true});
  Records records;
  std::vector<Payload> payloads;
  // Names of equal tensors in one record are one tensor: tied weights.
  std::map<std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>, int64_t>, at::Tensor> known;
  const Json& entries = root.at("config");
  for (const std::string& name : entries.names()) {
    const Json& entry = entries.at(name);
    const std::string record = entry.at("path_name").text();
    const Json& meta = entry.at("tensor_meta");
    if (entry.at("use_pickle").get<bool>() || meta.is_null()) {
      throw ProgramError(fmt::format("'{}' is an object of Python or a subclass of a tensor", name));
    }
    at::Tensor made = tensor(folder + record, meta, records);
    made = known.try_emplace({record, made.sizes().vec(), made.strides().vec(), made.storage_offset()}, made)
               .first->second;
    const bool is_parameter = entry.at("is_param").get<bool>();
    if (is_parameter && (made.is_floating_point() || made.is_complex())) {
      made.set_requires_grad(meta.at("requires_grad").get<bool>());
    }
    payloads.push_back({name, made, is_parameter, folder + record});
  }
  return payloads;
}

Archive ArchiveReader::read() {
  if (!checkpoint::is_zip(*file_)) {
    throw ProgramError("it is no zip archive: torch.export.save did not write it");
  }
  zip_ = checkpoint::open_zip(file_);
  for (std::string& name : zip_->getAllRecords()) names_.insert(std::move(name));
  if (names_.count("byteorder") > 0 && text("byteorder") != "little") {
    throw ProgramError("its numbers are not little-endian");
  }
  const std::string model = model_name();
  Archive archive;
  archive.program = parse_program(text(fmt::format("models/{}.json", model)));
  if (names_.count(fmt::format("data/weights/{}.pt", model)) > 0) {
    throw ProgramError("its weights have an older format: export the model again with PyTorch 2.11 to 2.15");
  }
  archive.weights = payloads("data/weights/", model + "_weights_config.json");
  archive.constants = payloads("data/constants/", model + "_constants_config.json");
  read_planned();
  return archive;
}

// Throws what `read` throws as ConfigError, with the name of the file.
template <typename Read>
auto reading(const std::filesystem::path& file, const Read& read) {
  std::string reason;
  try {
    return read();
  } catch (const ProgramError& error) {
    reason = error.what();
  } catch (const checkpoint::PickleError& error) {
    reason = error.what();
  } catch (const JsonError& error) {
    reason = fmt::format("its description of tensors is broken: {}", error.what());
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  }
  throw ConfigError("exported", fmt::format("cannot load '{}': {}", file.string(), reason));
}

}  // namespace

Archive read_archive(const std::filesystem::path& file, ReadTensors tensors) {
  return reading(file, [&] { return ArchiveReader(file, tensors).read(); });
}

void copy_archive(const std::filesystem::path& from, const std::filesystem::path& to,
                  const ReplaceRecord& replace) {
  const auto file = std::make_shared<const base::InputFile>(from, base::cannot_read("exported"));
  const auto zip = reading(from, [&] { return checkpoint::open_zip(file); });
  checkpoint::publish_archive(to, [&](const checkpoint::ArchiveOutput& output) {
    caffe2::serialize::PyTorchStreamWriter writer(output);
    for (const std::string& record : zip->getAllRecords()) {
      // The writer makes one of the new content.
      if (record == caffe2::serialize::kSerializationIdRecordName) continue;
      if (const auto content = replace(record)) {
        writer.writeRecord(record, content->data(), content->size());
        continue;
      }
      const auto [memory, bytes] = reading(from, [&] { return zip->getRecord(record); });
      writer.writeRecord(record, memory.get(), bytes);
    }
    writer.writeEndOfFile();
  });
}

}  // namespace lockstep::exported
