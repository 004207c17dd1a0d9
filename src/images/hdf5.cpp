// HDF5 files with the datasets images and labels.
#include <fmt/format.h>
#include <lockstep/image_files.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "images/file_bytes.h"
#include "images/packed_images.h"

namespace lockstep {
namespace images {
namespace {

// --- the file ---
//
// The part of HDF5 that leads from a file to its datasets, as h5py and the HDF5 library write it by
// default. The library itself is not used: it ends the process on hostile files, allows one thread at
// a time, and its errors name no offset. Valid HDF5 that is not supported here is an error with the
// command that converts the file. All addresses and sizes are checked against the file.

constexpr char kRepack[] = "rewrite the file with: h5repack -l CONTI -f NONE OLD NEW";

// The address of data that were never written.
constexpr uint64_t kNoAddress = UINT64_MAX;

struct Hdf5Message {
  uint16_t type = 0;
  uint64_t begin = 0;  // offset of its content in the file
  uint64_t end = 0;
};

// Types of messages.
namespace hdf5 {
constexpr uint16_t kDataspace = 0x01, kLinkInfo = 0x02, kDatatype = 0x03, kLink = 0x06, kExternal = 0x07,
                   kLayout = 0x08, kFilters = 0x0b, kContinuation = 0x10, kSymbolTable = 0x11;
}

class Hdf5File {
 public:
  // Both arguments must outlive it. ConfigError: not an HDF5 file, truncated, or of a version that is
  // not supported.
  Hdf5File(std::span<const uint8_t> bytes, const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return bytes_.size(); }
  // A cursor at an address. ConfigError: the address is outside of the file.
  ByteCursor at(uint64_t address) const;
  ByteCursor content(const Hdf5Message& message) const { return {bytes_, path_, message.begin, message.end}; }
  uint64_t base() const { return base_; }

  // The messages of an object's header, of all its blocks.
  std::vector<Hdf5Message> messages(uint64_t object) const;
  // The address of an object of the root group. ConfigError: there is none of this name, or it is a link.
  uint64_t find(std::string_view name) const;

 private:
  void read_superblock(ByteCursor cursor);

  std::span<const uint8_t> bytes_;
  const std::filesystem::path& path_;
  uint64_t base_ = 0;
  uint64_t root_ = 0;
};

constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
constexpr size_t kMaxMessages = 10'000;
constexpr int kMaxNodes = 10'000;
constexpr uint8_t kShared = 0x02;  // flag: the content of the message is elsewhere

// Appends the messages of one block.
void read_block(ByteCursor cursor, bool is_new, size_t header_bytes, std::vector<Hdf5Message>& messages) {
  while (cursor.left() >= header_bytes) {
    Hdf5Message message;
    message.type = is_new ? cursor.u8() : cursor.u16();
    const uint16_t size = cursor.u16();
    const uint8_t flags = cursor.u8();
    cursor.skip(is_new ? header_bytes - 4 : 3);
    message.begin = cursor.at();
    cursor.skip(size);
    message.end = cursor.at();
    const bool is_ours = message.type == hdf5::kDataspace || message.type == hdf5::kDatatype ||
                         message.type == hdf5::kFilters || message.type == hdf5::kLayout;
    if (is_ours && (flags & kShared) != 0) cursor.fail(fmt::format("a shared message; {}", kRepack));
    if (messages.size() >= kMaxMessages) cursor.fail("too many messages for an object");
    messages.push_back(message);
  }
}

std::string_view text_at(const Hdf5File& file, uint64_t address, uint64_t size) {
  ByteCursor cursor = file.at(address);
  const auto bytes = cursor.bytes(std::min(size, cursor.left()));
  const auto end = std::find(bytes.begin(), bytes.end(), 0);
  return {reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(end - bytes.begin())};
}

// The default form of a group in all versions: a tree of tables, and a heap with the names.
class SymbolTable {
 public:
  SymbolTable(const Hdf5File& file, ByteCursor message) : file_(file), tree_(message.u64()) {
    ByteCursor heap = file.at(message.u64());
    heap.expect("HEAP");
    heap.skip(4);
    names_bytes_ = heap.u64();
    heap.skip(8);
    names_ = heap.u64();
  }

  std::optional<uint64_t> find(std::string_view name) { return find_below(name, tree_, UINT8_MAX); }

