#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>

#include "base/json.h"
#include "base/safetensors.h"
#include "checkpoint/checksum.h"
#include "checkpoint/dtype.h"
#include "checkpoint/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr char kFormat[] = "lockstep-checkpoint";
// The text begins with the checksum of the rest: `{"checksum":"<32 digits>",`.
constexpr std::string_view kOpening = "{\"checksum\":\"";
constexpr std::string_view kClosing = "\",";
constexpr size_t kPrefixBytes = kOpening.size() + kChecksumDigits + kClosing.size();

// JSON has no infinity and no NaN; they would be written as null and read as something else.
void check_finite(const Json& value, const std::string& place) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    throw ConfigError("checkpoint", fmt::format("{} is {}, which JSON cannot hold: leave it out, or save it "
                                                "as a string or in a tensor",
                                                place, value.get<double>()));
  }
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) check_finite(member, place + "." + key);
  }
  for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
    check_finite(value[i], fmt::format("{}[{}]", place, i));
  }
}

void check_text(std::string_view text, const std::filesystem::path& path) {
  const bool shaped = text.size() > kPrefixBytes && text.substr(0, kOpening.size()) == kOpening &&
                      text.substr(kPrefixBytes - kClosing.size(), kClosing.size()) == kClosing;
  if (!shaped) {
    fail_broken(path, fmt::format("it does not begin with a checksum: {} bytes", text.size()));
  }
  if (text.substr(kOpening.size(), kChecksumDigits) != checksum_of(text.substr(kPrefixBytes))) {
    fail_broken(path, "it was cut or changed after it was written (checksum)");
  }
}

// The files of a hostile manifest must not be outside its folder.
bool is_file_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

// A JSON object of a checkpoint's file; an error is a CheckpointError.
class JsonObject : public base::JsonObject {
 public:
  JsonObject(const Json& value, const std::filesystem::path& path, std::string place)
      : base::JsonObject(value, path, std::move(place), fail_broken) {}

  std::string checksum(const char* key) const {
    std::string result = text(key);
    if (!is_checksum(result)) fail(key, fmt::format("not {} hex digits", kChecksumDigits));
    return result;
  }
};

Json to_json(const FileEntry& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"header_checksum", file.header_checksum}};
}

Json to_json(const TensorEntry& tensor) {
  Json result = {{"dtype", manifest_dtype_name(tensor.dtype).value()}, {"shape", tensor.shape}};
  if (tensor.index >= 0) {
    result["index"] = tensor.index;
    return result;
  }
  Json pieces = Json::array();
  for (const Piece& piece : tensor.pieces) {
    pieces.push_back({{"file", piece.file},
                      {"offset", piece.offset},
                      {"first", piece.first},
                      {"count", piece.count},
                      {"checksum", piece.checksum}});
  }
  result["pieces"] = std::move(pieces);
  return result;
}

FileEntry file_from_json(const Json& value, const std::filesystem::path& path, const std::string& place) {
  const JsonObject object(value, path, place);
  FileEntry file{.name = object.text("name"),
                 .bytes = object.integer("bytes"),
                 .header_checksum = object.checksum("header_checksum")};
  if (!is_file_name(file.name)) object.fail("name", "not the name of a file in this folder");
  return file;
}

TensorEntry tensor_from_json(const Json& value, const std::filesystem::path& path, const std::string& place) {
  const JsonObject object(value, path, place);
  TensorEntry tensor;
  const std::string dtype = object.text("dtype");
  const auto known = manifest_dtype(dtype);
  if (!known) object.fail("dtype", fmt::format("unknown: {}", dtype));
  tensor.dtype = *known;
  tensor.shape = object.integers("shape", base::kMaxTensorDimensions);
  if (!base::shape_bytes(tensor.shape, static_cast<int64_t>(c10::elementSize(tensor.dtype))))
    object.fail("shape", "too large");
  if (object.has("index")) {
    const int64_t index = object.integer("index");
    if (index > std::numeric_limits<int>::max()) object.fail("index", "no such file");
    tensor.index = static_cast<int>(index);
    return tensor;
  }
  for (const Json& member : object.array("pieces")) {
    const JsonObject piece(member, path, fmt::format("{}.pieces[{}]", place, tensor.pieces.size()));
    const int64_t count = piece.integer("count");
    if (count > tensor.numel()) piece.fail("count", "more elements than the tensor has");
    const int64_t file = piece.integer("file");
    if (file > std::numeric_limits<int>::max()) piece.fail("file", "no such file");
    tensor.pieces.push_back({.file = static_cast<int>(file),
                             .offset = piece.integer("offset"),
                             .first = piece.integer("first"),
                             .count = count,
                             .checksum = piece.checksum("checksum")});
  }
  return tensor;
}

