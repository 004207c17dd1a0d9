#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/checksum.h"
#include "checkpoint/dtype.h"
#include "checkpoint/error.h"
#include "checkpoint/json_text.h"

namespace lockstep::checkpoint {
namespace {

constexpr char kFormat[] = "lockstep-checkpoint";
// The text begins with the checksum of what follows it: `{"checksum":"<32 digits>",`.
constexpr std::string_view kOpening = "{\"checksum\":\"";
constexpr std::string_view kClosing = "\",";
constexpr size_t kPrefixBytes = kOpening.size() + kChecksumDigits + kClosing.size();

// JSON has no infinity and no NaN; written as null they would come back as something else.
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

Json files_to_json(const std::vector<FileEntry>& files) {
  Json result = Json::array();
  for (const FileEntry& file : files) result.push_back(to_json(file));
  return result;
}

void check_text(std::string_view text, const std::filesystem::path& path) {
  const bool shaped = text.size() > kPrefixBytes && text.substr(0, kOpening.size()) == kOpening &&
                      text.substr(kPrefixBytes - kClosing.size(), kClosing.size()) == kClosing;
  if (!shaped) {
    throw CheckpointError(fmt::format("'{}' is broken: it does not begin with a checksum: {} bytes",
                                      path.string(), text.size()));
  }
  if (text.substr(kOpening.size(), kChecksumDigits) != checksum_of(text.substr(kPrefixBytes))) {
    throw CheckpointError(
        fmt::format("'{}' is broken: it was cut or changed after it was written (checksum)", path.string()));
  }
}

// A hostile manifest must not lead out of its folder.
bool is_file_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

std::vector<FileEntry> parse_files(const JsonObject& object, const std::filesystem::path& path) {
  std::vector<FileEntry> files;
  for (const Json& value : object.array("files")) {
    files.push_back(file_from_json(value, path, fmt::format("files[{}]", files.size())));
    const std::string& name = files.back().name;
    if (std::count_if(files.begin(), files.end(), [&](const FileEntry& f) { return f.name == name; }) != 1) {
      object.fail("files", fmt::format("a name is there twice: {}", name));
    }
  }
  return files;
}

// Each tensor by itself: its pieces are all of it, once, in order.
void check_tiling(const TensorEntry& tensor, const JsonObject& place) {
  int64_t next = 0;
  for (const Piece& piece : tensor.pieces) {
    if (piece.first != next) {
      place.fail("pieces",
                 fmt::format("elements from {} on are missing or there twice", std::min(piece.first, next)));
    }
    if (piece.count > tensor.numel() - next) place.fail("pieces", "more elements than the tensor has");
    next += piece.count;
  }
  if (next != tensor.numel()) place.fail("pieces", fmt::format("elements from {} on are missing", next));
}

struct Extent {
  int file;
  int64_t begin;
  int64_t end;
  const std::string* tensor;
};

// All tensors together: inside their files, and no byte is of two tensors.
void check_extents(const Manifest& manifest, const JsonObject& root) {
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : manifest.tensors) {
    const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    for (const Piece& piece : tensor.pieces) {
      if (piece.file >= static_cast<int>(manifest.files.size())) root.fail("tensors." + name, "no such file");
      const int64_t file_bytes = manifest.files[static_cast<size_t>(piece.file)].bytes;
      if (piece.offset > file_bytes || piece.count * item > file_bytes - piece.offset) {
        root.fail("tensors." + name, fmt::format("reaches beyond the end of its file: bytes {} + {} of {}",
                                                 piece.offset, piece.count * item, file_bytes));
      }
      if (piece.count > 0)
        extents.push_back({piece.file, piece.offset, piece.offset + piece.count * item, &name});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].file == extents[i - 1].file && extents[i].begin < extents[i - 1].end) {
      root.fail("tensors", fmt::format("{} and {} overlap", *extents[i - 1].tensor, *extents[i].tensor));
    }
  }
}

}  // namespace

