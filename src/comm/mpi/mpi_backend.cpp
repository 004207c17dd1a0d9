// liblockstep_mpi.so: a c10d backend over nonblocking MPI calls.

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <mpi.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "comm/plugin.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using OpType = c10d::OpType;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Throws a std::runtime_error with MPI's text and the call, unless it succeeded.
void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(fmt::format("{}: {}", call, text));
}

// --- types and operations ---

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

// One MPI_Op for each pair, made once and never freed: MPI has few of them.
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

// MPI's name of a dtype. MPI has no half and bfloat16: they are MPI_UINT16_T, with operations of this
// file.
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

// SUM, PRODUCT, MIN or MAX for tensors of this dtype. Half and bfloat16 are combined in float and
// rounded after each step.
MPI_Op mpi_operation(const c10d::ReduceOp& op, at::ScalarType dtype) {
  if (dtype == at::kHalf) return narrow_operation<c10::Half>(op.op_);
  if (dtype == at::kBFloat16) return narrow_operation<c10::BFloat16>(op.op_);
  switch (op.op_) {
    case RedOp::SUM: return MPI_SUM;
    case RedOp::PRODUCT: return MPI_PROD;
    case RedOp::MIN: return MPI_MIN;
    case RedOp::MAX: return MPI_MAX;
    default: C10_THROW_ERROR(NotImplementedError, "reduction");
  }
}

// --- the communicator ---

// MPI_Finalize waits for all ranks, so it is skipped after a failure: ranks may be gone.
std::atomic<bool>& may_finalize() {
  static std::atomic<bool> flag = true;
  return flag;
}

void finalize() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && may_finalize()) {
    MPI_Finalize();
  }
}

// If the program has initialised MPI, its error handlers stay, and it finalises MPI.
void initialize() {
  int initialized = 0;
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized != 0) {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
    if (provided >= MPI_THREAD_SERIALIZED) return;
    throw ConfigError(
        "mpi",
        "the program has initialised MPI for one thread, and the backend calls it from several, one "
        "at a time: call MPI_Init_thread with MPI_THREAD_SERIALIZED, or set backend to gloo");
  }
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) {
    throw ConfigError(
        "mpi",
        "this MPI cannot be called from more than one thread, even one at a time: set backend to gloo");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  std::atexit(finalize);
}

void check_world(int job_rank, int highest_job_rank) {
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (rank != job_rank || highest_job_rank >= size) {
    throw ConfigError(
        "mpi", fmt::format("MPI's world is not this job's, start the job with mpirun or srun --mpi: MPI "
                           "says rank {} of {}, the job says rank {} and has a rank {}",
                           rank, size, job_rank, highest_job_rank));
  }
}

// A new MPI communicator for some ranks of the job. Initialises MPI if the program has not; then MPI
// is finalised when the process exits, unless an operation failed.
class MpiGroup {
 public:
  // Collective over `job_ranks`. ConfigError: MPI's world is not the job's, for example because
  // mpirun did not start the program.
  MpiGroup(int rank, const std::vector<int>& job_ranks);
  // Frees the communicator, except after a failure: the others may be gone.
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  MPI_Comm communicator() const { return communicator_; }

  // Makes pending and later operations throw. From any thread.
  void mark_broken();
  bool is_broken() const { return broken_; }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::atomic<bool> broken_ = false;
};

MpiGroup::MpiGroup(int rank, const std::vector<int>& job_ranks) {
  initialize();
  check_world(job_ranks.at(static_cast<size_t>(rank)), *std::max_element(job_ranks.begin(), job_ranks.end()));
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(world, static_cast<int>(job_ranks.size()), job_ranks.data(), &members),
            "MPI_Group_incl");
  const int code = MPI_Comm_create_group(MPI_COMM_WORLD, members, /*tag=*/0, &communicator_);
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  check_mpi(code, "MPI_Comm_create_group");
  check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiGroup::~MpiGroup() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && !broken_) {
    MPI_Comm_free(&communicator_);
  }
}

void MpiGroup::mark_broken() {
  broken_ = true;
  may_finalize() = false;
}

// --- operations ---

// The nonblocking MPI calls of one operation. They progress inside MPI_Test, which wait() and
// isCompleted() call.
class MpiWork final : public c10d::Work {
 public:
  // `tensors` are kept until MPI is done with them; `then` runs after success.
  MpiWork(std::shared_ptr<MpiGroup> group, int rank, OpType operation, Milliseconds timeout,
          std::vector<at::Tensor> tensors, std::function<void()> then = {});
  ~MpiWork() override;

  // For the MPI call that starts the operation.
  MPI_Request* new_request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  bool isCompleted() override {
    poll();
    return done_;
  }
  bool isSuccess() const override { return done_ && !failure_; }
  std::exception_ptr exception() const override { return failure_; }
  bool wait(Milliseconds timeout) override;

 private:
  void poll();
  void fail(const std::string& what);

  std::shared_ptr<MpiGroup> group_;
  Milliseconds timeout_;
  std::vector<at::Tensor> tensors_;
  std::function<void()> then_;
  std::vector<MPI_Request> requests_;
  bool done_ = false;
  std::exception_ptr failure_;
};

