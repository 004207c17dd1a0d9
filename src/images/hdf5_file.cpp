#include "images/hdf5_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

namespace lockstep::images {
namespace {

constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
constexpr size_t kMaxMessages = 10'000;
constexpr int kMaxNodes = 10'000;
constexpr uint8_t kShared = 0x02;  // flag: the content of the message is elsewhere

using Blocks = std::vector<std::pair<uint64_t, uint64_t>>;  // begin and end of messages

// One block of messages; what goes on elsewhere is appended to blocks.
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
    if (messages.size() >= kMaxMessages) cursor.fail("more messages than an object has");
    messages.push_back(message);
  }
}

std::string_view text_at(const Hdf5File& file, uint64_t address, uint64_t size) {
  ByteCursor cursor = file.at(address);
  const auto bytes = cursor.bytes(std::min(size, cursor.left()));
  const auto end = std::find(bytes.begin(), bytes.end(), 0);
  return {reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(end - bytes.begin())};
}

// A group as files of all versions have it unless told otherwise: a tree of tables, and a
// heap with the names.
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
    if (++nodes_ > kMaxNodes) cursor.fail("more nodes than a group has");
    if (cursor.take("SNOD")) return find_in_table(name, cursor);
    cursor.expect("TREE");
    const uint8_t type = cursor.u8(), level = cursor.u8();
    if (type != 0 || level >= level_above) cursor.fail("a tree that is none of a group");
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

// A link that is a message of the group's header; the address if it has the name.
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

// Groups of very many objects keep their links outside of the header.
void check_links_are_here(ByteCursor cursor) {
  cursor.skip(1);
  if ((cursor.u8() & 1) != 0) cursor.skip(8);
  if (cursor.u64() != kNoAddress)
    cursor.fail(fmt::format("a group with an index that is not read here; {}", kRepack));
}

}  // namespace

Hdf5File::Hdf5File(std::span<const uint8_t> bytes, const std::filesystem::path& path)
    : bytes_(bytes), path_(path) {
  // Something else may stand before the file: 512 bytes, or twice, four times as many.
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
  if (version > 3) cursor.fail(fmt::format("version {} of HDF5 is not read here; {}", version, kRepack));
  if (version < 2) cursor.skip(4);
  const uint8_t offset_bytes = cursor.u8(), length_bytes = cursor.u8();
  if (offset_bytes != 8 || length_bytes != 8) {
    cursor.fail(fmt::format("addresses of {} and lengths of {} bytes, not 8; {}", offset_bytes, length_bytes,
                            kRepack));
  }
  cursor.skip(version < 2 ? 9 : 1);
  if (version == 1) cursor.skip(4);
  base_ = cursor.u64();
  if (base_ != begin && base_ != 0) cursor.fail("the file says that it begins elsewhere");
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

}  // namespace lockstep::images