 private:
  std::optional<uint64_t> find_below(std::string_view name, uint64_t address, int level_above) {
    ByteCursor cursor = file_.at(address);
    if (++nodes_ > kMaxNodes) cursor.fail("too many nodes for a group");
    if (cursor.take("SNOD")) return find_in_table(name, cursor);
    cursor.expect("TREE");
    const uint8_t type = cursor.u8(), level = cursor.u8();
    if (type != 0 || level >= level_above) cursor.fail("not the tree of a group");
    const uint16_t entries = cursor.u16();
    cursor.skip(16);
    for (uint16_t i = 0; i < entries; ++i) {
      cursor.skip(8);
      if (const auto found = find_below(name, cursor.u64(), level)) return found;
    }
    return std::nullopt;
  }

  std::optional<uint64_t> find_in_table(std::string_view name, ByteCursor cursor) const {
    cursor.skip(2);
    const uint16_t entries = cursor.u16();
    for (uint16_t i = 0; i < entries; ++i) {
      const uint64_t name_offset = cursor.u64(), object = cursor.u64();
      const uint32_t kind = cursor.u32();
      cursor.skip(20);
      if (name_offset >= names_bytes_ || names_ > UINT64_MAX - name_offset)
        cursor.fail("a name outside of its heap");
      if (text_at(file_, names_ + name_offset, names_bytes_ - name_offset) != name) continue;
      if (kind == 2) cursor.fail(fmt::format("'{}' is a link, not a dataset of this file", name));
      return object;
    }
    return std::nullopt;
  }

  const Hdf5File& file_;
  uint64_t tree_;
  uint64_t names_ = 0;
  uint64_t names_bytes_ = 0;
  int nodes_ = 0;
};

// A link in a message of the group's header: its address if it has the name.
std::optional<uint64_t> read_link(ByteCursor cursor, std::string_view name) {
  cursor.skip(1);
  const uint8_t flags = cursor.u8();
  const uint8_t type = (flags & 8) != 0 ? cursor.u8() : 0;
  if ((flags & 4) != 0) cursor.skip(8);
  if ((flags & 16) != 0) cursor.skip(1);
  const auto text = cursor.bytes(cursor.number(size_t{1} << (flags & 3)));
  if (std::string_view(reinterpret_cast<const char*>(text.data()), text.size()) != name) return std::nullopt;
  if (type != 0) cursor.fail(fmt::format("'{}' is a link, not a dataset of this file", name));
  return cursor.u64();
}

// Groups with very many objects keep their links outside of the header.
void check_links_are_here(ByteCursor cursor) {
  cursor.skip(1);
  if ((cursor.u8() & 1) != 0) cursor.skip(8);
  if (cursor.u64() != kNoAddress)
    cursor.fail(fmt::format("a group with an index that is not supported; {}", kRepack));
}

Hdf5File::Hdf5File(std::span<const uint8_t> bytes, const std::filesystem::path& path)
    : bytes_(bytes), path_(path) {
  // The file may begin with a user block of 512 bytes, or 1024, 2048 and so on.
  for (uint64_t begin = 0; begin < bytes.size(); begin = begin == 0 ? 512 : begin * 2) {
    ByteCursor cursor(bytes, path, begin);
    if (!cursor.take(kSignature)) continue;
    read_superblock(cursor);
    return;
  }
  fail_at(path, 0, "no HDF5 file: its signature is missing");
}

void Hdf5File::read_superblock(ByteCursor cursor) {
  const uint64_t begin = cursor.at() - kSignature.size();
  const uint8_t version = cursor.u8();
  if (version > 3) cursor.fail(fmt::format("version {} of HDF5 is not supported; {}", version, kRepack));
  if (version < 2) cursor.skip(4);
  const uint8_t offset_bytes = cursor.u8(), length_bytes = cursor.u8();
  if (offset_bytes != 8 || length_bytes != 8) {
    cursor.fail(fmt::format("addresses of {} and lengths of {} bytes, not 8; {}", offset_bytes, length_bytes,
                            kRepack));
  }
  cursor.skip(version < 2 ? 9 : 1);
  if (version == 1) cursor.skip(4);
  base_ = cursor.u64();
  if (base_ != begin && base_ != 0) cursor.fail("its base address is not its begin");
  base_ = begin;
  cursor.skip(8);
  const uint64_t end = cursor.u64();
  if (end > bytes_.size()) cursor.fail(fmt::format("the file is cut: {} bytes of {}", bytes_.size(), end));
  if (version < 2) cursor.skip(16);
  root_ = cursor.u64();
}

ByteCursor Hdf5File::at(uint64_t address) const {
  if (address > bytes_.size() - base_)
    fail_at(path_, static_cast<int64_t>(bytes_.size()), "an address beyond the end");
  return {bytes_, path_, base_ + address};
}

std::vector<Hdf5Message> Hdf5File::messages(uint64_t object) const {
  ByteCursor cursor = at(object);
  const bool is_new = cursor.take("OHDR");
  size_t header_bytes = 8;
  uint64_t block_bytes = 0;
  if (is_new) {
    cursor.skip(1);
    const uint8_t flags = cursor.u8();
    cursor.skip(((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0));
    block_bytes = cursor.number(size_t{1} << (flags & 3));
    header_bytes = (flags & 4) != 0 ? 6 : 4;
  } else {
    if (cursor.u8() != 1) cursor.fail("not the header of an object");
    cursor.skip(7);
    block_bytes = cursor.u32();
    cursor.skip(4);
  }
  std::vector<Hdf5Message> found;
  if (block_bytes > cursor.left()) cursor.fail("an object that goes beyond the end");
  read_block({bytes_, path_, cursor.at(), cursor.at() + block_bytes}, is_new, header_bytes, found);
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].type != hdf5::kContinuation) continue;
    ByteCursor place = content(found[i]);
    ByteCursor block = at(place.u64());
    block_bytes = place.u64();
    if (block_bytes > block.left()) place.fail("an object that goes beyond the end");
    const uint64_t end = block.at() + block_bytes;
    if (is_new) block.expect("OCHK");
    read_block({bytes_, path_, block.at(), end}, is_new, header_bytes, found);
  }
  return found;
}

uint64_t Hdf5File::find(std::string_view name) const {
  for (const Hdf5Message& message : messages(root_)) {
    std::optional<uint64_t> found;
    if (message.type == hdf5::kSymbolTable) found = SymbolTable(*this, content(message)).find(name);
    if (message.type == hdf5::kLink) found = read_link(content(message), name);
    if (message.type == hdf5::kLinkInfo) check_links_are_here(content(message));
    if (found) return *found;
  }
  fail_at(path_, static_cast<int64_t>(base_), fmt::format("the file has no dataset '{}'", name));
}

// --- datasets ---

// The place of a dataset's elements in the file.
struct Hdf5Dataset {
  struct Chunk {
    uint64_t begin = 0;    // offset in the file
    uint64_t bytes = 0;    // 0: missing
    uint32_t skipped = 0;  // one bit for each filter that was not applied
  };

