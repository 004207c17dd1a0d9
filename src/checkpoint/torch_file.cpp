#include "checkpoint/torch_file.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "base/file.h"
#include "checkpoint/dtype.h"
#include "checkpoint/state_dict.h"
#include "checkpoint/torch_archive.h"

namespace lockstep::checkpoint {
namespace {

// --- reading ---

// A pickle of the number 0x1950a86a20f9469cfc6c: PyTorch before 1.6.
constexpr std::string_view kLegacyMagic{"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.", 15};
// The source in a TorchScript archive is compressed: it may be larger than the file.
constexpr size_t kMaxSourceBytes = size_t{64} << 20;

// A complex number is two numbers of half the size.
void swap_bytes(at::Tensor& bytes, at::ScalarType type) {
  const size_t width = c10::elementSize(type) / (c10::isComplexType(type) ? 2 : 1);
  auto* data = static_cast<char*>(bytes.data_ptr());
  for (size_t i = 0; width > 1 && i + width <= bytes.nbytes(); i += width)
    std::reverse(data + i, data + i + width);
}

NamedTensors read_archive(const std::shared_ptr<const base::InputFile>& file) {
  const auto archive = open_zip(file);
  const auto file_bytes = static_cast<size_t>(file->bytes());
  const std::string pickled = read_data_pickle(*archive, file_bytes);
  const bool is_script = archive->hasRecord("constants.pkl");
  const Pickle pickle = parse_pickle(pickled, is_script ? UnknownNames::kKeep : UnknownNames::kRefuse);
  StoredTensors storages([&](const std::string& key) { return archive->getRecordSize("data/" + key); },
                         [&](const std::string& key, void* memory, size_t bytes) {
                           archive->getRecord("data/" + key, memory, bytes);
                         },
                         file_bytes, is_big_endian(*archive, file_bytes));
  if (!is_script) return storages.make(find_state_dict(pickle.root));
  size_t source_bytes = 0;
  const auto read_source = [&](const std::string& name) -> std::optional<std::string> {
    if (!archive->hasRecord(name)) return std::nullopt;
    std::string source = read_record(*archive, name, kMaxSourceBytes - source_bytes);
    source_bytes += source.size();
    return source;
  };
  return storages.make(find_script_tensors(pickle.root, read_source));
}

// A file of PyTorch before 1.6: five pickles (magic number, protocol, platform, object, keys of the
// storages), then each storage as its number of elements and its bytes.
class LegacyFile {
 public:
  explicit LegacyFile(const base::InputFile& file)
      : bytes_(file.read_some(static_cast<size_t>(file.bytes()), 0)) {}

  NamedTensors read() {
    position_ = kLegacyMagic.size();
    next();
    const Pickle platform = next();
    const Pickle object = next();
    const Pickle keys = next();
    const TensorReferences references = find_state_dict(object.root);
    find_storages(keys, element_bytes(object));
    StoredTensors storages([&](const std::string& key) { return place(key).size(); },
                           [&](const std::string& key, void* memory, size_t bytes) {
                             std::memcpy(memory, place(key).data(), bytes);
                           },
                           bytes_.size(), !is_little_endian(platform));
    return storages.make(references);
  }

 private:
  Pickle next() {
    Pickle pickle = parse_pickle(std::string_view(bytes_).substr(position_));
    position_ += pickle.bytes;
    return pickle;
  }

  static bool is_little_endian(const Pickle& platform) {
    const Dict* dict = platform.root->as<Dict>();
    if (dict == nullptr) throw PickleError("it does not say on what platform it was written");
    for (const auto& [key, value] : dict->items) {
      const auto* name = key->as<std::string>();
      if (name != nullptr && *name == "little_endian" && value->as<bool>() != nullptr)
        return *value->as<bool>();
    }
    return true;
  }

  static std::unordered_map<std::string, size_t> element_bytes(const Pickle& object) {
    std::unordered_map<std::string, size_t> result;
    for (const PickleValue& value : object.arena) {
      const auto* storage = value.as<StorageReference>();
      if (storage != nullptr) result[storage->key] = storage->type ? c10::elementSize(*storage->type) : 1;
    }
    return result;
  }

