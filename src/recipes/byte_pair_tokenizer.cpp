#include "recipes/byte_pair_tokenizer.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/json.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <queue>
#include <tuple>
#include <utility>

#include "recipes/unicode_class.h"

namespace lockstep::recipes {
namespace {

using std::filesystem::path;

constexpr char kEndOfText[] = "<|endoftext|>";
// A number of a token above this makes a table that no vocabulary needs.
constexpr int64_t kMostTokens = int64_t{1} << 20;

[[noreturn]] void refuse_file(const path& file, const std::string& reason) {
  throw ConfigError("tokenizer", fmt::format("{}: '{}'", reason, file.string()));
}

std::string read_text(const path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream.is_open() || stream.bad()) refuse_file(file, "cannot read the file of the tokenizer");
  return text;
}

Json parse_file(const path& file) {
  try {
    return Json::parse(read_text(file));
  } catch (const JsonError& error) {
    refuse_file(file, fmt::format("not JSON, {}", error.what()));
  }
}

// The files of vocabularies write a byte as a printable character: printable ones of Latin-1 as
// themselves, the others as the characters from U+0100 on, in order.
std::map<char32_t, char> bytes_of_characters() {
  std::map<char32_t, char> bytes;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes.emplace(is_printable ? static_cast<char32_t>(byte) : next++, static_cast<char>(byte));
  }
  return bytes;
}

// The bytes that a name in a vocabulary stands for; nullopt: a character stands for no byte.
std::optional<std::string> bytes_of_name(std::string_view name) {
  static const std::map<char32_t, char> kBytes = bytes_of_characters();
  std::string bytes;
  while (!name.empty()) {
    const auto lead = static_cast<unsigned char>(name[0]);
    char32_t code_point = lead;
    if (lead >= 0x80) {
      if (lead < 0xC2 || lead > 0xDF || name.size() < 2) return std::nullopt;
      code_point = (lead & 0x1FU) << 6 | (static_cast<unsigned char>(name[1]) & 0x3FU);
    }
    const auto found = kBytes.find(code_point);
    if (found == kBytes.end()) return std::nullopt;
    bytes += found->second;
    name.remove_prefix(lead < 0x80 ? 1 : 2);
  }
  return bytes;
}

int64_t token_number(const path& file, const std::string& name, const Json& value) {
  if (!value.is_integer_of<int64_t>()) refuse_file(file, fmt::format("the token '{}' has no number", name));
  const auto number = value.get<int64_t>();
  if (number < 0 || number >= kMostTokens) {
    refuse_file(file, fmt::format("the token '{}' has the number {}, and numbers are 0 to {}", name, number,
                                  kMostTokens - 1));
  }
  return number;
}

}  // namespace

// What the files say.
struct BytePairTokenizer::Source {
  path file;  // of the vocabulary, for errors
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  SpecialSearch::Specials special;
};

namespace {

std::vector<std::pair<std::string, int64_t>> vocabulary_of(const path& file, const Json& json) {
  if (!json.is_object()) refuse_file(file, "the vocabulary is no JSON object of tokens and their numbers");
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  for (const auto& [name, value] : json.items()) {
    vocabulary.emplace_back(name, token_number(file, name, value));
  }
  return vocabulary;
}

std::pair<std::string, std::string> merge_of_line(const path& file, std::string_view line) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    refuse_file(file, fmt::format("a merge is two tokens with a space between them, not '{}'", line));
  }
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

std::vector<std::pair<std::string, std::string>> merges_of_lines(const path& file, std::string_view text) {
  std::vector<std::pair<std::string, std::string>> merges;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    merges.push_back(merge_of_line(file, line));
  }
  return merges;
}

// A member that GPT-2's tokenizer does not have, or has with this value.
void require_plain(const path& file, const Json& part, const std::string& name, const Json& plain) {
  const Json* const value = part.find(name);
  if (value == nullptr || value->is_null() || *value == plain) return;
  refuse_file(file, fmt::format("not a tokenizer like GPT-2's: {} is {}", name,
                                value->dump({.replace_invalid = true}).substr(0, 60)));
}

