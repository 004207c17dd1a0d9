#include "checkpoint/reader.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "checkpoint/checksum.h"
#include "checkpoint/dtype.h"
#include "checkpoint/error.h"
#include "checkpoint/for_each_index.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {
namespace {

// Chunks are hashed while they are in the cache.
constexpr int64_t kReadBytes = 1 << 20;

base::InputFile open_input(std::filesystem::path path) { return {std::move(path), fail_unreadable}; }

// New memory has no pages yet. One call for all of them costs a quarter less than a page fault for
// each; a kernel that does not know this call leaves the page faults.
void touch_pages(char* memory, int64_t bytes) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
}

// Reads bytes and computes their checksum in one pass.
std::string read_and_sum(const base::InputFile& file, char* to, int64_t bytes, int64_t offset) {
  Checksum checksum;
  for (int64_t done = 0; done < bytes; done += kReadBytes) {
    const int64_t chunk = std::min(bytes - done, kReadBytes);
    touch_pages(to + done, chunk);
    file.read(to + done, chunk, offset + done);
    checksum.update(to + done, static_cast<size_t>(chunk));
  }
  return checksum.hex();
}

std::string checksum_of_bytes(const base::InputFile& file, int64_t bytes, int64_t offset) {
  Checksum checksum;
  std::vector<char> buffer(static_cast<size_t>(std::min(bytes, kReadBytes)));
  for (int64_t done = 0; done < bytes; done += kReadBytes) {
    const int64_t chunk = std::min(bytes - done, kReadBytes);
    file.read(buffer.data(), chunk, offset + done);
    checksum.update(buffer.data(), static_cast<size_t>(chunk));
  }
  return checksum.hex();
}

bool is_direct(const at::Tensor& out) {
  return out.is_cpu() && out.is_contiguous() && !out.is_conj() && !out.is_neg();
}

std::string content_of(const base::InputFile& file) {
  if (file.bytes() > ManifestLimits().max_bytes) {
    fail_broken(file.path(), fmt::format("{} bytes", file.bytes()));
  }
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  file.read(text.data(), file.bytes(), 0);
  return text;
}

// Compares the size of a file with its manifest.
void check_bytes(const base::InputFile& file, int64_t expected) {
  if (file.bytes() == expected) return;
  throw CheckpointError(fmt::format("'{}' is cut or changed: {} bytes where its manifest says {}",
                                    file.path().string(), file.bytes(), expected));
}

void check_target(const Target& target, const TensorEntry& entry) {
  const int64_t count = target.out.numel();
  if (target.out.scalar_type() != entry.dtype) {
    throw ConfigError("checkpoint",
                      fmt::format("'{}' was saved as {} and cannot be read into {}", target.name,
                                  c10::toString(entry.dtype), c10::toString(target.out.scalar_type())));
  }
  if (target.first_element < 0 || target.first_element > entry.numel() - count) {
    throw ConfigError("checkpoint",
                      fmt::format("'{}' has no elements {} + {}: its shape is [{}]", target.name,
                                  target.first_element, count, fmt::join(entry.shape, ", ")));
  }
}

}  // namespace

// Bytes of one file, and where they go.
struct Reader::PieceRead {
  int file = 0;
  int64_t offset = 0;
  char* to = nullptr;  // nullptr: only compare the checksum
  int64_t bytes = 0;
  const std::string* checksum = nullptr;  // nullptr: a part of a piece, which has no checksum
  const std::string* name = nullptr;
};

Reader::Reader(std::filesystem::path folder) : folder_(std::move(folder)) {
  const std::filesystem::path path = folder_ / kManifestName;
  const std::string text = content_of(open_input(path));
  bytes_read_ += static_cast<int64_t>(text.size());
  manifest_ = Manifest::parse(text, path);
  for (size_t i = 0; i < manifest_.files.size(); ++i) open_file(i);
  for (const IndexEntry& index : manifest_.indices)
    check_bytes(open_input(folder_ / index.name), index.bytes);
  has_index_.resize(manifest_.indices.size());
}

void Reader::load_index(size_t index) const {
  const base::MutexLock lock(index_mutex_);
  if (has_index_[index]) return;
  const std::filesystem::path path = folder_ / manifest_.indices[index].name;
  const std::string text = content_of(open_input(path));
  bytes_read_ += static_cast<int64_t>(text.size());
  manifest_.read_index(index, text, path);
  has_index_[index] = true;
}

const std::vector<Piece>& Reader::pieces_of(const TensorEntry& saved) const {
  if (saved.index >= 0) load_index(static_cast<size_t>(saved.index));
  return saved.pieces;
}

std::vector<std::string> Reader::names() const {
  std::vector<std::string> result;
  for (const auto& [name, entry] : manifest_.tensors) result.push_back(name);
  return result;
}

bool Reader::has(const std::string& name) const { return manifest_.tensors.count(name) != 0; }

const TensorEntry& Reader::entry(const std::string& name) const {
  const auto found = manifest_.tensors.find(name);
  if (found != manifest_.tensors.end()) return found->second;
  throw ConfigError("checkpoint", fmt::format("'{}' holds no tensor '{}'", folder_.string(), name));
}

at::Tensor Reader::read(const std::string& name) const {
  const TensorEntry& saved = entry(name);
  at::Tensor out = at::empty(saved.shape, saved.dtype);
  read({{.name = name, .out = out}}, /*threads=*/1);
  return out;
}