  std::string name;
  std::vector<int64_t> shape;
  IntegerType type;
  // Contiguous data: the offset of the first element. All elements are inside the file.
  std::optional<uint64_t> begin;
  // Otherwise chunks: their shape, and all of them in row-major order.
  std::vector<int64_t> chunk_shape;
  std::vector<Chunk> chunks;
  std::vector<uint16_t> filters;  // in the order in which they were applied

  int64_t elements() const;
  int64_t chunk_bytes() const;
};

constexpr uint16_t kDeflate = 1, kShuffle = 2, kFletcher32 = 3;

constexpr size_t kMaxHdf5Dimensions = 8;
constexpr int64_t kMaxChunkBytes = int64_t{256} << 20;
constexpr int kMaxLevel = 16;

std::vector<int64_t> read_shape(ByteCursor cursor) {
  const uint8_t version = cursor.u8(), rank = cursor.u8();
  if (version != 1 && version != 2) cursor.fail("a shape of an unknown version");
  if (rank < 1 || rank > kMaxHdf5Dimensions)
    cursor.fail(fmt::format("{} dimensions, not 1 to {}", rank, kMaxHdf5Dimensions));
  cursor.skip(version == 1 ? 6 : 2);
  std::vector<int64_t> shape;
  for (uint8_t i = 0; i < rank; ++i) {
    const uint64_t size = cursor.u64();
    if (size > INT64_MAX) cursor.fail(fmt::format("a dimension of {}", size));
    shape.push_back(static_cast<int64_t>(size));
  }
  return shape;
}

IntegerType read_type(ByteCursor cursor, const std::string& name) {
  const uint8_t kind = cursor.u8() & 0x0f, bits = cursor.u8();
  cursor.skip(2);
  const uint32_t bytes = cursor.u32();
  if (kind != 0 || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)) {
    cursor.fail(fmt::format("the elements of '{}' are no integers of 1, 2, 4 or 8 bytes", name));
  }
  const uint16_t first_bit = cursor.u16(), num_bits = cursor.u16();
  if (first_bit != 0 || num_bits != 8 * bytes) cursor.fail("integers that do not fill their bytes");
  if ((bits & 1) != 0 && bytes > 1) cursor.fail("integers with the most significant byte first");
  return {.bytes = static_cast<int>(bytes), .is_signed = (bits & 8) != 0};
}

