#include "checkpoint/shard.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/checksum.h"
#include "checkpoint/dtype.h"
#include "checkpoint/error.h"
#include "checkpoint/json_text.h"
#include "checkpoint/parallel.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {
namespace {

// Hashed and then written from the cache.
constexpr int64_t kWriteBytes = 1 << 20;
// Below this a second thread costs more than it gives.
constexpr int64_t kParallelBytes = 32 << 20;

int64_t data_bytes(const at::Tensor& data) {
  return data.numel() * static_cast<int64_t>(data.element_size());
}

[[noreturn]] void refuse(const TensorPiece& piece, std::string_view reason) {
  throw ConfigError("checkpoint", fmt::format("cannot save the tensor '{}': {}", piece.name, reason));
}

void check_piece(const TensorPiece& piece) {
  if (!piece.data.defined()) refuse(piece, "it is undefined");
  if (piece.data.layout() != at::kStrided || piece.data.is_quantized())
    refuse(piece, "it is sparse or quantized");
  if (piece.data.is_meta() && !piece.read) refuse(piece, "it is on the meta device and has no values");
  if (!dtype_name(piece.data.scalar_type())) {
    refuse(piece, fmt::format("the format knows no dtype {}", c10::toString(piece.data.scalar_type())));
  }
  if (piece.name == kMetadataKey) refuse(piece, "safetensors keeps this name for itself");
  if (piece.shape.size() > kMaxDimensions) refuse(piece, "it has too many dimensions");
  const auto whole = shape_bytes(piece.shape, static_cast<int64_t>(piece.data.element_size()));
  if (!whole || piece.first_element < 0 ||
      piece.first_element > *whole / static_cast<int64_t>(piece.data.element_size()) - piece.data.numel()) {
    refuse(piece, fmt::format("elements {} + {} are not in its shape [{}]", piece.first_element,
                              piece.data.numel(), fmt::join(piece.shape, ", ")));
  }
}

StoredTensor stored(const TensorPiece& piece) {
  StoredTensor result;
  result.name = piece.name;
  result.dtype = piece.data.scalar_type();
  if (piece.is_whole()) {
    result.shape = piece.shape;
  } else {
    const int64_t end = piece.first_element + piece.data.numel();
    result.name = fmt::format("{}[{}:{}]", piece.name, piece.first_element, end);
    result.shape = {piece.data.numel()};
  }
  return result;
}

// Where each piece goes. Large elements first: every tensor is then aligned to its dtype.
struct Plan {
  std::vector<const TensorPiece*> order;
  SafetensorsHeader header;
  std::string header_bytes;
  int64_t file_bytes = 0;
};

Plan make_plan(const std::vector<TensorPiece>& pieces) {
  Plan plan;
  for (const TensorPiece& piece : pieces) {
    check_piece(piece);
    plan.order.push_back(&piece);
  }
  std::stable_sort(plan.order.begin(), plan.order.end(), [](const TensorPiece* a, const TensorPiece* b) {
    return a->data.element_size() > b->data.element_size();
  });
  plan.header.metadata = {
      {"format", "pt"}};  // what Python's safetensors.torch writes and transformers asks for
  std::set<std::string> names;
  std::map<std::string, const TensorPiece*> first_parts;
  int64_t next = 0;
  for (const TensorPiece* piece : plan.order) {
    StoredTensor tensor = stored(*piece);
    if (!names.insert(tensor.name).second) refuse(*piece, "another tensor has this name");
    const TensorPiece& part = *first_parts.try_emplace(piece->name, piece).first->second;
    if (part.data.scalar_type() != piece->data.scalar_type() || part.shape != piece->shape) {
      refuse(*piece, "its parts differ in dtype or shape");
    }
    tensor.begin = next;
    next += data_bytes(piece->data);
    tensor.end = next;
    plan.header.tensors.push_back(std::move(tensor));
  }
  plan.header_bytes = encode_header(plan.header);
  plan.file_bytes = static_cast<int64_t>(plan.header_bytes.size()) + next;
  return plan;
}

at::Tensor on_host(const at::Tensor& data) {
  return data.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

// Threads that hash and write: the kernel copies into one file by one thread at a time, so
// a second one is enough to hash meanwhile.
int writer_threads(int64_t bytes) { return bytes < kParallelBytes ? 1 : 2; }

class ShardFile {
 public:
  ShardFile(FileSystem& files, std::filesystem::path path, bool sync)
      : files_(files), path_(std::move(path)), sync_(sync), fd_(files.create(path_)) {}

  void reserve(int64_t bytes) { files_.allocate(fd_.get(), bytes, path_); }

  // The checksum of these bytes. May be called by several threads.
  std::string write(const void* data, int64_t bytes, int64_t offset) {
    Checksum checksum;
    const char* from = static_cast<const char*>(data);
    for (int64_t done = 0; done < bytes; done += kWriteBytes) {
      const auto chunk = static_cast<size_t>(std::min(bytes - done, kWriteBytes));
      checksum.update(from + done, chunk);
      write_all(files_, fd_.get(), from + done, chunk, offset + done, path_);
      if (sync_) files_.start_writing_back(fd_.get(), offset + done, static_cast<int64_t>(chunk));
    }
    return checksum.hex();
  }

  void finish() {
    if (sync_) files_.sync(fd_.get(), path_);
  }

 private:
  FileSystem& files_;
  const std::filesystem::path path_;
  const bool sync_;
  const base::UniqueFd fd_;
};

Piece write_piece(ShardFile& file, const TensorPiece& piece, int64_t offset) {
  const at::Tensor host = on_host(piece.content());
  return {.file = 0,
          .offset = offset,
          .first = piece.first_element,
          .count = host.numel(),
          .checksum = file.write(host.const_data_ptr(), data_bytes(host), offset)};
}

}  // namespace

Json ShardIndex::to_json() const {
  Json tensors_json = Json::object();
  for (const auto& [name, tensor] : tensors) tensors_json[name] = checkpoint::to_json(tensor);
  return {{"file", checkpoint::to_json(file)}, {"tensors", std::move(tensors_json)}};
}

ShardIndex ShardIndex::from_json(const Json& json) {
  const std::filesystem::path path = "shard index";
  const JsonObject object(json, path, "");
  ShardIndex index;
  index.file = file_from_json(object.object("file"), path, "file");
  for (const auto& [name, value] : object.object("tensors").items()) {
    index.tensors.emplace(name, tensor_from_json(value, path, "tensors." + name));
  }
  return index;
}

std::string shard_name(int shard, int shard_count) {
  return fmt::format("shard-{:05}-of-{:05}.safetensors", shard, shard_count);
}

int64_t shard_bytes(const std::vector<TensorPiece>& pieces) { return make_plan(pieces).file_bytes; }

ShardIndex write_shard(FileSystem& files, const std::filesystem::path& folder, int shard, int shard_count,
                       const std::vector<TensorPiece>& pieces, const ShardOptions& options) {
  const Plan plan = make_plan(pieces);
  const std::string name = shard_name(shard, shard_count);
  ShardFile file(files, folder / name, options.sync);
  file.reserve(plan.file_bytes);
  wait_for_devices(pieces);  // the threads below copy on streams of their own
  const auto header_bytes = static_cast<int64_t>(plan.header_bytes.size());
  ShardIndex index;
  index.file = {.name = name,
                .bytes = plan.file_bytes,
                .header_checksum = file.write(plan.header_bytes.data(), header_bytes, 0)};
  std::vector<Piece> written(plan.order.size());
  for_each_index(written.size(), writer_threads(plan.file_bytes), [&](size_t i) {
    written[i] = write_piece(file, *plan.order[i], header_bytes + plan.header.tensors[i].begin);
  });
  file.finish();
  for (size_t i = 0; i < written.size(); ++i) {
    const TensorPiece& piece = *plan.order[i];
    TensorEntry& tensor = index.tensors[piece.name];
    tensor.dtype = piece.data.scalar_type();
    tensor.shape = piece.shape;
    tensor.pieces.push_back(std::move(written[i]));
  }
  return index;
}

}  // namespace lockstep::checkpoint
