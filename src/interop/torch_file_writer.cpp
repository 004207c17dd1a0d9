#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <map>
#include <tuple>

#include "interop/archive_output.h"
#include "interop/pickle.h"
#include "interop/pickle_globals.h"
#include "interop/torch_file.h"

namespace lockstep::interop {
namespace {

// Writes the instructions of pickle protocol 2, the one that torch.load reads with
// weights_only=True.
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

struct StoredTensor {
  std::string name;
  at::Tensor tensor;  // contiguous, in host memory
  std::string key;
};

void describe(Pickler& pickler, const StoredTensor& stored) {
  const at::Tensor& tensor = stored.tensor;
  const auto typed = storage_class(tensor.scalar_type());
  pickler.text(stored.name);
  pickler.global(typed ? "torch._utils._rebuild_tensor_v2" : "torch._utils._rebuild_tensor_v3");
  pickler.raw("((");
  pickler.text("storage");
  pickler.global(typed.value_or("torch.storage.UntypedStorage"));
  pickler.text(stored.key);
  pickler.text("cpu");
  pickler.integer(typed ? tensor.numel() : static_cast<int64_t>(tensor.nbytes()));
  pickler.raw("tQ");
  pickler.integer(0);
  pickler.tuple(tensor.sizes());
  pickler.tuple(tensor.strides());
  pickler.raw("\x89");
  pickler.empty_ordered_dict();
  if (!typed) pickler.global(dtype_name(tensor.scalar_type()));
  pickler.raw("tR");
}

std::string pickle_of(const std::vector<StoredTensor>& tensors) {
  Pickler pickler;
  pickler.empty_ordered_dict();
  pickler.raw("(");
  for (const StoredTensor& tensor : tensors) describe(pickler, tensor);
  pickler.raw("u");
  return pickler.finish();
}

// Two names for the very same elements share a key, so that Python ties them again.
std::vector<StoredTensor> prepare(const NamedTensors& tensors) {
  using Place = std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, at::ScalarType>;
  std::map<Place, std::pair<std::string, at::Tensor>> seen;
  std::vector<StoredTensor> result;
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

void write_archive(const ArchiveOutput& output, const std::vector<StoredTensor>& tensors) {
  caffe2::serialize::PyTorchStreamWriter archive(output);
  const std::string pickled = pickle_of(tensors);
  archive.writeRecord("data.pkl", pickled.data(), pickled.size());
  archive.writeRecord("byteorder", "little", 6);
  size_t written = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.key != std::to_string(written)) continue;  // tied: written before
    archive.writeRecord("data/" + tensor.key, tensor.tensor.const_data_ptr(), tensor.tensor.nbytes());
    ++written;
  }
  archive.writeEndOfFile();
}

}  // namespace

void write_torch_file(const std::filesystem::path& path, const NamedTensors& tensors) {
  const std::vector<StoredTensor> stored = prepare(tensors);
  publish_archive(path, [&](const ArchiveOutput& output) { write_archive(output, stored); });
}

}  // namespace lockstep::interop