std::vector<uint16_t> read_filters(ByteCursor cursor) {
  const uint8_t version = cursor.u8(), count = cursor.u8();
  if (version != 1 && version != 2) cursor.fail("filters of an unknown version");
  if (version == 1) cursor.skip(6);
  std::vector<uint16_t> filters;
  for (uint8_t i = 0; i < count; ++i) {
    const uint16_t id = cursor.u16();
    if (id != kDeflate && id != kShuffle && id != kFletcher32) {
      cursor.fail(fmt::format("the filter {} is not supported; {}", id, kRepack));
    }
    const uint16_t name_bytes = version == 1 ? cursor.u16() : 0;
    cursor.skip(2);
    const uint16_t values = cursor.u16();
    cursor.skip((name_bytes + 7) / 8 * 8 + 4 * values + (version == 1 && values % 2 == 1 ? 4 : 0));
    filters.push_back(id);
  }
  return filters;
}

// Reads the B-tree of a dataset's chunks.
class ChunkTree {
 public:
  ChunkTree(const Hdf5File& file, Hdf5Dataset& dataset) : file_(file), dataset_(dataset) {
    for (size_t i = 0; i < dataset.shape.size(); ++i) {
      grid_.push_back((dataset.shape[i] - 1) / dataset.chunk_shape[i] + 1);
    }
  }

  void read(uint64_t address) {
    // Each chunk takes at least 24 bytes of the tree, which limits their number.
    int64_t count = 1;
    for (const int64_t size : grid_) {
      if (size > static_cast<int64_t>(file_.size() / 24) / count) {
        file_.at(address).fail(fmt::format("'{}' has more chunks than the file holds", dataset_.name));
      }
      count *= size;
    }
    dataset_.chunks.resize(static_cast<size_t>(count));
    read_node(address, kMaxLevel);
    const auto missing = std::find_if(dataset_.chunks.begin(), dataset_.chunks.end(),
                                      [](const Hdf5Dataset::Chunk& chunk) { return chunk.bytes == 0; });
    if (missing != dataset_.chunks.end()) {
      file_.at(address).fail(fmt::format("chunk {} of '{}' was never written",
                                         missing - dataset_.chunks.begin(), dataset_.name));
    }
  }

 private:
  void read_node(uint64_t address, int level_above) {
    ByteCursor cursor = file_.at(address);
    cursor.expect("TREE");
    const uint8_t type = cursor.u8(), level = cursor.u8();
    if (type != 1 || level >= level_above) cursor.fail("not a tree of chunks");
    if (++nodes_ > file_.size() / 24) cursor.fail("a tree with a cycle");
    const uint16_t entries = cursor.u16();
    cursor.skip(16);
    for (uint16_t i = 0; i < entries; ++i) {
      Hdf5Dataset::Chunk chunk;
      chunk.bytes = cursor.u32();
      chunk.skipped = cursor.u32();
      const size_t place = read_place(cursor);
      const uint64_t child = cursor.u64();
      if (level > 0) {
        read_node(child, level);
        continue;
      }
      ByteCursor data = file_.at(child);
      chunk.begin = data.at();
      data.skip(chunk.bytes);
      dataset_.chunks[place] = chunk;
    }
  }

  // The index of a chunk, from the indices of its first element.
  size_t read_place(ByteCursor& cursor) const {
    int64_t place = 0;
    for (size_t i = 0; i < grid_.size(); ++i) {
      const uint64_t first = cursor.u64(), size = static_cast<uint64_t>(dataset_.chunk_shape[i]);
      if (first % size != 0 || first / size >= static_cast<uint64_t>(grid_[i]))
        cursor.fail("a chunk out of place");
      place = place * grid_[i] + static_cast<int64_t>(first / size);
    }
    cursor.skip(8);
    return static_cast<size_t>(place);
  }