  void find_storages(const Pickle& keys, const std::unordered_map<std::string, size_t>& element_bytes) {
    const List* list = keys.root->as<List>();
    if (list == nullptr) throw PickleError("it has no list of storages");
    for (ValueRef item : list->items) {
      const auto* key = item->as<std::string>();
      const auto known = key == nullptr ? element_bytes.end() : element_bytes.find(*key);
      if (known == element_bytes.end()) throw PickleError("it lists a storage that no tensor uses");
      int64_t elements = 0;
      if (bytes_.size() - position_ < sizeof(elements)) throw PickleError("it is cut off");
      std::memcpy(&elements, bytes_.data() + position_, sizeof(elements));
      position_ += sizeof(elements);
      if (elements < 0 || static_cast<size_t>(elements) > (bytes_.size() - position_) / known->second) {
        throw PickleError("it is cut off");
      }
      const size_t length = static_cast<size_t>(elements) * known->second;
      places_[*key] = std::string_view(bytes_).substr(position_, length);
      position_ += length;
    }
  }

  std::string_view place(const std::string& key) const {
    const auto found = places_.find(key);
    if (found == places_.end()) throw PickleError(fmt::format("storage '{}' is missing", key));
    return found->second;
  }

  std::string bytes_;
  size_t position_ = 0;
  std::unordered_map<std::string, std::string_view> places_;
};

NamedTensors read_any(const std::shared_ptr<const base::InputFile>& file) {
  if (is_zip(*file)) return read_archive(file);
  if (file->read_some(kLegacyMagic.size(), 0) == kLegacyMagic) return LegacyFile(*file).read();
  throw PickleError(
      "torch.save did not write it: it is neither a zip archive nor of the format before PyTorch 1.6");
}

// --- writing ---

// Writes instructions of pickle protocol 2, which torch.load reads with weights_only=True.
class Pickler {
 public:
  Pickler() { bytes_ = "\x80\x02"; }

  void raw(std::string_view instructions) { bytes_ += instructions; }

  // "torch._utils._rebuild_tensor_v2": the last dot separates the module.
  void global(std::string_view name) {
    const size_t dot = name.rfind('.');
    bytes_ += fmt::format("c{}\n{}\n", name.substr(0, dot), name.substr(dot + 1));
  }

  void text(std::string_view value) {
    bytes_ += 'X';
    number<uint32_t>(static_cast<uint32_t>(value.size()));
    bytes_ += value;
  }

  void integer(int64_t value) {
    if (value >= 0 && value < 256) {
      bytes_ += 'K';
      number<uint8_t>(static_cast<uint8_t>(value));
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      bytes_ += 'J';
      number<int32_t>(static_cast<int32_t>(value));
    } else {
      bytes_ += "\x8a\x08";
      number<int64_t>(value);
    }
  }

  void tuple(at::IntArrayRef values) {
    bytes_ += '(';
    for (const int64_t value : values) integer(value);
    bytes_ += 't';
  }

  void empty_ordered_dict() {
    global("collections.OrderedDict");
    bytes_ += ")R";
  }

  const std::string& finish() {
    bytes_ += '.';
    return bytes_;
  }

 private:
  template <typename T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  std::string bytes_;
};

struct WrittenTensor {
  std::string name;
  at::Tensor tensor;  // contiguous, in host memory
  std::string key;
};

void add_tensor(Pickler& pickler, const WrittenTensor& written) {
  const at::Tensor& tensor = written.tensor;
  const auto typed = python_storage_class(tensor.scalar_type());
  pickler.text(written.name);
  pickler.global(typed ? "torch._utils._rebuild_tensor_v2" : "torch._utils._rebuild_tensor_v3");
  pickler.raw("((");
  pickler.text("storage");
  pickler.global(typed.value_or("torch.storage.UntypedStorage"));
  pickler.text(written.key);
  pickler.text("cpu");
  pickler.integer(typed ? tensor.numel() : static_cast<int64_t>(tensor.nbytes()));
  pickler.raw("tQ");
  pickler.integer(0);
  pickler.tuple(tensor.sizes());
  pickler.tuple(tensor.strides());
  pickler.raw("\x89");
  pickler.empty_ordered_dict();
  if (!typed) pickler.global(python_dtype_name(tensor.scalar_type()));
  pickler.raw("tR");
}

std::string pickle_of(const std::vector<WrittenTensor>& tensors) {
  Pickler pickler;
  pickler.empty_ordered_dict();
  pickler.raw("(");
  for (const WrittenTensor& tensor : tensors) add_tensor(pickler, tensor);
  pickler.raw("u");
  return pickler.finish();
}

// Two names for the same elements share a key, so that Python ties them again.
std::vector<WrittenTensor> prepare(const NamedTensors& tensors) {
  using Place = std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, at::ScalarType>;
  std::map<Place, std::pair<std::string, at::Tensor>> seen;
  std::vector<WrittenTensor> result;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
      throw ConfigError("interop",
                        fmt::format("tensor '{}' is sparse, quantised or without memory: {}; make it a "
                                    "plain one first",
                                    name, tensor.toString()));
    }
    const at::Tensor source = tensor.detach();
    const Place place{tensor.numel() == 0 ? nullptr : source.const_data_ptr(), source.sizes().vec(),
                      source.strides().vec(), source.scalar_type()};
    const auto [found, is_new] = seen.try_emplace(place);
    if (is_new) {
      found->second = {std::to_string(seen.size() - 1),
                       source.cpu().resolve_conj().resolve_neg().contiguous()};
    }
    result.push_back({name, found->second.second, found->second.first});
  }
  return result;
}

