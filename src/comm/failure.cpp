#include "comm/failure.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <string>

namespace lockstep::comm {
namespace {

std::string first_line(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

bool is_timeout(std::string_view text) {
  return text.find("imed out") != text.npos || text.find("imeout") != text.npos;
}

std::exception_ptr refused(const std::string& what, const OperationContext& context) {
  return std::make_exception_ptr(
      ConfigError("comm", fmt::format("{} on rank {} of {}: backend {} refuses it: {}", context.operation,
                                      context.rank, context.size, context.backend, first_line(what))));
}

std::exception_ptr failed(const std::string& what, const OperationContext& context) {
  const std::string line = first_line(what);
  if (is_timeout(line)) {
    return std::make_exception_ptr(TimeoutError(
        "comm",
        fmt::format("{} timed out on rank {} of {}, backend {}, timeout {} ms: a peer did not take part: {}",
                    context.operation, context.rank, context.size, context.backend, context.timeout.count(),
                    line),
        CommError::Recovery::kRebuild));
  }
  return std::make_exception_ptr(
      CommError("comm",
                fmt::format("{} failed on rank {} of {}, backend {}: {}", context.operation, context.rank,
                            context.size, context.backend, line),
                CommError::Recovery::kRebuild));
}

}  // namespace

std::exception_ptr translate_failure(std::exception_ptr failure, const OperationContext& context) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error&) {
    return failure;
  } catch (const c10::DistError& error) {
    return failed(error.what_without_backtrace(), context);
  } catch (const c10::ValueError& error) {
    return refused(error.what_without_backtrace(), context);
  } catch (const c10::TypeError& error) {
    return refused(error.what_without_backtrace(), context);
  } catch (const c10::NotImplementedError& error) {
    return refused(error.what_without_backtrace(), context);
  } catch (const c10::Error& error) {
    return failed(error.what_without_backtrace(), context);
  } catch (const std::exception& error) {
    return failed(error.what(), context);
  }
}

}  // namespace lockstep::comm