void require_type(const path& file, const Json& whole, const std::string& part, const std::string& type) {
  const Json* const found = whole.find(part);
  const Json* const own = found == nullptr ? nullptr : found->find("type");
  if (own != nullptr && *own == Json(type)) return;
  refuse_file(file, fmt::format("not a tokenizer like GPT-2's: {} is not {}", part, type));
}

std::vector<std::pair<std::string, std::string>> merges_of_json(const path& file, const Json& json) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const Json& merge : json) {
    if (merge.is_string()) {
      merges.push_back(merge_of_line(file, merge.text()));
    } else {
      merges.push_back(merge.get<std::pair<std::string, std::string>>());
    }
  }
  return merges;
}

}  // namespace

BytePairTokenizer::BytePairTokenizer(const Source& source) : special_(source.special) {
  std::unordered_map<std::string, int64_t> numbers;
  int64_t size = 0;
  for (const auto& [name, number] : source.vocabulary) size = std::max(size, number + 1);
  for (const auto& [name, number] : special_) size = std::max(size, number + 1);
  tokens_.resize(static_cast<size_t>(size));
  for (const auto& [name, number] : source.vocabulary) {
    std::optional<std::string>& slot = tokens_[static_cast<size_t>(number)];
    if (slot) refuse_file(source.file, fmt::format("two tokens have the number {}", number));
    const auto special = special_.find(name);
    slot = special == special_.end() ? bytes_of_name(name) : name;
    if (!slot) refuse_file(source.file, fmt::format("the token '{}' stands for no bytes", name));
    if (special == special_.end()) numbers.emplace(name, number);
    if (slot->size() == 1) byte_tokens_[static_cast<unsigned char>(slot->front())] = number;
  }
  for (const auto& [name, number] : special_) {
    std::optional<std::string>& slot = tokens_[static_cast<size_t>(number)];
    if (slot && *slot != name) {
      refuse_file(source.file, fmt::format("two tokens have the number {}", number));
    }
    slot = name;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto& token = tokens_[static_cast<size_t>(byte_tokens_.at(static_cast<size_t>(byte)))];
    if (token && *token == std::string(1, static_cast<char>(byte))) continue;
    refuse_file(source.file, fmt::format("the vocabulary has no token for the byte 0x{:02X}", byte));
  }
  int64_t rank = 0;
  const auto number_of = [&](const std::string& name) {
    const auto found = numbers.find(name);
    if (found != numbers.end()) return found->second;
    refuse_file(source.file,
                fmt::format("a merge needs the token '{}', which is not in the vocabulary", name));
  };
  for (const auto& [left, right] : source.merges) {
    const auto pair = static_cast<uint64_t>(number_of(left)) << 32 | static_cast<uint64_t>(number_of(right));
    merges_.insert_or_assign(pair, Merge{rank++, number_of(left + right)});
  }
}

