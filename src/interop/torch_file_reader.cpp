#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <cstring>
#include <optional>
#include <unordered_map>

#include "interop/file_bytes.h"
#include "interop/pickle.h"
#include "interop/script_archive.h"
#include "interop/state_dict.h"
#include "interop/stored_tensor.h"
#include "interop/torch_file.h"

namespace lockstep::interop {
namespace {

using caffe2::serialize::PyTorchStreamReader;

// A pickle of the number 0x1950a86a20f9469cfc6c: PyTorch before 1.6.
constexpr std::string_view kLegacyMagic{"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.", 15};

std::string record(PyTorchStreamReader& archive, const std::string& name, size_t limit) {
  const size_t bytes = archive.getRecordSize(name);
  if (bytes > limit) throw PickleError(fmt::format("its record '{}' is too large: {} bytes", name, bytes));
  std::string content(bytes, '\0');
  archive.getRecord(name, content.data(), bytes);
  return content;
}

bool is_big_endian(PyTorchStreamReader& archive, size_t file_bytes) {
  if (!archive.hasRecord("byteorder")) return false;
  const std::string order = record(archive, "byteorder", std::min<size_t>(file_bytes, 16));
  if (order != "little" && order != "big") throw PickleError("its byte order is neither little nor big");
  return order == "big";
}

// Records of a TorchScript archive's source are compressed: they may be larger than the file.
constexpr size_t kMaxSourceBytes = size_t{64} << 20;

NamedTensors read_archive(const std::shared_ptr<FileBytes>& file) {
  PyTorchStreamReader archive(file);
  if (!archive.hasRecord("data.pkl")) {
    throw PickleError("it is a zip archive without 'data.pkl', not written by torch.save");
  }
  const bool is_script = archive.hasRecord("constants.pkl");
  const std::string pickled = record(archive, "data.pkl", std::min(file->size(), kMaxPickleBytes));
  const Pickle pickle = parse_pickle(pickled, is_script ? UnknownNames::kKeep : UnknownNames::kRefuse);
  StoredTensors storages([&](const std::string& key) { return archive.getRecordSize("data/" + key); },
                         [&](const std::string& key, void* memory, size_t bytes) {
                           archive.getRecord("data/" + key, memory, bytes);
                         },
                         file->size(), is_big_endian(archive, file->size()));
  if (!is_script) return storages.make(find_state_dict(pickle.root));
  size_t source_bytes = 0;
  const auto read_source = [&](const std::string& name) -> std::optional<std::string> {
    if (!archive.hasRecord(name)) return std::nullopt;
    std::string source = record(archive, name, kMaxSourceBytes - source_bytes);
    source_bytes += source.size();
    return source;
  };
  return storages.make(find_script_tensors(pickle.root, read_source));
}

// Magic number, protocol, platform, object, keys of the storages: five pickles; then
// each storage as its number of elements and its bytes.
class LegacyFile {
 public:
  explicit LegacyFile(const FileBytes& file) : bytes_(file.read_text(0, file.size())) {}

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

NamedTensors read_any(const std::shared_ptr<FileBytes>& file) {
  const std::string begin = file->read_text(0, kLegacyMagic.size());
  if (begin.starts_with(kZipMagic)) return read_archive(file);
  if (begin == kLegacyMagic) return LegacyFile(*file).read();
  throw PickleError(
      "torch.save did not write it: it is neither a zip archive nor of the format before PyTorch 1.6");
}

}  // namespace

NamedTensors read_torch_file(const std::filesystem::path& path) {
  const auto file = std::make_shared<FileBytes>(path);
  try {
    return read_any(file);
  } catch (const PickleError& error) {
    throw ConfigError("interop", fmt::format("cannot read '{}': {}", path.string(), error.what()));
  } catch (const c10::Error& error) {
    throw ConfigError("interop",
                      fmt::format("cannot read '{}': {}", path.string(), error.what_without_backtrace()));
  }
}

}  // namespace lockstep::interop
