#include <lockstep/error.h>

#include <fmt/format.h>

namespace lockstep {

Error::Error(std::string_view component, std::string_view sentence)
    : std::runtime_error(fmt::format("[{}] {}", component, sentence)) {}

CommError::CommError(std::string_view component, std::string_view sentence, Recovery recovery,
                     std::optional<int> failed_rank)
    : Error(component, sentence), recovery_(recovery), failed_rank_(failed_rank) {}

}  // namespace lockstep
