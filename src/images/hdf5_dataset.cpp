#include "images/hdf5_dataset.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::images {
namespace {

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
      cursor.fail(fmt::format("the filter {} is not read here; {}", id, kRepack));
    }
    const uint16_t name_bytes = version == 1 ? cursor.u16() : 0;
    cursor.skip(2);
    const uint16_t values = cursor.u16();
    cursor.skip((name_bytes + 7) / 8 * 8 + 4 * values + (version == 1 && values % 2 == 1 ? 4 : 0));
    filters.push_back(id);
  }
  return filters;
}

// The tree that leads to the chunks of a dataset.
class ChunkTree {
 public:
  ChunkTree(const Hdf5File& file, Hdf5Dataset& dataset) : file_(file), dataset_(dataset) {
    for (size_t i = 0; i < dataset.shape.size(); ++i) {
      grid_.push_back((dataset.shape[i] - 1) / dataset.chunk_shape[i] + 1);
    }
  }

  void read(uint64_t address) {
    // A chunk costs 24 bytes of the tree at least: more chunks are not in the file.
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
    if (type != 1 || level >= level_above) cursor.fail("a tree that is none of chunks");
    if (++nodes_ > file_.size() / 24) cursor.fail("a tree that goes round in a circle");
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

  // The number of a chunk from the indices of its first element.
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
    cursor.fail(fmt::format("'{}' has a layout (version {}, kind {}) that is not read here; {}", dataset.name,
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

}  // namespace

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

}  // namespace lockstep::images