  const Hdf5File& file_;
  Hdf5Dataset& dataset_;
  std::vector<int64_t> grid_;
  uint64_t nodes_ = 0;
};

void read_chunks(const Hdf5File& file, ByteCursor cursor, Hdf5Dataset& dataset) {
  const uint8_t rank = cursor.u8();
  if (rank != dataset.shape.size() + 1) cursor.fail("chunks of another number of dimensions");
  const uint64_t tree = cursor.u64();
  int64_t bytes = dataset.type.bytes;
  for (size_t i = 0; i < dataset.shape.size(); ++i) {
    const int64_t size = cursor.u32();
    if (size < 1 || size > kMaxChunkBytes / bytes) {
      cursor.fail(
          fmt::format("chunks of '{}' with more than {} bytes; {}", dataset.name, kMaxChunkBytes, kRepack));
    }
    bytes *= size;
    dataset.chunk_shape.push_back(size);
  }
  if (cursor.u32() != static_cast<uint32_t>(dataset.type.bytes)) cursor.fail("chunks of other elements");
  if (tree == kNoAddress) cursor.fail(fmt::format("'{}' was never written", dataset.name));
  ChunkTree(file, dataset).read(tree);
}

void read_layout(const Hdf5File& file, ByteCursor cursor, Hdf5Dataset& dataset) {
  enum : uint8_t { kCompact, kContiguous, kChunked };
  const uint8_t version = cursor.u8(), kind = cursor.u8();
  const auto bytes = static_cast<uint64_t>(dataset.elements() * dataset.type.bytes);
  if ((version != 3 && version != 4) || kind > kChunked || (kind == kChunked && version == 4)) {
    cursor.fail(fmt::format("'{}' has a layout (version {}, kind {}) that is not supported; {}", dataset.name,
                            version, kind, kRepack));
  }
  if (kind == kCompact) {
    const uint16_t size = cursor.u16();
    dataset.begin = cursor.at();
    if (size < bytes) cursor.fail(fmt::format("{} bytes where the shape has {}", size, bytes));
    cursor.skip(size);
  } else if (kind == kContiguous) {
    const uint64_t address = cursor.u64();
    if (address == kNoAddress) cursor.fail(fmt::format("'{}' was never written", dataset.name));
    ByteCursor data = file.at(address);
    dataset.begin = data.at();
    if (bytes > data.left())
      data.fail(fmt::format("'{}' of {} bytes goes beyond the end", dataset.name, bytes));
  } else {
    read_chunks(file, cursor, dataset);
  }
}

int64_t Hdf5Dataset::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

int64_t Hdf5Dataset::chunk_bytes() const {
  int64_t bytes = type.bytes;
  for (const int64_t size : chunk_shape) bytes *= size;
  return bytes;
}

// ConfigError: not a complete dataset of integers with 1 to 8 dimensions in this file, or with other
// filters than the three above.
Hdf5Dataset read_dataset(const Hdf5File& file, const std::string& name) {
  const uint64_t object = file.find(name);
  const std::vector<Hdf5Message> messages = file.messages(object);
  const auto message = [&](uint16_t type) -> std::optional<ByteCursor> {
    const auto found = std::find_if(messages.begin(), messages.end(),
                                    [&](const Hdf5Message& candidate) { return candidate.type == type; });
    return found == messages.end() ? std::nullopt : std::optional(file.content(*found));
  };
  const auto shape = message(hdf5::kDataspace), type = message(hdf5::kDatatype),
             layout = message(hdf5::kLayout);
  if (!shape || !type || !layout) file.at(object).fail(fmt::format("'{}' is not a dataset", name));
  if (message(hdf5::kExternal)) file.at(object).fail(fmt::format("the data of '{}' is in other files", name));

  Hdf5Dataset dataset;
  dataset.name = name;
  dataset.shape = read_shape(*shape);
  dataset.type = read_type(*type, name);
  int64_t bytes = dataset.type.bytes;
  const auto most = static_cast<int64_t>(file.size()) * static_cast<int64_t>(kDeflateRatio);
  for (const int64_t size : dataset.shape) {
    if (size == 0) shape->fail(fmt::format("'{}' is empty", name));
    if (size > most / bytes) {
      shape->fail(fmt::format("the shape [{}] of '{}' is more than a file of {} bytes can hold",
                              fmt::join(dataset.shape, ", "), name, file.size()));
    }
    bytes *= size;
  }
  if (const auto filters = message(hdf5::kFilters)) dataset.filters = read_filters(*filters);
  read_layout(file, *layout, dataset);
  return dataset;
}

