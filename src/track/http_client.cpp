#include "track/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace lockstep::track {
namespace {

constexpr long kConnectTimeout_s = 5;
constexpr long kSilence_s = 30;
// An upload makes progress when the server takes at least this much of it.
constexpr curl_off_t kProgressBytes = 64 << 10;
// Answers of MLflow have a few hundred bytes. An endless one must not fill the memory.
constexpr size_t kMaxAnswerBytes = size_t{8} << 20;

// The functions of libcurl. The library is loaded when a program first uses a server: it brings thirty
// others, programs without a server start faster, and the system's library gets the system's security
// updates.
class Curl {
 public:
  static const Curl& get() {
    static const Curl curl;
    return curl;
  }

  decltype(&curl_global_init) global_init = load<decltype(&curl_global_init)>("curl_global_init");
  decltype(&curl_easy_init) easy_init = load<decltype(&curl_easy_init)>("curl_easy_init");
  decltype(&curl_easy_cleanup) easy_cleanup = load<decltype(&curl_easy_cleanup)>("curl_easy_cleanup");
  decltype(&curl_easy_reset) easy_reset = load<decltype(&curl_easy_reset)>("curl_easy_reset");
  decltype(&curl_easy_setopt) easy_setopt = load<decltype(&curl_easy_setopt)>("curl_easy_setopt");
  decltype(&curl_easy_getinfo) easy_getinfo = load<decltype(&curl_easy_getinfo)>("curl_easy_getinfo");
  decltype(&curl_easy_perform) easy_perform = load<decltype(&curl_easy_perform)>("curl_easy_perform");
  decltype(&curl_easy_strerror) easy_strerror = load<decltype(&curl_easy_strerror)>("curl_easy_strerror");
  decltype(&curl_slist_append) slist_append = load<decltype(&curl_slist_append)>("curl_slist_append");
  decltype(&curl_slist_free_all) slist_free_all = load<decltype(&curl_slist_free_all)>("curl_slist_free_all");

 private:
  Curl() { global_init(CURL_GLOBAL_DEFAULT); }