Json tensors_to_json(const std::map<std::string, TensorEntry>& tensors) {
  Json result = Json::object();
  for (const auto& [name, tensor] : tensors) result[name] = to_json(tensor);
  return result;
}

// No two shards or index files have the same name.
void check_unique(const Manifest& manifest, const JsonObject& root) {
  std::set<std::string_view> names;
  const auto add = [&](const char* list, const std::string& name) {
    if (!names.insert(name).second) root.fail(list, fmt::format("the name {} is used twice", name));
  };
  for (const FileEntry& file : manifest.files) add("files", file.name);
  for (const IndexEntry& index : manifest.indices) add("indices", index.name);
}

IndexEntry index_from_json(const Json& value, const std::filesystem::path& path, const std::string& place) {
  const JsonObject object(value, path, place);
  IndexEntry index{
      .name = object.text("name"), .bytes = object.integer("bytes"), .checksum = object.checksum("checksum")};
  if (!is_file_name(index.name)) object.fail("name", "not the name of a file in this folder");
  return index;
}

// The names may come from a hostile file: JsonObject escapes them.
void fail_tensor(const std::filesystem::path& path, const std::string& name, const std::string& reason) {
  const Json nothing = Json::object();
  JsonObject(nothing, path, "tensors").fail(name, reason);
}

// One tensor: its pieces cover it once, in order, and lie inside their files.
void check_tensor(const Manifest& manifest, const std::string& name, const TensorEntry& tensor,
                  const std::filesystem::path& path) {
  const auto fail = [&](const std::string& reason) { fail_tensor(path, name, reason); };
  const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  int64_t next = 0;
  for (const Piece& piece : tensor.pieces) {
    if (piece.first != next) {
      fail(fmt::format("pieces: elements from {} on are missing or in two pieces",
                       std::min(piece.first, next)));
    }
    if (piece.count > tensor.numel() - next) fail("pieces: more elements than the tensor has");
    next += piece.count;
    if (piece.file >= static_cast<int>(manifest.files.size())) fail("no such file");
    const int64_t file_bytes = manifest.files[static_cast<size_t>(piece.file)].bytes;
    if (piece.offset > file_bytes || piece.count * item > file_bytes - piece.offset) {
      fail(fmt::format("reaches beyond the end of its file: bytes {} + {} of {}", piece.offset,
                       piece.count * item, file_bytes));
    }
  }
  if (next != tensor.numel()) fail(fmt::format("pieces: elements from {} on are missing", next));
}

struct Extent {
  int file;
  int64_t begin;
  int64_t end;
  const std::string* tensor;
};

// All tensors: no byte belongs to two of them.
void check_overlaps(const Manifest& manifest, const std::filesystem::path& path) {
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : manifest.tensors) {
    const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    for (const Piece& piece : tensor.pieces) {
      if (piece.count > 0)
        extents.push_back({piece.file, piece.offset, piece.offset + piece.count * item, &name});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].file == extents[i - 1].file && extents[i].begin < extents[i - 1].end) {
      fail_tensor(path, *extents[i - 1].tensor, fmt::format("it and {} overlap", *extents[i].tensor));
    }
  }
}

// A piece of an index file: [file, offset, first, count, checksum]. Arrays, because there may be
// millions.
Piece piece_from_row(const Json& row, const JsonObject& place, const char* name) {
  const auto fail = [&] { place.fail(name, "a piece is not [file, offset, first, count, checksum]"); };
  if (!row.is_array() || row.size() != 5 || !row[4].is_string() || !is_checksum(row[4].text())) fail();
  std::array<int64_t, 4> numbers{};
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!row[i].is_integer_of<int64_t>() || row[i].get<int64_t>() < 0) fail();
    numbers[i] = row[i].get<int64_t>();
  }
  if (numbers[0] > std::numeric_limits<int>::max()) place.fail(name, "no such file");
  return {.file = static_cast<int>(numbers[0]),
          .offset = numbers[1],
          .first = numbers[2],
          .count = numbers[3],
          .checksum = row[4].text()};
}

