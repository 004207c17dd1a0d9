#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <exception>
#include <functional>
#include <vector>

namespace lockstep::test {

using RankFunction = std::function<void(int rank, c10::intrusive_ptr<c10d::Store> store)>;

// Runs `function` as ranks 0 .. num_ranks - 1 in as many threads over one
// in-memory store. Blocks until all have returned, then rethrows the exception
// that was thrown first in time: the later ones are mostly its consequences.
void run_ranks(int num_ranks, const RankFunction& function);

// The same, but hands back what each rank threw, null where it returned.
std::vector<std::exception_ptr> try_ranks(int num_ranks, const RankFunction& function);

}  // namespace lockstep::test