  template <typename Function>
  static Function load(const char* name) {
    // The number of libcurl's binary interface since 2006. Never unloaded.
    static void* const library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void* const function = library == nullptr ? nullptr : ::dlsym(library, name);
    if (function == nullptr) {
      const char* const reason = ::dlerror();
      throw ConfigError("track", fmt::format("a server of MLflow needs libcurl (Debian's package libcurl4), "
                                             "which does not load: {}",
                                             reason == nullptr ? "libcurl.so.4" : reason));
    }
    return reinterpret_cast<Function>(function);
  }
};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct FreeList {
  void operator()(curl_slist* list) const { Curl::get().slist_free_all(list); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;
using HeaderList = std::unique_ptr<curl_slist, FreeList>;

// A return value other than the number of bytes makes libcurl end the request.
size_t keep_body(char* data, size_t size, size_t count, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (size * count > kMaxAnswerBytes - text.size()) return 0;
  text.append(data, size * count);
  return size * count;
}

void add_header(HeaderList& list, const std::string& line) {
  list.reset(Curl::get().slist_append(list.release(), line.c_str()));
}

HeaderList headers_of(const HttpRequest& request, const Credentials& credentials) {
  HeaderList list;
  if (!request.content_type.empty()) add_header(list, "Content-Type: " + request.content_type);
  // Do not send "Expect: 100-continue" before a large body: some servers never answer it.
  add_header(list, "Expect:");
  if (!credentials.token.empty()) add_header(list, "Authorization: Bearer " + credentials.token);
  return list;
}

File open_file(const std::filesystem::path& path) {
  File file(std::fopen(path.c_str(), "rbe"));
  if (!file) {
    throw ConfigError("track", fmt::format("cannot read '{}': {}", path.string(), std::strerror(errno)));
  }
  return file;
}

}  // namespace

struct HttpClient::Handle {
  CURL* curl = nullptr;
  std::array<char, CURL_ERROR_SIZE> reason{};

  template <typename Value>
  void set(CURLoption option, Value value) {
    Curl::get().easy_setopt(curl, option, value);
  }

  std::string why(CURLcode result) {
    std::string text = reason[0] != '\0' ? reason.data() : Curl::get().easy_strerror(result);
    long system = 0;
    Curl::get().easy_getinfo(curl, CURLINFO_OS_ERRNO, &system);
    return system == 0 ? text : fmt::format("{}: {}", text, std::strerror(static_cast<int>(system)));
  }
};

// A request in progress.
struct HttpClient::Transfer {
  HttpClient& client;
  const bool is_file;
  const Clock::time_point start = Clock::now();
  Clock::time_point last_byte = start;
  curl_off_t moved = 0;    // bytes in both directions
  curl_off_t counted = 0;  // bytes of the file at the last extension of the deadline
  Clock::duration upload_time = Clock::duration(0);  // 0: the upload is not finished
  bool was_answer_given_time = false;
  bool is_silent = false;

  // libcurl calls this whenever bytes move, and about once a second. Not 0: ends the request.
  static int check(void* transfer, curl_off_t, curl_off_t received, curl_off_t to_send, curl_off_t sent) {
    return static_cast<Transfer*>(transfer)->check(received, to_send, sent) ? 0 : 1;
  }

  bool check(curl_off_t received, curl_off_t to_send, curl_off_t sent) {
    if (!is_file) return !client.has_given_up();
    const Clock::time_point now = Clock::now();
    if (received + sent != moved) {
      moved = received + sent;
      last_byte = now;
    }
    if (sent - counted >= kProgressBytes) {
      counted = sent;
      client.extend_deadline(Clock::duration::zero());
    }
    if (to_send > 0 && sent == to_send) {
      if (upload_time == Clock::duration::zero()) upload_time = now - start;
      if (!was_answer_given_time) was_answer_given_time = client.extend_deadline(upload_time);
    }
    is_silent = now - last_byte > std::chrono::seconds(kSilence_s) + upload_time;
    return !is_silent && !client.has_given_up();
  }
};

HttpClient::HttpClient(Credentials credentials)
    : credentials_(std::move(credentials)), handle_(std::make_unique<Handle>()) {
  handle_->curl = Curl::get().easy_init();
  if (handle_->curl == nullptr) throw ConfigError("track", "libcurl cannot be used: curl_easy_init failed");
}

HttpClient::~HttpClient() { Curl::get().easy_cleanup(handle_->curl); }

bool HttpClient::extend_deadline(Clock::duration more) {
  const Clock::duration extension = extension_;
  if (extension == Clock::duration::zero()) return false;
  deadline_ = std::max(deadline_.load(), Clock::now() + extension + more);
  return true;
}

HttpResponse HttpClient::send(const HttpRequest& request) {
  Handle& handle = *handle_;
  Curl::get().easy_reset(handle.curl);  // keeps the connection
  handle.reason[0] = '\0';
  handle.set(CURLOPT_ERRORBUFFER, handle.reason.data());
  handle.set(CURLOPT_URL, request.url.c_str());
  handle.set(CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
  // A name server that does not answer must not delay the end of the program.
  handle.set(CURLOPT_QUICK_EXIT, 1L);
#endif
  handle.set(CURLOPT_USERAGENT, "lockstep");
  handle.set(CURLOPT_CONNECTTIMEOUT, kConnectTimeout_s);
  Transfer transfer{.client = *this, .is_file = !request.file.empty()};
  if (!transfer.is_file) {
    handle.set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    handle.set(CURLOPT_LOW_SPEED_TIME, kSilence_s);
  }
  handle.set(CURLOPT_NOPROGRESS, 0L);
  handle.set(CURLOPT_XFERINFOFUNCTION, static_cast<curl_xferinfo_callback>(&Transfer::check));
  handle.set(CURLOPT_XFERINFODATA, static_cast<void*>(&transfer));
  if (credentials_.token.empty() && !credentials_.username.empty()) {
    handle.set(CURLOPT_USERNAME, credentials_.username.c_str());
    handle.set(CURLOPT_PASSWORD, credentials_.password.c_str());
  }

  File file;
  if (!request.file.empty()) {
    file = open_file(request.file);
    handle.set(CURLOPT_UPLOAD, 1L);
    handle.set(CURLOPT_READDATA, static_cast<void*>(file.get()));
    handle.set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(std::filesystem::file_size(request.file)));
  } else if (request.method != "GET") {
    handle.set(CURLOPT_POSTFIELDS, request.body.data());
    handle.set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  handle.set(CURLOPT_CUSTOMREQUEST, request.method.c_str());

  const HeaderList headers = headers_of(request, credentials_);
  handle.set(CURLOPT_HTTPHEADER, headers.get());
  HttpResponse response;
  handle.set(CURLOPT_WRITEFUNCTION, &keep_body);
  handle.set(CURLOPT_WRITEDATA, static_cast<void*>(&response.body));

  const CURLcode result = Curl::get().easy_perform(handle.curl);
  if (result == CURLE_ABORTED_BY_CALLBACK && transfer.is_silent) {
    throw CommError("track", "the upload makes no progress and the server does not answer",
                    CommError::Recovery::kRebuild);
  }
  if (result == CURLE_ABORTED_BY_CALLBACK) {
    throw CommError("track", "the server has not answered in time", CommError::Recovery::kFatal);
  }
  if (result == CURLE_WRITE_ERROR) {
    throw ConfigError("track",
                      fmt::format("the server's answer is larger than {} MiB", kMaxAnswerBytes >> 20));
  }
  if (result != CURLE_OK) throw CommError("track", handle.why(result), CommError::Recovery::kRebuild);
  long status = 0;
  Curl::get().easy_getinfo(handle.curl, CURLINFO_RESPONSE_CODE, &status);
  response.status = static_cast<int>(status);
  // The requests after a file need time, too.
  if (transfer.is_file) extend_deadline(Clock::duration::zero());
  return response;
}

std::string url_encoded(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos;
    result += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<uint8_t>(c));
  }
  return result;
}

}  // namespace lockstep::track