BytePairTokenizer BytePairTokenizer::read(const std::vector<path>& files) {
  if (files.size() == 1 && std::filesystem::is_directory(files[0])) {
    for (const auto& names :
         {std::vector<path>{"tokenizer.json"}, {"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}}) {
      std::vector<path> found;
      for (const path& name : names) {
        if (std::filesystem::exists(files[0] / name)) found.push_back(files[0] / name);
      }
      if (found.size() == names.size()) return read(found);
    }
    refuse_file(files[0], "no tokenizer.json, vocab.json with merges.txt, or encoder.json with vocab.bpe in");
  }
  if (files.empty() || files.size() > 2) {
    throw ConfigError(
        "tokenizer",
        fmt::format("a tokenizer is one folder, one file tokenizer.json, or two files, vocabulary "
                    "and merges: {} were given",
                    files.size()));
  }
  Source source{.file = files[0], .vocabulary = {}, .merges = {}, .special = {}};
  if (files.size() == 2) {
    // In either order: merges are no JSON.
    const bool is_first = path(files[0]).extension() == ".json";
    source.file = files[is_first ? 0 : 1];
    const path& merges = files[is_first ? 1 : 0];
    source.vocabulary = vocabulary_of(source.file, parse_file(source.file));
    source.merges = merges_of_lines(merges, read_text(merges));
    for (const auto& [name, number] : source.vocabulary) {
      if (name == kEndOfText) source.special.emplace(name, number);
    }
    return BytePairTokenizer(source);
  }
  try {
    const Json json = parse_file(source.file);
    require_type(source.file, json, "model", "BPE");
    require_type(source.file, json, "pre_tokenizer", "ByteLevel");
    require_plain(source.file, json, "normalizer", nullptr);
    const Json& before = json.at("pre_tokenizer");
    require_plain(source.file, before, "add_prefix_space", false);
    require_plain(source.file, before, "use_regex", true);
    const Json& model = json.at("model");
    for (const char* name : {"dropout", "unk_token"}) require_plain(source.file, model, name, nullptr);
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      require_plain(source.file, model, name, "");
    }
    for (const char* name : {"byte_fallback", "ignore_merges"})
      require_plain(source.file, model, name, false);
    source.vocabulary = vocabulary_of(source.file, model.at("vocab"));
    source.merges = merges_of_json(source.file, model.at("merges"));
    for (const Json& added : json.value("added_tokens", Json::array())) {
      for (const char* name : {"lstrip", "rstrip", "single_word"}) {
        require_plain(source.file, added, name, false);
      }
      const std::string name = added.at("content").text();
      if (name.empty()) refuse_file(source.file, "a special token is empty");
      source.special[name] = token_number(source.file, name, added.at("id"));
    }
  } catch (const JsonError& error) {
    refuse_file(source.file, fmt::format("not a tokenizer like GPT-2's, {}", error.what()));
  }
  return BytePairTokenizer(source);
}

std::optional<int64_t> BytePairTokenizer::end_of_text() const {
  const auto found = special_.find(kEndOfText);
  return found == special_.end() ? std::nullopt : std::optional(found->second);
}

const std::string& BytePairTokenizer::bytes_of(int64_t token) const {
  if (token < 0 || token >= size() || !tokens_[static_cast<size_t>(token)]) {
    throw ConfigError("tokenizer", fmt::format("there is no token with the number {}, the tokenizer has {}",
                                               token, size()));
  }
  return *tokens_[static_cast<size_t>(token)];
}

const BytePairTokenizer::Merge* BytePairTokenizer::merge_of(int64_t left, int64_t right) const {
  const auto found = merges_.find(static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right));
  return found == merges_.end() ? nullptr : &found->second;
}

// Merges the pair of the lowest rank, the leftmost first, until no pair can be merged. A heap of pairs and
// a list of the tokens that are left: long pieces take n log n steps.
void BytePairTokenizer::encode_piece(std::string_view piece, std::vector<int64_t>& tokens) const {
  constexpr size_t kNone = static_cast<size_t>(-1);
  struct Symbol {
    int64_t token;
    size_t previous;
    size_t next;
    bool is_merged = false;
  };
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    symbols.push_back({byte_tokens_[static_cast<unsigned char>(piece[i])], i == 0 ? kNone : i - 1,
                       i + 1 == piece.size() ? kNone : i + 1});
  }
  using Candidate = std::tuple<int64_t, size_t, int64_t, int64_t>;  // rank, place, left token, right token
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto push = [&](size_t left) {
    if (left == kNone || symbols[left].next == kNone) return;
    const int64_t a = symbols[left].token;
    const int64_t b = symbols[symbols[left].next].token;
    if (const Merge* merge = merge_of(a, b)) candidates.emplace(merge->rank, left, a, b);
  };
  for (size_t i = 0; i < symbols.size(); ++i) push(i);
  while (!candidates.empty()) {
    const auto [rank, left, a, b] = candidates.top();
    candidates.pop();
    Symbol& symbol = symbols[left];
    // Another merge may have taken one of the two.
    if (symbol.is_merged || symbol.token != a || symbol.next == kNone || symbols[symbol.next].token != b) {
      continue;
    }
    Symbol& right = symbols[symbol.next];
    symbol.token = merge_of(a, b)->token;
    right.is_merged = true;
    symbol.next = right.next;
    if (symbol.next != kNone) symbols[symbol.next].previous = left;
    push(symbol.previous);
    push(left);
  }
  for (size_t i = 0; i != kNone && i < symbols.size(); i = symbols[i].next)
    tokens.push_back(symbols[i].token);
}