MpiWork::MpiWork(std::shared_ptr<MpiGroup> group, int rank, OpType operation, Milliseconds timeout,
                 std::vector<at::Tensor> tensors, std::function<void()> then)
    : Work(rank, operation),
      group_(std::move(group)),
      timeout_(timeout),
      tensors_(std::move(tensors)),
      then_(std::move(then)) {}

MpiWork::~MpiWork() {
  if (!done_ || failure_) {
    // Never freed: MPI cannot cancel a collective and may write to its memory until the end.
    static_cast<void>(new std::vector<at::Tensor>(std::move(tensors_)));
  }
}

void MpiWork::fail(const std::string& what) {
  group_->mark_broken();
  failure_ = std::make_exception_ptr(std::runtime_error(what));
  done_ = true;
}

void MpiWork::poll() {
  if (done_) return;
  if (group_->is_broken()) {
    fail("aborted because a rank of the job is gone");
    return;
  }
  int completed = 0;
  try {
    check_mpi(
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &completed, MPI_STATUSES_IGNORE),
        "MPI_Testall");
  } catch (const std::exception& error) {
    fail(error.what());
    return;
  }
  if (completed != 0) {
    done_ = true;
    if (then_) {
      then_();
    }
    tensors_.clear();
  }
}

bool MpiWork::wait(Milliseconds timeout) {
  const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
  const auto deadline = Clock::now() + limit;
  for (poll(); !done_; poll()) {
    if (Clock::now() > deadline) {
      fail(fmt::format("timed out after {} ms", limit.count()));
      break;
    }
    std::this_thread::yield();
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  return true;
}

// --- the backend ---

constexpr int64_t kPiece = int64_t{1} << 30;

// Blocks of one rank; MPI counts them in int.
int count_of(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.numel() <= std::numeric_limits<int>::max(), "a block of ", tensor.numel(),
                    " elements is more than MPI counts");
  return static_cast<int>(tensor.numel());
}

MPI_Datatype type_of(const at::Tensor& tensor) { return mpi_datatype(tensor.scalar_type()); }

// CPU tensors. Used by one thread of the process at a time, except abort(). An MPI error throws and
// breaks the group.
class MpiBackend final : public c10d::Backend {
 public:
  MpiBackend(int rank, const std::vector<int>& job_ranks, Milliseconds timeout)
      : Backend(rank, static_cast<int>(job_ranks.size())),
        group_(std::make_shared<MpiGroup>(rank, job_ranks)),
        timeout_(timeout) {}