// --- chunks ---

using Bytes = std::vector<uint8_t>;

// Fletcher's checksum of big-endian 16-bit words.
uint32_t fletcher32(std::span<const uint8_t> bytes) {
  uint64_t first = 0, second = 0;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    first += bytes[i] << 8 | (i + 1 < bytes.size() ? bytes[i + 1] : 0);
    first = (first & 0xffff) + (first >> 16);
    second += first;
    second = (second & 0xffff) + (second >> 16);
  }
  return static_cast<uint32_t>(second << 16 | first);
}

Bytes inflate_all(std::span<const uint8_t> packed, size_t size, const ByteCursor& cursor) {
  if (size / kDeflateRatio > packed.size()) cursor.fail("a chunk that is too short for what it unpacks to");
  Bytes bytes(size);
  uLongf got = size;
  const int status = uncompress(bytes.data(), &got, packed.data(), packed.size());
  if (status != Z_OK || got != size) {
    cursor.fail(fmt::format("a chunk does not unpack to its {} bytes: {}", size,
                            status == Z_OK ? "too short" : zError(status)));
  }
  return bytes;
}

// Undoes the filter shuffle, which stores the first bytes of all elements, then the second ones.
Bytes unshuffle(std::span<const uint8_t> bytes, size_t element_bytes) {
  Bytes result(bytes.begin(), bytes.end());
  const size_t count = bytes.size() / element_bytes;
  for (size_t b = 0; b < element_bytes; ++b) {
    for (size_t i = 0; i < count; ++i) result[i * element_bytes + b] = bytes[b * count + i];
  }
  return result;
}

// Copies the part of a chunk that is inside the dataset, dimension by dimension.
class ChunkCopy {
 public:
  ChunkCopy(const Hdf5Dataset& dataset, uint8_t* to) : dataset_(dataset), to_(to) {}

  void copy(const uint8_t* from, size_t number) {
    std::vector<int64_t> first(dataset_.shape.size());
    auto rest = static_cast<int64_t>(number);
    for (size_t i = first.size(); i-- > 0;) {
      const int64_t grid = (dataset_.shape[i] - 1) / dataset_.chunk_shape[i] + 1;
      first[i] = rest % grid * dataset_.chunk_shape[i];
      rest /= grid;
    }
    copy_from(0, 0, 0, from, first);
  }

 private:
  // place and chunk_place: the index of this row in the dataset and in the chunk, in rows of dimension i.
  void copy_from(size_t i, int64_t place, int64_t chunk_place, const uint8_t* from,
                 const std::vector<int64_t>& first) {
    const int64_t count = std::min(dataset_.chunk_shape[i], dataset_.shape[i] - first[i]);
    place = place * dataset_.shape[i] + first[i];
    chunk_place *= dataset_.chunk_shape[i];
    if (i + 1 < first.size()) {
      for (int64_t k = 0; k < count; ++k) copy_from(i + 1, place + k, chunk_place + k, from, first);
      return;
    }
    const int64_t bytes = dataset_.type.bytes;
    std::memcpy(to_ + place * bytes, from + chunk_place * bytes, static_cast<size_t>(count * bytes));
  }

  const Hdf5Dataset& dataset_;
  uint8_t* to_;
};

