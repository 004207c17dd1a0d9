#include "comm/failure.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <string>

namespace lockstep::comm {
namespace {

bool is_timeout(std::string_view text) {
  return text.find("imed out") != text.npos || text.find("imeout") != text.npos;
}

std::exception_ptr refused(const std::exception& error, const OperationContext& context) {
  return std::make_exception_ptr(
      ConfigError("comm", fmt::format("{} on rank {} of {}: backend {} refuses it: {}", context.operation,
                                      context.rank, context.size, context.backend, first_line_of(error))));
}

std::exception_ptr failed(const std::exception& error, const OperationContext& context) {
  const std::string line = first_line_of(error);
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
  } catch (const c10::ValueError& error) {
    return refused(error, context);
  } catch (const c10::TypeError& error) {
    return refused(error, context);
  } catch (const c10::NotImplementedError& error) {
    return refused(error, context);
  } catch (const std::exception& error) {
    return failed(error, context);
  }
}

}  // namespace lockstep::comm