  const std::string getBackendName() const override { return "mpi"; }
  void setTimeout(Milliseconds timeout) override { timeout_ = timeout; }
  void abort() override { group_->mark_broken(); }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = tensors.at(0);
    return start_in_pieces(OpType::BROADCAST, "MPI_Ibcast", options.timeout, tensor,
                           [&](void* data, int count, MPI_Request* request) {
                             return MPI_Ibcast(data, count, type_of(tensor),
                                               static_cast<int>(options.rootRank), group_->communicator(),
                                               request);
                           });
  }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    at::Tensor& tensor = tensors.at(0);
    c10d::ReduceOp op = options.reduceOp;
    if (op.op_ == c10d::ReduceOp::AVG) {
      at::NoGradGuard no_grad;
      tensor.mul_(1.0 / getSize());
      op = c10d::ReduceOp::SUM;
    }
    const MPI_Op operation = mpi_operation(op, tensor.scalar_type());
    return start_in_pieces(OpType::ALLREDUCE, "MPI_Iallreduce", options.timeout, tensor,
                           [&](void* data, int count, MPI_Request* request) {
                             return MPI_Iallreduce(MPI_IN_PLACE, data, count, type_of(tensor), operation,
                                                   group_->communicator(), request);
                           });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    at::Tensor contribution = input;
    c10d::ReduceOp op = options.reduceOp;
    if (op.op_ == c10d::ReduceOp::AVG) {
      at::NoGradGuard no_grad;
      contribution = input.mul(1.0 / getSize());
      op = c10d::ReduceOp::SUM;
    }
    const MPI_Op operation = mpi_operation(op, input.scalar_type());
    return start(OpType::_REDUCE_SCATTER_BASE, "MPI_Ireduce_scatter_block", options.timeout,
                 {output, contribution}, [&](MPI_Request* request) {
                   return MPI_Ireduce_scatter_block(contribution.data_ptr(), output.data_ptr(),
                                                    count_of(output), type_of(output), operation,
                                                    group_->communicator(), request);
                 });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return start(OpType::_ALLGATHER_BASE, "MPI_Iallgather", options.timeout, {output, input},
                 [&](MPI_Request* request) {
                   return MPI_Iallgather(input.data_ptr(), count_of(input), type_of(input), output.data_ptr(),
                                         count_of(input), type_of(input), group_->communicator(), request);
                 });
  }

  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override {
    const at::Tensor& input = inputs.at(0);
    const bool is_root = options.rootRank == getRank();
    const at::Tensor whole = is_root ? at::empty({getSize(), input.numel()}, input.options()) : at::Tensor();
    std::function<void()> then;
    if (is_root) {
      then = [whole, blocks = outputs.at(0)] {
        for (size_t i = 0; i < blocks.size(); ++i) {
          blocks[i].view(-1).copy_(whole[static_cast<int64_t>(i)]);
        }
      };
    }
    return start(
        OpType::GATHER, "MPI_Igather", options.timeout, {input, whole},
        [&](MPI_Request* request) {
          return MPI_Igather(input.data_ptr(), count_of(input), type_of(input),
                             is_root ? whole.data_ptr() : nullptr, count_of(input), type_of(input),
                             static_cast<int>(options.rootRank), group_->communicator(), request);
        },
        then);
  }

  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override {
    const at::Tensor& output = outputs.at(0);
    const bool is_root = options.rootRank == getRank();
    const at::Tensor whole = is_root ? at::cat(inputs.at(0)) : at::Tensor();
    return start(OpType::SCATTER, "MPI_Iscatter", options.timeout, {output, whole},
                 [&](MPI_Request* request) {
                   return MPI_Iscatter(is_root ? whole.data_ptr() : nullptr, count_of(output),
                                       type_of(output), output.data_ptr(), count_of(output), type_of(output),
                                       static_cast<int>(options.rootRank), group_->communicator(), request);
                 });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    TORCH_CHECK_VALUE(output_splits.empty() && input_splits.empty(), "uneven splits");
    const int64_t block = input.numel() / getSize();
    TORCH_CHECK_VALUE(block <= std::numeric_limits<int>::max(), "a block of ", block,
                      " elements is more than MPI counts");
    const auto count = static_cast<int>(block);
    return start(OpType::ALLTOALL_BASE, "MPI_Ialltoall", options.timeout, {output, input},
                 [&](MPI_Request* request) {
                   return MPI_Ialltoall(input.data_ptr(), count, type_of(input), output.data_ptr(), count,
                                        type_of(input), group_->communicator(), request);
                 });
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int destination, int tag) override {
    const at::Tensor& tensor = tensors.at(0);
    return start(OpType::SEND, "MPI_Isend", c10d::kUnsetTimeout, {tensor}, [&](MPI_Request* request) {
      return MPI_Isend(tensor.data_ptr(), count_of(tensor), type_of(tensor), destination, tag,
                       group_->communicator(), request);
    });
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    const at::Tensor& tensor = tensors.at(0);
    return start(OpType::RECV, "MPI_Irecv", c10d::kUnsetTimeout, {tensor}, [&](MPI_Request* request) {
      return MPI_Irecv(tensor.data_ptr(), count_of(tensor), type_of(tensor), source, tag,
                       group_->communicator(), request);
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return start(OpType::BARRIER, "MPI_Ibarrier", options.timeout, {},
                 [&](MPI_Request* request) { return MPI_Ibarrier(group_->communicator(), request); });
  }

 private:
  // Starts an operation: `call(request)` makes the MPI call with this name.
  template <typename Call>
  WorkPtr start(OpType operation, const char* name, Milliseconds timeout, std::vector<at::Tensor> tensors,
                Call&& call, std::function<void()> then = {}) {
    TORCH_CHECK(!group_->is_broken(), "the group is broken by an earlier failure");
    auto work = c10::make_intrusive<MpiWork>(group_, getRank(), operation,
                                             timeout == c10d::kUnsetTimeout ? timeout_ : timeout,
                                             std::move(tensors), std::move(then));
    check_mpi(call(work->new_request()), name);
    return work;
  }

  // The same for calls on a tensor of any length: MPI counts in int, so a long tensor needs several
  // `call(data, count, request)`.
  template <typename Call>
  WorkPtr start_in_pieces(OpType operation, const char* name, Milliseconds timeout, const at::Tensor& tensor,
                          Call&& call) {
    TORCH_CHECK(!group_->is_broken(), "the group is broken by an earlier failure");
    auto work = c10::make_intrusive<MpiWork>(group_, getRank(), operation,
                                             timeout == c10d::kUnsetTimeout ? timeout_ : timeout,
                                             std::vector<at::Tensor>{tensor});
    auto* data = static_cast<char*>(tensor.data_ptr());
    for (int64_t begin = 0; begin < tensor.numel(); begin += kPiece) {
      const int64_t count = std::min(kPiece, tensor.numel() - begin);
      check_mpi(call(data + begin * tensor.element_size(), static_cast<int>(count), work->new_request()),
                name);
    }
    return work;
  }

  const std::shared_ptr<MpiGroup> group_;
  Milliseconds timeout_;
};

}  // namespace
}  // namespace lockstep::comm

extern "C" __attribute__((visibility("default"))) void lockstep_make_backend(
    const lockstep::comm::PluginRequest& request, c10::intrusive_ptr<c10d::Backend>& result) {
  result = c10::make_intrusive<lockstep::comm::MpiBackend>(request.rank, request.job_ranks, request.timeout);
}

// Checks that the function has the type to which the loader casts.
static lockstep::comm::PluginMakeBackend* const kMakeBackend [[maybe_unused]] = &lockstep_make_backend;
