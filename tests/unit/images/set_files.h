#pragma once

// Small image sets as files, written with the usual libraries where there is one.

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>
#include <lockstep/image_files.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string gzip(const std::string& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("deflateInit2");
  }
  std::string packed(deflateBound(&stream, bytes.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int status = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("deflate");
  return packed;
}

// An IDX file of bytes.
inline std::string idx(std::initializer_list<uint32_t> shape, const std::string& data) {
  std::string bytes{0, 0, 8, static_cast<char>(shape.size())};
  for (const uint32_t size : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift);
  }
  return bytes + data;
}

// Bytes in steps of a prime number, so that no two rows are equal.
inline std::string pattern(size_t count, int seed = 0) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>((i * 31 + i / 251 + 97 * seed) & 0xff);
  return bytes;
}

inline std::string labels_up_to(int count, int num_classes) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(i % num_classes);
  return bytes;
}

using NamedBytes = std::vector<std::pair<std::string, std::string>>;

// A tar archive with these files; filter: 0 is none, otherwise a filter of libarchive.
inline std::string tar(const NamedBytes& files, int filter = ARCHIVE_FILTER_NONE) {
  std::string bytes(1 << 20, '\0');
  for (const auto& [name, content] : files) bytes.resize(bytes.size() + 2 * content.size());
  size_t used = 0;
  struct archive* out = archive_write_new();
  archive_write_add_filter(out, filter);
  archive_write_set_format_pax_restricted(out);
  if (archive_write_open_memory(out, bytes.data(), bytes.size(), &used) != ARCHIVE_OK) {
    throw std::runtime_error(archive_error_string(out));
  }
  for (const auto& [name, content] : files) {
    struct archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    if (archive_write_header(out, entry) != ARCHIVE_OK ||
        archive_write_data(out, content.data(), content.size()) < 0) {
      throw std::runtime_error(archive_error_string(out));
    }
    archive_entry_free(entry);
  }
  if (archive_write_close(out) != ARCHIVE_OK) throw std::runtime_error(archive_error_string(out));
  archive_write_free(out);
  bytes.resize(used);
  return bytes;
}

// Records of CIFAR-10 (one label byte) or CIFAR-100 (two; the coarse label is fine / 5).
inline std::string cifar_records(int count, int num_classes, int seed = 0) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    if (num_classes == 100) bytes += static_cast<char>(i % num_classes / 5);
    bytes += static_cast<char>(i % num_classes);
    bytes += pattern(3072, seed + i);
  }
  return bytes;
}

// --- CIFAR's Python version: pickles as Python 2 wrote them, in protocol 2 ---

inline std::string pickled_text(const std::string& text) {
  return "U" + std::string(1, static_cast<char>(text.size())) + text;
}

inline std::string pickled_list(const std::vector<std::string>& items) {
  std::string list = "](";
  for (const std::string& item : items) list += item;
  return list + "e";
}

inline std::string pickled_number(uint32_t number) {
  std::string bytes = "J";
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

// numpy.ndarray of unsigned bytes, [count, width].
inline std::string pickled_array(uint32_t count, uint32_t width, const std::string& data,
                                 const std::string& dtype = "u1") {
  std::string length = pickled_number(static_cast<uint32_t>(data.size()));
  length[0] = 'T';
  const std::string zero(1, '\0');
  return "cnumpy.core.multiarray\n_reconstruct\nq\x03(cnumpy\nndarray\nK" + zero +
         "\x85U\x01"
         "btRq\x04(K\x01" +
         pickled_number(count) + pickled_number(width) + "\x86" + "cnumpy\ndtype\n" + pickled_text(dtype) +
         "K" + zero + "K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK" + zero + "tb\x89" +
         length + data + "tb";
}

using PickledItems = std::vector<std::pair<std::string, std::string>>;

inline std::string pickled_dict(const PickledItems& items) {
  std::string bytes = "\x80\x02}q\x01(";
  for (const auto& [key, value] : items) bytes += pickled_text(key) + value;
  return bytes + "u.";
}

// The same images and labels as cifar_records().
inline PickledItems cifar_pickle(int count, int num_classes, int seed = 0) {
  std::string pixels;
  std::vector<std::string> labels, coarse;
  for (int i = 0; i < count; ++i) {
    pixels += pattern(3072, seed + i);
    labels.push_back(pickled_number(static_cast<uint32_t>(i % num_classes)));
    coarse.push_back(pickled_number(static_cast<uint32_t>(i % num_classes / 5)));
  }
  PickledItems items = {{"filenames", pickled_list({pickled_text("a.png")})},
                        {"data", pickled_array(static_cast<uint32_t>(count), 3072, pixels)}};
  if (num_classes != 100) {
    items.emplace_back("labels", pickled_list(labels));
  } else {
    items.emplace_back("fine_labels", pickled_list(labels));
    items.emplace_back("coarse_labels", pickled_list(coarse));
  }
  return items;
}

inline std::string pickled_names(const std::string& word, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(pickled_text(word + std::to_string(i)));
  return pickled_list(names);
}

inline std::string pixels_of(const ImageSource& source, int64_t index) {
  std::vector<uint8_t> scratch;
  const ImageView view = source.image(index, scratch);
  return {reinterpret_cast<const char*>(view.pixels), static_cast<size_t>(view.channels) *
                                                          static_cast<size_t>(view.height) *
                                                          static_cast<size_t>(view.width)};
}

// A set of `count` images of this shape, one after the other in `pixels`, with the labels 0,
// 1, 2, 0, ...
inline void expect_colour_set(const ImageSource& set, const ImageView& shape, const std::string& pixels,
                              int64_t count) {
  ASSERT_EQ(set.size(), count);
  EXPECT_EQ(set.num_classes(), 3);
  std::vector<uint8_t> scratch;
  const ImageView view = set.image(0, scratch);
  EXPECT_EQ(view.channels, shape.channels);
  EXPECT_EQ(view.height, shape.height);
  EXPECT_EQ(view.width, shape.width);
  EXPECT_EQ(view.layout, shape.layout);
  const size_t image_bytes = pixels.size() / static_cast<size_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    EXPECT_EQ(set.label(i), i % 3);
    EXPECT_EQ(pixels_of(set, i), pixels.substr(static_cast<size_t>(i) * image_bytes, image_bytes));
  }
}

// --- tensors as safetensors and .npy files ---

template <typename Integer>
std::string integers(std::initializer_list<Integer> values) {
  std::string bytes(values.size() * sizeof(Integer), '\0');
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

struct NamedTensor {
  std::string name, dtype, shape, data;
};

inline std::string safetensors(const std::vector<NamedTensor>& tensors) {
  std::string header, data;
  for (const NamedTensor& tensor : tensors) {
    header += (header.empty() ? "{\"" : ",\"") + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":" + tensor.shape + ",\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += tensor.data;
    header += std::to_string(data.size()) + "]}";
  }
  header += "}";
  return integers<uint64_t>({header.size()}) + header + data;
}

inline std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                       const std::string& fortran_order = "False") {
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + fortran_order + ", 'shape': " + shape + ", }";
  header.resize(118 - 10, ' ');
  header += "\n";
  return "\x93NUMPY" + std::string("\x01\x00", 2) +
         integers<uint16_t>({static_cast<uint16_t>(header.size())}) + header + data;
}

}  // namespace lockstep::test