std::string index_name(size_t index, size_t count) {
  return fmt::format("index-{:05}-of-{:05}.json", index, count);
}

[[noreturn]] void fail_unwritable(const JsonError& error) {
  throw ConfigError("checkpoint",
                    fmt::format("a name or the metadata cannot be written as JSON: {}", error.what()));
}

// "name":[[file,offset,first,count,"checksum"],...
void add_rows(std::string& text, const std::string& name, const TensorEntry& tensor) {
  try {
    text += Json(name).dump();
  } catch (const JsonError& error) {
    fail_unwritable(error);
  }
  text += ":[";
  for (const Piece& piece : tensor.pieces) {
    if (text.back() != '[') text += ',';
    fmt::format_to(std::back_inserter(text), "[{},{},{},{},\"{}\"]", piece.file, piece.offset, piece.first,
                   piece.count, piece.checksum);
  }
  text += "]";
}

}  // namespace

int64_t TensorEntry::numel() const {
  int64_t result = 1;
  for (const int64_t size : shape) result *= size;
  return result;
}

int64_t Manifest::total_bytes() const {
  int64_t bytes = 0;
  for (const FileEntry& file : files) bytes += file.bytes;
  return bytes;
}

int64_t Manifest::piece_count() const {
  int64_t count = 0;
  for (const auto& [name, tensor] : tensors) count += static_cast<int64_t>(tensor.pieces.size());
  return count;
}

std::vector<std::string> Manifest::split_off_pieces(int64_t pieces_each) {
  std::vector<std::string> texts;
  int64_t pieces = pieces_each;  // in the last index file; the first tensor begins a file
  for (auto& [name, tensor] : tensors) {
    const auto own = static_cast<int64_t>(tensor.pieces.size());
    if (pieces + own > pieces_each || texts.empty()) {
      if (!texts.empty()) texts.back() += "}}\n";
      texts.emplace_back("{\"tensors\":{");
      pieces = 0;
    }
    if (texts.back().back() != '{') texts.back() += ',';
    add_rows(texts.back(), name, tensor);
    pieces += own;
    tensor.index = static_cast<int>(texts.size()) - 1;
    tensor.pieces = {};
  }
  if (!texts.empty()) texts.back() += "}}\n";
  for (const std::string& text : texts) {
    indices.push_back({.name = index_name(indices.size(), texts.size()),
                       .bytes = static_cast<int64_t>(text.size()),
                       .checksum = checksum_of(text)});
  }
  return texts;
}

std::string Manifest::to_text() const {
  check_finite(metadata, "metadata");
  Json files_json = Json::array();
  for (const FileEntry& file : files) files_json.push_back(to_json(file));
  Json root = {{"format", kFormat},
               {"version", indices.empty() ? 1 : 2},
               {"sequence", sequence},
               {"step", step},
               {"epoch", epoch},
               {"world_size", world_size},
               {"time", time},
               {"lockstep", lockstep},
               {"libtorch", libtorch},
               {"metadata", metadata},
               {"files", std::move(files_json)},
               {"tensors", tensors_to_json(tensors)}};
  if (metric && std::isfinite(*metric)) {
    root["metric"] = *metric;
    if (metric_kind.known()) {
      root["metric_name"] = metric_kind.name;
      root["metric_mode"] = metric_kind.mode;
    }
  }
  if (best) root["best"] = true;
  for (const IndexEntry& index : indices) {
    root["indices"].push_back({{"name", index.name}, {"bytes", index.bytes}, {"checksum", index.checksum}});
  }
  try {
    const std::string rest = root.dump(1).substr(1);
    return fmt::format("{}{}{}{}\n", kOpening, checksum_of(rest + "\n"), kClosing, rest);
  } catch (const JsonError& error) {
    fail_unwritable(error);
  }
}