void write_archive(const ArchiveOutput& output, const std::vector<WrittenTensor>& tensors) {
  caffe2::serialize::PyTorchStreamWriter archive(output);
  const std::string pickled = pickle_of(tensors);
  archive.writeRecord("data.pkl", pickled.data(), pickled.size());
  archive.writeRecord("byteorder", "little", 6);
  size_t written = 0;
  for (const WrittenTensor& tensor : tensors) {
    if (tensor.key != std::to_string(written)) continue;  // tied: already written
    archive.writeRecord("data/" + tensor.key, tensor.tensor.const_data_ptr(), tensor.tensor.nbytes());
    ++written;
  }
  archive.writeEndOfFile();
}

}  // namespace

const at::Tensor& StoredTensors::storage(const TensorReference& reference) {
  const std::string& key = reference.storage.key;
  if (const auto found = storages_.find(key); found != storages_.end()) return found->second;
  const size_t bytes = size_(key);
  if (bytes > limit_ - used_) {
    throw PickleError(fmt::format("its storages take more than the {} bytes of the file", limit_));
  }
  used_ += bytes;
  at::Tensor memory = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  if (bytes > 0) fetch_(key, memory.data_ptr(), bytes);  // the memory of an empty tensor is null
  if (swap_bytes_) swap_bytes(memory, reference.dtype);
  return storages_.emplace(key, std::move(memory)).first->second;
}

at::Tensor StoredTensors::tensor(const TensorReference& reference) {
  const auto extent = extent_of(reference);
  if (!extent) throw PickleError("its sizes overflow");
  const auto [reach, bytes] = *extent;
  const at::Tensor& memory = storage(reference);
  if (reach > memory.nbytes()) {
    throw PickleError(fmt::format("it reaches to byte {} of a storage of {}", reach, memory.nbytes()));
  }
  // A tensor with strides of 0 can be much larger than its storage; a copy of it needs the memory.
  if (bytes > std::max<uint64_t>(limit_, uint64_t{1} << 20)) {
    throw PickleError(fmt::format("it would take {} bytes, more than the file", bytes));
  }
  at::Tensor result =
      at::empty({0}, at::TensorOptions().dtype(reference.dtype))
          .set_(memory.storage(), bytes == 0 ? 0 : reference.offset, reference.sizes, reference.strides);
  if (reference.conjugate && result.is_complex()) result = result.conj().resolve_conj();
  if (reference.negative) result = result.neg();
  return result;
}

NamedTensors StoredTensors::make(const TensorReferences& references) {
  NamedTensors result;
  result.reserve(references.size());
  // An object under two names is one tensor.
  std::unordered_map<const TensorReference*, at::Tensor> made;
  for (const auto& [name, reference] : references) {
    at::Tensor& tensor = made[reference];
    try {
      if (!tensor.defined()) tensor = this->tensor(*reference);
    } catch (const PickleError& error) {
      throw PickleError(fmt::format("tensor '{}': {}", name.substr(0, 200), error.what()));
    }
    result.emplace_back(name, tensor);
  }
  return result;
}

NamedTensors read_torch_file(const std::filesystem::path& path) {
  const base::FileFault fail = base::cannot_read("interop");
  const auto file = std::make_shared<const base::InputFile>(path, fail);
  try {
    return read_any(file);
  } catch (const PickleError& error) {
    fail(path, error.what());
  } catch (const c10::Error& error) {
    fail(path, error.what_without_backtrace());
  }
  return {};  // not reached: a fault throws
}

void write_torch_file(const std::filesystem::path& path, const NamedTensors& tensors) {
  const std::vector<WrittenTensor> written = prepare(tensors);
  publish_archive(path, [&](const ArchiveOutput& output) { write_archive(output, written); });
}

}  // namespace lockstep::checkpoint