void BytePairTokenizer::encode_ordinary(std::string_view text, std::vector<int64_t>& tokens) const {
  for (const std::string_view piece : gpt2_pieces(text)) encode_piece(piece, tokens);
}

SpecialSearch::SpecialSearch(const Specials& specials, std::string_view text) : text_(text) {
  for (const auto& special : specials) {
    places_.push_back({&special, 0});
    search(places_.back(), 0);
  }
}

void SpecialSearch::search(Place& place, size_t from) {
  ++searches_;
  place.begin = text_.find(place.special->first, from);
}

std::optional<SpecialSearch::Found> SpecialSearch::next(size_t from) {
  const Place* first = nullptr;
  for (Place& place : places_) {
    // Kept from call to call: one that is far away, or not there, is not searched again.
    if (place.begin < from) search(place, from);
    if (place.begin == std::string_view::npos) continue;
    const bool is_longer = first != nullptr && place.begin == first->begin &&
                           place.special->first.size() > first->special->first.size();
    if (first == nullptr || place.begin < first->begin || is_longer) first = &place;
  }
  if (first == nullptr) return std::nullopt;
  return Found{first->begin, first->begin + first->special->first.size(), first->special->second};
}

std::vector<int64_t> BytePairTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> tokens;
  SpecialSearch specials(special_, text);
  for (size_t at = 0; at < text.size();) {
    const std::optional<SpecialSearch::Found> special = specials.next(at);
    const size_t end = special ? special->begin : text.size();
    encode_ordinary(text.substr(at, end - at), tokens);
    if (!special) break;
    tokens.push_back(special->token);
    at = special->end;
  }
  return tokens;
}

namespace {

// The length of the contraction at the beginning, 's 't 're 've 'm 'll or 'd; 0: there is none.
size_t contraction_bytes(std::string_view text) {
  for (const std::string_view each : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(each)) return each.size();
  }
  return 0;
}

// The bytes of the characters of one class at the beginning.
size_t run_bytes(std::string_view text, UnicodeClass kind) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Utf8Character character = first_character(text.substr(bytes));
    if (character.kind != kind) break;
    bytes += character.bytes;
  }
  return bytes;
}

// GPT-2's regular expression, at one place:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t piece_bytes(std::string_view text) {
  if (const size_t bytes = contraction_bytes(text)) return bytes;
  const size_t space = text.front() == ' ' ? 1 : 0;
  if (space < text.size()) {
    const UnicodeClass kind = first_character(text.substr(space)).kind;
    if (kind != UnicodeClass::kSpace) return space + run_bytes(text.substr(space), kind);
  }
  const size_t spaces = run_bytes(text, UnicodeClass::kSpace);
  if (spaces == text.size()) return spaces;
  // The last one belongs to what follows, unless it is the only one.
  size_t last = 0;
  for (size_t i = 0; i < spaces; i += first_character(text.substr(i)).bytes) last = i;
  return last > 0 ? last : spaces;
}

}  // namespace

std::vector<std::string_view> gpt2_pieces(std::string_view text) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t bytes = piece_bytes(text);
    pieces.push_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return pieces;
}

}  // namespace lockstep::recipes
