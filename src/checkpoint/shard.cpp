#include "checkpoint/shard.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/safetensors.h"
#include "checkpoint/checksum.h"
#include "checkpoint/dtype.h"
#include "checkpoint/error.h"
#include "checkpoint/for_each_index.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {
namespace {

// Each chunk is hashed and then written while it is in the cache.
constexpr int64_t kWriteBytes = 1 << 20;
// For smaller files a second thread costs more than it saves.
constexpr int64_t kParallelBytes = 32 << 20;

int64_t data_bytes(const at::Tensor& data) {
  return data.numel() * static_cast<int64_t>(data.element_size());
}

[[noreturn]] void refuse(const TensorPiece& piece, std::string_view reason) {
  throw ConfigError("checkpoint", fmt::format("cannot save the tensor '{}': {}", piece.name, reason));
}

SafetensorsTensor described(const TensorPiece& piece) {
  SafetensorsTensor tensor{.name = piece.name, .dtype = piece.data.scalar_type(), .shape = piece.shape};
  if (!piece.is_whole()) {
    const int64_t end = piece.first_element + piece.data.numel();
    tensor.name = fmt::format("{}[{}:{}]", piece.name, piece.first_element, end);
    tensor.shape = {piece.data.numel()};
  }
  if (tensor.dtype == shard_dtype(tensor.dtype)) return tensor;
  tensor.dtype = shard_dtype(tensor.dtype);
  tensor.shape.push_back(2);
  return tensor;
}

void check_piece(const TensorPiece& piece) {
  if (!piece.data.defined()) refuse(piece, "it is undefined");
  if (piece.data.layout() != at::kStrided || piece.data.is_quantized())
    refuse(piece, "it is sparse or quantized");
  if (piece.data.is_meta() && !piece.read) refuse(piece, "it is on the meta device and has no values");
  if (!manifest_dtype_name(piece.data.scalar_type())) {
    refuse(piece, fmt::format("the format knows no dtype {}", c10::toString(piece.data.scalar_type())));
  }
  if (piece.name == base::kSafetensorsMetadata) refuse(piece, "safetensors keeps this name for itself");
  if (described(piece).shape.size() > base::kMaxTensorDimensions) refuse(piece, "it has too many dimensions");
  const auto whole = base::shape_bytes(piece.shape, static_cast<int64_t>(piece.data.element_size()));
  if (!whole || piece.first_element < 0 ||
      piece.first_element > *whole / static_cast<int64_t>(piece.data.element_size()) - piece.data.numel()) {
    refuse(piece, fmt::format("elements {} + {} are not in its shape [{}]", piece.first_element,
                              piece.data.numel(), fmt::join(piece.shape, ", ")));
  }
}

// Checks the pieces first.
SafetensorsLayout layout_of(const std::vector<TensorPiece>& pieces) {
  std::vector<SafetensorsTensor> tensors;
  std::set<std::string> names;
  std::map<std::string, const TensorPiece*> first_parts;
  for (const TensorPiece& piece : pieces) {
    check_piece(piece);
    tensors.push_back(described(piece));
    if (!names.insert(tensors.back().name).second) refuse(piece, "another tensor has this name");
    const TensorPiece& part = *first_parts.try_emplace(piece.name, &piece).first->second;
    if (part.data.scalar_type() != piece.data.scalar_type() || part.shape != piece.shape) {
      refuse(piece, "its parts differ in dtype or shape");
    }
  }
  return layout_safetensors(tensors);
}

at::Tensor on_host(const at::Tensor& data) {
  return data.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

// The kernel copies into a file from one thread at a time: one more thread, to hash meanwhile, is
// enough.
int writer_threads(int64_t bytes) { return bytes < kParallelBytes ? 1 : 2; }

class ShardFile {
 public:
  ShardFile(FileSystem& files, std::filesystem::path path, bool sync)
      : files_(files), path_(std::move(path)), sync_(sync), fd_(files.create(path_)) {}

  void reserve(int64_t bytes) { files_.allocate(fd_.get(), bytes, path_); }

  // Returns the checksum of these bytes. Several threads may call it.
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

std::string shard_name(int shard, int shard_count) {
  return fmt::format("shard-{:05}-of-{:05}.safetensors", shard, shard_count);
}

int64_t shard_bytes(const std::vector<TensorPiece>& pieces) { return layout_of(pieces).file_bytes; }

ShardIndex write_shard(FileSystem& files, const std::filesystem::path& folder, int shard, int shard_count,
                       const std::vector<TensorPiece>& pieces, const ShardOptions& options) {
  const SafetensorsLayout layout = layout_of(pieces);
  const std::string name = shard_name(shard, shard_count);
  ShardFile file(files, folder / name, options.sync);
  file.reserve(layout.file_bytes);
  wait_for_devices(pieces);  // the threads below copy on other streams
  const auto header_bytes = static_cast<int64_t>(layout.header.size());
  ShardIndex index;
  index.file = {.name = name,
                .bytes = layout.file_bytes,
                .header_checksum = file.write(layout.header.data(), header_bytes, 0)};
  std::vector<Piece> written(pieces.size());  // in the order of the layout
  for_each_index(written.size(), writer_threads(layout.file_bytes), [&](size_t i) {
    written[i] = write_piece(file, pieces[layout.order[i]], header_bytes + layout.tensors[i].begin);
  });
  file.finish();
  for (size_t i = 0; i < written.size(); ++i) {
    const TensorPiece& piece = pieces[layout.order[i]];
    TensorEntry& tensor = index.tensors[piece.name];
    tensor.dtype = piece.data.scalar_type();
    tensor.shape = piece.shape;
    tensor.pieces.push_back(std::move(written[i]));
  }
  return index;
}

}  // namespace lockstep::checkpoint