int64_t TensorEntry::numel() const {
  int64_t result = 1;
  for (const int64_t size : shape) result *= size;
  return result;
}

Json to_json(const FileEntry& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"header_checksum", file.header_checksum}};
}

Json to_json(const TensorEntry& tensor) {
  Json pieces = Json::array();
  for (const Piece& piece : tensor.pieces) {
    pieces.push_back({{"file", piece.file},
                      {"offset", piece.offset},
                      {"first", piece.first},
                      {"count", piece.count},
                      {"checksum", piece.checksum}});
  }
  return {
      {"dtype", dtype_name(tensor.dtype).value()}, {"shape", tensor.shape}, {"pieces", std::move(pieces)}};
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
  if (!dtype_of(dtype)) object.fail("dtype", fmt::format("unknown: {}", dtype));
  tensor.dtype = *dtype_of(dtype);
  tensor.shape = object.integers("shape", kMaxDimensions);
  if (!shape_bytes(tensor.shape, static_cast<int64_t>(c10::elementSize(tensor.dtype))))
    object.fail("shape", "too large");
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

int64_t Manifest::total_bytes() const {
  int64_t bytes = 0;
  for (const FileEntry& file : files) bytes += file.bytes;
  return bytes;
}

std::string Manifest::to_text() const {
  check_finite(metadata, "metadata");
  Json tensors_json = Json::object();
  for (const auto& [name, tensor] : tensors) tensors_json[name] = to_json(tensor);
  Json root = {{"format", kFormat},
               {"version", kFormatVersion},
               {"sequence", sequence},
               {"step", step},
               {"epoch", epoch},
               {"world_size", world_size},
               {"time", time},
               {"lockstep", lockstep},
               {"libtorch", libtorch},
               {"metadata", metadata},
               {"files", files_to_json(files)},
               {"tensors", std::move(tensors_json)}};
  if (metric && std::isfinite(*metric)) root["metric"] = *metric;
  if (best) root["best"] = true;
  try {
    const std::string rest = root.dump(1).substr(1);
    return fmt::format("{}{}{}{}\n", kOpening, checksum_of(rest + "\n"), kClosing, rest);
  } catch (const JsonError& error) {
    throw ConfigError("checkpoint",
                      fmt::format("a name or the metadata cannot be written as JSON: {}", error.what()));
  }
}

Manifest Manifest::parse(std::string_view text, const std::filesystem::path& path) {
  check_text(text, path);
  const Json root_json = parse_json(text, path);
  const JsonObject root(root_json, path, "");
  if (root.text("format") != kFormat) root.fail("format", "not a checkpoint of Lockstep");
  if (root.integer("version") != kFormatVersion) {
    root.fail("version",
              fmt::format("{} where this Lockstep reads {}", root.integer("version"), kFormatVersion));
  }
  Manifest manifest;
  manifest.sequence = root.integer("sequence");
  manifest.step = root.integer("step");
  manifest.epoch = root.integer("epoch");
  const int64_t world_size = root.integer("world_size", 1);
  if (world_size > std::numeric_limits<int>::max()) root.fail("world_size", "too large");
  manifest.world_size = static_cast<int>(world_size);
  if (root.has("metric")) manifest.metric = root.number("metric");
  if (const Json* const best = root_json.find("best")) {
    if (!best->is_boolean()) root.fail("best", "neither true nor false");
    manifest.best = best->get<bool>();
  }
  manifest.time = root.text("time");
  manifest.lockstep = root.text("lockstep");
  manifest.libtorch = root.text("libtorch");
  manifest.metadata = root.object("metadata");
  manifest.files = parse_files(root, path);
  for (const auto& [name, value] : root.object("tensors").items()) {
    const JsonObject place(value, path, "tensors." + name);
    TensorEntry tensor = tensor_from_json(value, path, "tensors." + name);
    check_tiling(tensor, place);
    manifest.tensors.emplace(name, std::move(tensor));
  }
  check_extents(manifest, root);
  return manifest;
}

}  // namespace lockstep::checkpoint
