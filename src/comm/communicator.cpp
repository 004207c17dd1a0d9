#include <lockstep/communicator.h>

namespace lockstep {

class Communicator::Impl {};

Communicator::Communicator() = default;

}  // namespace lockstep