void Reader::read_range(const std::string& name, int64_t first, int64_t count, const at::Tensor& out) const {
  if (out.numel() != count) {
    throw ConfigError("checkpoint", fmt::format("{} elements of '{}' do not fit into a tensor of {}", count,
                                                name, out.numel()));
  }
  read({{.name = name, .out = out, .first_element = first}}, /*threads=*/1);
}

void Reader::read(const std::vector<Target>& targets, int threads) const {
  std::vector<PieceRead> reads;
  std::vector<at::Tensor> direct;  // the memory of a target, or a buffer of its shape
  for (const Target& target : targets) {
    const TensorEntry& saved = entry(target.name);
    check_target(target, saved);
    direct.push_back(is_direct(target.out) ? target.out : at::empty(target.out.sizes(), saved.dtype));
    add_reads(target, saved, static_cast<char*>(direct.back().mutable_data_ptr()), reads);
  }
  sort_by_place(reads);
  for_each_index(reads.size(), threads, [&](size_t i) { read_piece(reads[i]); });
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!direct[i].is_same(targets[i].out)) targets[i].out.copy_(direct[i]);
  }
}

void Reader::add_reads(const Target& target, const TensorEntry& saved, char* to,
                       std::vector<PieceRead>& reads) const {
  const auto item = static_cast<int64_t>(c10::elementSize(saved.dtype));
  const int64_t begin = target.first_element;
  const int64_t end = begin + target.out.numel();
  for (const Piece& piece : pieces_of(saved)) {
    const int64_t from = std::max(begin, piece.first);
    const int64_t until = std::min(end, piece.first + piece.count);
    if (from >= until) continue;
    reads.push_back({.file = piece.file,
                     .offset = piece.offset + (from - piece.first) * item,
                     .to = to + (from - begin) * item,
                     .bytes = (until - from) * item,
                     .checksum = until - from == piece.count ? &piece.checksum : nullptr,
                     .name = &target.name});
  }
}

base::InputFile Reader::open_file(size_t index) const {
  const FileEntry& entry = manifest_.files[index];
  base::InputFile file = open_input(folder_ / entry.name);
  check_bytes(file, entry.bytes);
  return file;
}

void Reader::sort_by_place(std::vector<PieceRead>& reads) {
  std::sort(reads.begin(), reads.end(), [](const PieceRead& a, const PieceRead& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
}

void Reader::read_piece(const PieceRead& read) const {
  const base::InputFile file = open_file(static_cast<size_t>(read.file));
  if (read.checksum == nullptr) {
    file.read(read.to, read.bytes, read.offset);
  } else {
    const std::string checksum = read.to == nullptr ? checksum_of_bytes(file, read.bytes, read.offset)
                                                    : read_and_sum(file, read.to, read.bytes, read.offset);
    if (checksum != *read.checksum) {
      throw CheckpointError(
          fmt::format("'{}' is damaged: the bytes of '{}' are not those that were saved (checksum)",
                      file.path().string(), *read.name));
    }
  }
  bytes_read_.fetch_add(read.bytes, std::memory_order_relaxed);
}

void Reader::verify(int threads) const {
  for (size_t i = 0; i < manifest_.indices.size(); ++i) load_index(i);
  if (!manifest_.indices.empty()) manifest_.check_pieces(folder_ / kManifestName);
  std::vector<PieceRead> pieces;
  std::vector<std::vector<Extent>> extents(manifest_.files.size());
  for (const auto& [name, tensor] : manifest_.tensors) {
    const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    for (const Piece& piece : tensor.pieces) {
      const int64_t bytes = piece.count * item;
      extents[static_cast<size_t>(piece.file)].emplace_back(piece.offset, piece.offset + bytes,
                                                            shard_dtype(tensor.dtype));
      pieces.push_back({.file = piece.file,
                        .offset = piece.offset,
                        .bytes = bytes,
                        .checksum = &piece.checksum,
                        .name = &name});
    }
  }
  // The headers first: they show that the pieces cover the files.
  for_each_index(manifest_.files.size(), threads, [&](size_t i) { check_header(i, std::move(extents[i])); });
  sort_by_place(pieces);
  for_each_index(pieces.size(), threads, [&](size_t i) { read_piece(pieces[i]); });
}

// Python reads the header, we read the manifest: both must have the same tensors.
void Reader::check_header(size_t index, std::vector<Extent> expected) const {
  const SafetensorsFile file(folder_ / manifest_.files[index].name);
  const SafetensorsHeader& header = file.header();
  const base::InputFile input = open_file(index);
  bytes_read_.fetch_add(header.bytes, std::memory_order_relaxed);
  if (checksum_of_bytes(input, header.bytes, 0) != manifest_.files[index].header_checksum) {
    throw CheckpointError(
        fmt::format("'{}' is damaged: its header is not what was saved (checksum)", file.path().string()));
  }
  std::vector<Extent> stored;
  for (const SafetensorsTensor& tensor : header.tensors) {
    stored.emplace_back(header.bytes + tensor.begin, header.bytes + tensor.end, tensor.dtype);
  }
  std::sort(stored.begin(), stored.end());
  std::sort(expected.begin(), expected.end());
  if (stored != expected) {
    throw CheckpointError(
        fmt::format("'{}' does not hold the tensors of its manifest", file.path().string()));
  }
}

}  // namespace lockstep::checkpoint
