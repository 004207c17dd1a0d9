#pragma once

#include <c10/core/ScalarType.h>
#include <mpi.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace lockstep::comm {

// MPI's name of a dtype. Half and bfloat16, which MPI does not know, are MPI_UINT16_T,
// with operations of our own.
MPI_Datatype mpi_datatype(at::ScalarType dtype);

// SUM, PRODUCT, MIN or MAX for tensors of this dtype. Half and bfloat16 are combined
// in float and rounded after each step.
MPI_Op mpi_operation(const c10d::ReduceOp& op, at::ScalarType dtype);

}  // namespace lockstep::comm
