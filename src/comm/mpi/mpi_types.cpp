#include "comm/mpi/mpi_types.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>

#include "comm/mpi/mpi_error.h"

namespace lockstep::comm {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

template <RedOp op>
float combine(float a, float b) {
  switch (op) {
    case RedOp::SUM: return a + b;
    case RedOp::PRODUCT: return a * b;
    case RedOp::MIN: return std::min(a, b);
    default: return std::max(a, b);
  }
}

template <typename Narrow, RedOp op>
void combine_all(void* in, void* in_out, int* count, MPI_Datatype*) {
  const auto* from = static_cast<const Narrow*>(in);
  auto* to = static_cast<Narrow*>(in_out);
  for (int i = 0; i < *count; ++i) {
    to[i] = combine<op>(static_cast<float>(from[i]), static_cast<float>(to[i]));
  }
}

// One MPI_Op for each pair, made once and kept: MPI has few of them.
template <typename Narrow, RedOp op>
MPI_Op narrow_operation() {
  static const MPI_Op operation = [] {
    MPI_Op made = MPI_OP_NULL;
    check_mpi(MPI_Op_create(&combine_all<Narrow, op>, /*commute=*/1, &made), "MPI_Op_create");
    return made;
  }();
  return operation;
}

template <typename Narrow>
MPI_Op narrow_operation(RedOp op) {
  switch (op) {
    case RedOp::SUM: return narrow_operation<Narrow, RedOp::SUM>();
    case RedOp::PRODUCT: return narrow_operation<Narrow, RedOp::PRODUCT>();
    case RedOp::MIN: return narrow_operation<Narrow, RedOp::MIN>();
    case RedOp::MAX: return narrow_operation<Narrow, RedOp::MAX>();
    default: C10_THROW_ERROR(NotImplementedError, "reduction");
  }
}

}  // namespace

MPI_Datatype mpi_datatype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return MPI_FLOAT;
    case at::kDouble: return MPI_DOUBLE;
    case at::kByte: return MPI_UINT8_T;
    case at::kChar: return MPI_INT8_T;
    case at::kInt: return MPI_INT32_T;
    case at::kLong: return MPI_INT64_T;
    case at::kHalf:
    case at::kBFloat16: return MPI_UINT16_T;
    default: C10_THROW_ERROR(TypeError, c10::str("dtype ", at::toString(dtype)));
  }
}

MPI_Op mpi_operation(const c10d::ReduceOp& op, at::ScalarType dtype) {
  if (dtype == at::kHalf) {
    return narrow_operation<c10::Half>(op.op_);
  }
  if (dtype == at::kBFloat16) {
    return narrow_operation<c10::BFloat16>(op.op_);
  }
  switch (op.op_) {
    case RedOp::SUM: return MPI_SUM;
    case RedOp::PRODUCT: return MPI_PROD;
    case RedOp::MIN: return MPI_MIN;
    case RedOp::MAX: return MPI_MAX;
    default: C10_THROW_ERROR(NotImplementedError, "reduction");
  }
}

}  // namespace lockstep::comm