// The elements of a chunked dataset, unpacked, in row-major order.
SharedBytes unpack_chunks(const Hdf5File& file, const Hdf5Dataset& dataset) {
  const auto size = static_cast<size_t>(dataset.chunk_bytes());
  WritableBytes all =
      allocate_bytes(static_cast<size_t>(dataset.elements() * dataset.type.bytes), file.path());
  ChunkCopy copy(dataset, all.data);
  for (size_t number = 0; number < dataset.chunks.size(); ++number) {
    const Hdf5Dataset::Chunk& chunk = dataset.chunks[number];
    const ByteCursor place = file.at(chunk.begin - file.base());
    std::span<const uint8_t> bytes = ByteCursor(place).bytes(chunk.bytes);
    Bytes unpacked;
    for (size_t i = dataset.filters.size(); i-- > 0;) {
      if ((chunk.skipped >> i & 1) != 0) continue;
      if (dataset.filters[i] == kFletcher32) {
        if (bytes.size() < 4) place.fail("a chunk without its checksum");
        const std::span<const uint8_t> sum = bytes.last(4);
        bytes = bytes.first(bytes.size() - 4);
        const uint32_t stored = sum[0] | sum[1] << 8 | sum[2] << 16 | uint32_t{sum[3]} << 24;
        if (stored != fletcher32(bytes)) place.fail("a chunk whose checksum does not match");
        continue;
      }
      unpacked = dataset.filters[i] == kDeflate ? inflate_all(bytes, size, place)
                                                : unshuffle(bytes, static_cast<size_t>(dataset.type.bytes));
      bytes = unpacked;
    }
    if (bytes.size() != size) place.fail(fmt::format("a chunk of {} bytes, not {}", bytes.size(), size));
    copy.copy(bytes.data(), number);
  }
  return std::move(all.shared);
}

// --- the set ---

// Contiguous data, and uncompressed chunks of whole images, are used in the mapped file. Other chunks
// are unpacked into memory.
std::vector<ImageBlock> image_blocks(const Hdf5File& file, const Hdf5Dataset& dataset,
                                     const ImageTensor& tensor, const SharedBytes& mapped) {
  std::vector<ImageBlock> blocks;
  const int64_t stride = tensor.shape.bytes();
  if (dataset.begin) {
    blocks.push_back({mapped, static_cast<int64_t>(*dataset.begin), stride, tensor.count});
    return blocks;
  }
  const bool is_whole =
      std::equal(dataset.shape.begin() + 1, dataset.shape.end(), dataset.chunk_shape.begin() + 1);
  if (!is_whole || !dataset.filters.empty()) {
    blocks.push_back({unpack_chunks(file, dataset), 0, stride, tensor.count});
    return blocks;
  }
  int64_t left = tensor.count;
  for (const Hdf5Dataset::Chunk& chunk : dataset.chunks) {
    const int64_t count = std::min(left, dataset.chunk_shape[0]);
    if (static_cast<int64_t>(chunk.bytes) < count * stride) {
      fail_at(file.path(), static_cast<int64_t>(chunk.begin), "a chunk that is smaller than its images");
    }
    blocks.push_back({mapped, static_cast<int64_t>(chunk.begin), stride, count});
    left -= count;
  }
  return blocks;
}

ImageLabels read_labels(const Hdf5File& file, int64_t num_images, ImageClasses classes,
                        const SharedBytes& mapped) {
  const Hdf5Dataset dataset = read_dataset(file, "labels");
  const TensorPlace place{file.path(), dataset.name};
  // [n], or [n, 1], which some programs write.
  if (dataset.elements() != num_images || dataset.shape[0] != num_images) {
    fail_tensor(place, fmt::format("the shape [{}] is not that of {} labels", fmt::join(dataset.shape, ", "),
                                   num_images));
  }
  const auto size = static_cast<size_t>(num_images * dataset.type.bytes);
  const SharedBytes unpacked = dataset.begin ? SharedBytes{} : unpack_chunks(file, dataset);
  return integer_labels(
      dataset.begin ? mapped.bytes.subspan(static_cast<size_t>(*dataset.begin), size) : unpacked.bytes,
      dataset.type, std::move(classes), dataset.begin, place);
}

}  // namespace
}  // namespace images

ImageSet open_hdf5(const std::filesystem::path& path, ImageClasses classes) {
  const images::SharedBytes mapped = images::map_file(path);
  const images::Hdf5File file(mapped.bytes, path);
  const images::Hdf5Dataset dataset = images::read_dataset(file, "images");
  const images::TensorPlace place{path, dataset.name};
  if (dataset.type.bytes != 1 || dataset.type.is_signed) {
    images::fail_tensor(place, "its elements are not unsigned bytes");
  }
  const images::ImageTensor tensor = images::image_tensor(dataset.shape, place);
  images::ImageLabels labels = images::read_labels(file, tensor.count, std::move(classes), mapped);
  return std::make_shared<images::PackedImages>(
      tensor.shape, images::image_blocks(file, dataset, tensor, mapped), std::move(labels));
}

}  // namespace lockstep