Manifest Manifest::parse(std::string_view text, const std::filesystem::path& path) {
  check_text(text, path);
  const Json root_json = base::parse_json(text, path, fail_broken);
  const JsonObject root(root_json, path, "");
  if (root.text("format") != kFormat) root.fail("format", "not a checkpoint of Lockstep");
  const int64_t version = root.integer("version");
  if (version < 1 || version > kFormatVersion) {
    root.fail("version", fmt::format("{} where this Lockstep reads 1 to {}", version, kFormatVersion));
  }
  Manifest manifest;
  manifest.sequence = root.integer("sequence");
  manifest.step = root.integer("step");
  manifest.epoch = root.integer("epoch");
  const int64_t world_size = root.integer("world_size", 1);
  if (world_size > std::numeric_limits<int>::max()) root.fail("world_size", "too large");
  manifest.world_size = static_cast<int>(world_size);
  if (root.has("metric")) manifest.metric = root.number("metric");
  if (root.has("metric_name")) {
    manifest.metric_kind = {root.text("metric_name"), root.text("metric_mode")};
  }
  if (const Json* const best = root_json.find("best")) {
    if (!best->is_boolean()) root.fail("best", "neither true nor false");
    manifest.best = best->get<bool>();
  }
  manifest.time = root.text("time");
  manifest.lockstep = root.text("lockstep");
  manifest.libtorch = root.text("libtorch");
  manifest.metadata = root.object("metadata");
  for (const Json& value : root.array("files")) {
    manifest.files.push_back(file_from_json(value, path, fmt::format("files[{}]", manifest.files.size())));
  }
  if (version > 1) {
    for (const Json& value : root.array("indices")) {
      manifest.indices.push_back(
          index_from_json(value, path, fmt::format("indices[{}]", manifest.indices.size())));
    }
  }
  check_unique(manifest, root);
  for (const auto& [name, value] : root.object("tensors").items()) {
    TensorEntry tensor = tensor_from_json(value, path, "tensors." + name);
    if (tensor.index >= static_cast<int>(manifest.indices.size())) {
      root.fail("tensors." + name, "no such index file");
    }
    manifest.tensors.emplace(name, std::move(tensor));
  }
  manifest.check_pieces(path);
  return manifest;
}

void Manifest::read_index(size_t index, std::string_view text, const std::filesystem::path& path) {
  if (checksum_of(text) != indices.at(index).checksum) {
    fail_broken(path, "it is not the file that was saved with its manifest (checksum)");
  }
  const Json root_json = base::parse_json(text, path, fail_broken);
  const Json& rows_of = JsonObject(root_json, path, "").object("tensors");
  const JsonObject place(rows_of, path, "tensors");
  size_t read = 0;
  for (const auto& [name, rows] : rows_of.items()) {
    const auto found = tensors.find(name);
    if (found == tensors.end() || found->second.index != static_cast<int>(index)) {
      place.fail(name, "the manifest has no such tensor in this index file");
    }
    if (!rows.is_array()) place.fail(name, "not an array");
    TensorEntry& tensor = found->second;
    tensor.pieces.clear();
    tensor.pieces.reserve(rows.size());
    for (const Json& row : rows) tensor.pieces.push_back(piece_from_row(row, place, name.c_str()));
    check_tensor(*this, name, tensor, path);
    ++read;
  }
  const auto expected = std::count_if(tensors.begin(), tensors.end(), [&](const auto& entry) {
    return entry.second.index == static_cast<int>(index);
  });
  if (read != static_cast<size_t>(expected)) {
    fail_broken(path, fmt::format("it has {} of the {} tensors that its manifest has there", read, expected));
  }
}

void Manifest::check_pieces(const std::filesystem::path& path) const {
  for (const auto& [name, tensor] : tensors) {
    const bool elsewhere = tensor.index >= 0 && tensor.pieces.empty();
    if (!elsewhere) check_tensor(*this, name, tensor, path);
  }
  check_overlaps(*this, path);
}

Json ShardIndex::to_json() const {
  return {{"file", checkpoint::to_json(file)}, {"tensors", tensors_to_json(tensors)}};
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

}  // namespace lockstep::checkpoint
